"""`fedgc keys new`, `federation`, `check`: a site's identity, and the descriptor of its federation."""

import getpass
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedgc.errors import BadSetting, Unusable, numbered
from fedgc.policy import read_statement
from fedgc.policy.policy import DIGEST
from fedgc.processes.state_folder import state_folder
from fedgc.secagg import Descriptor, Federation, Privacy, Quantizer, TaskPin, guarantees, limits
from fedgc.secagg.federation import least_threshold, member_list
from fedgc.secagg.graph import Graph, graph_for
from fedgc.secagg.shamir import POINTS
from fedgc.store.descriptor import read_descriptor, write_descriptor
from fedgc.store.vault import PASSPHRASE_IN, Vault, secret_of

SHARE_LOST: Final = 20  # one member in so many is lost in an exchange, by default
_SHOWN: Final = 16  # digits of a descriptor's hash for comparison by people


@dataclass(frozen=True, slots=True)
class Opener:
    """The vault's path, and the secret that opens it."""

    path: Path | None
    key_file: Path | None

    def open(self, *, may_make: bool) -> Vault:
        """Open the vault; create a missing one only if allowed."""
        path = self.path or state_folder(os.environ) / "vault.db"
        if not may_make and not path.exists():
            raise Unusable(f"vault {path}: saw none, needed the one that `fedgc keys new` makes")
        return Vault.open(path, self._secret(is_new=not path.exists()))

    def _secret(self, *, is_new: bool) -> bytes:
        secret = secret_of(self.key_file, os.environ)
        return _asked(is_new=is_new).encode() if secret is None else secret


@dataclass(frozen=True, slots=True)
class Numbers:
    """How a federation encodes numbers."""

    clip: float
    bits: int
    ring: int
    w_max: int


@dataclass(frozen=True, slots=True)
class Pinned:
    """The values that a descriptor pins, as typed."""

    members: tuple[str, ...]
    threshold: int | None
    n_min: int
    exchanges: int
    numbers: Numbers
    site_clip: float | None
    privacy: tuple[float | None, int, float]  # noise, releases, delta
    sparse: tuple[int | None, int | None]  # members that collude, members lost in an exchange
    task: tuple[Path | None, int | None] = (None, None)  # statement, members that have to sign it

    def federation(self) -> Federation:
        """Return the federation, or raise for the first invalid value."""
        members = member_list([_member(word) for word in self.members])
        numbers = self.numbers
        threshold = self.threshold if self.threshold is not None else least_threshold(len(members))
        made = Federation(
            members,
            threshold,
            self.n_min,
            self.exchanges,
            Quantizer(numbers.clip, numbers.bits, numbers.ring, numbers.w_max),
            self._privacy(),
            self._graph(len(members), threshold),
            self._task(len(members)),
        )
        colluders = self.sparse[0] or 0
        if made.colluders < colluders:  # no graph is secure, and the complete one holds against fewer
            raise BadSetting(
                f"--colluders: saw {colluders} of {len(members)} members of whom {made.quorum} have to stay, "
                f"needed at most {made.colluders}{_more_that_stay(len(members), colluders)}"
            )
        return made

    def _task(self, members: int) -> TaskPin | None:
        file, signatures = self.task
        if file is None:
            if signatures is not None:
                raise BadSetting("--signatures: saw it alone, needed --task, the statement to be signed")
            return None
        digest = bytes.fromhex(read_statement(file).digest.removeprefix(DIGEST))
        return TaskPin(digest, members if signatures is None else signatures)

    def _graph(self, members: int, threshold: int) -> Graph | None:
        """Return the graph of a large federation, None for the complete one."""
        (colluders, lost), quorum = self.sparse, max(threshold, self.n_min)
        if colluders is None:
            if lost is not None:
                raise BadSetting("--lost: saw it alone, needed --colluders")
            return None
        if lost is not None and lost > members - quorum:
            raise BadSetting(
                f"--lost: saw {lost} of {members} members of whom {quorum} have to stay, "
                f"needed at most {members - quorum}"
            )
        lost = members // SHARE_LOST if lost is None else lost
        graph = graph_for(members, threshold, quorum, colluders, lost)
        if graph is None and members > POINTS:
            raise BadSetting(
                f"--colluders: saw {colluders} of {members} members of whom {quorum} have to stay and {lost} "
                "may be lost, for which no graph is secure; needed fewer, or a larger --threshold"
            )
        return graph

    def _privacy(self) -> Privacy | None:
        noise, releases, delta = self.privacy
        if self.site_clip is None and noise is None:
            return None
        if self.site_clip is None or noise is None:
            raise BadSetting("privacy: needed --noise with --site-clip, or none of the two")
        return Privacy(self.site_clip, noise, releases, delta)


def show_public(opener: Opener) -> None:
    """Print the public key of the vault's identity; create the identity if it is missing."""
    with opener.open(may_make=True) as vault:
        sys.stdout.write(vault.identity().public.hex() + "\n")


def write(opener: Opener, path: Path, pinned: Pinned) -> None:
    """Write a descriptor, signed by this site, to a new file."""
    descriptor = Descriptor(pinned.federation())
    if path.exists():
        raise Unusable(f"descriptor {path}: saw it there already, needed a new name")
    _sign(opener, path, descriptor)


def sign(opener: Opener, path: Path) -> None:
    """Sign the existing descriptor."""
    _sign(opener, path, read_descriptor(path))


def explain(path: Path, *, as_json: bool) -> None:
    """Print what a descriptor guarantees, and what it does not."""
    descriptor = read_descriptor(path)
    federation = descriptor.federation
    signed = [federation.members[number].name for number, _ in descriptor.endorsements]
    unsigned = [each.name for each in federation.members if each.name not in signed]
    promised, silent = guarantees(federation), limits(federation)
    if as_json:
        summary = {
            "descriptor": federation.fid.hex(),
            "signed": signed,
            "unsigned": unsigned,
            "promises": promised,
            "silent": silent,
        }
        sys.stdout.write(json.dumps(summary) + "\n")
        return
    missing = f", not yet by {', '.join(unsigned)}" if unsigned else ""
    sys.stdout.write(f"Descriptor {federation.fid.hex()}, signed by {', '.join(signed)}{missing}.\n")
    sys.stdout.write("\nIt promises:\n" + "".join(f"- {each}\n" for each in promised))
    sys.stdout.write("\nIt does not promise more:\n" + "".join(f"- {each}\n" for each in silent))


def _sign(opener: Opener, path: Path, descriptor: Descriptor) -> None:
    with opener.open(may_make=False) as vault:
        signed = descriptor.endorse(vault.identity())
    write_descriptor(path, signed)
    fid = signed.federation.fid.hex()
    count = numbered(len(signed.endorsements), "signature")
    sys.stdout.write(f"{path}: descriptor {fid[:_SHOWN]}..., {count}\n")


def _more_that_stay(members: int, colluders: int) -> str:
    """Return, as the end of a message, the threshold with which the complete graph holds against so many."""
    return f", or --threshold {(members + colluders) // 2 + 1}" if colluders <= members - 2 else ""


def _member(word: str) -> tuple[str, bytes]:
    name, equals, key = word.rpartition("=")
    try:
        return name.strip(), bytes.fromhex(key if equals else "needed")
    except ValueError as error:
        raise BadSetting(f"member {word!r}: needed name=public key, as `fedgc keys new` prints it") from error


def _asked(*, is_new: bool) -> str:
    if not sys.stdin.isatty():
        raise Unusable(f"vault: saw no --key-file, no {PASSPHRASE_IN} and no terminal, needed one of them")
    answer = getpass.getpass("Passphrase of the vault: ")
    if is_new and getpass.getpass("The same again: ") != answer:
        raise Unusable("vault: saw two different passphrases, needed the same twice")
    return answer
