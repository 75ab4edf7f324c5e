"""One line of the masked protocol is changed at a time; a test of `tests/secagg` must notice each change."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPARSE = ("test_attacks_on_graph.py", "test_graph.py", "test_sparse_exchanges.py")
FIRST = {  # files of tests that are likely to notice a change of a file; the others run after them
    "client": (*SPARSE, "test_attacks_on_unmasking.py", "test_attacks_on_beginning.py"),
    "server": (*SPARSE, "test_server.py"),
    "packets": (*SPARSE, "test_canonical.py"),
    "canonical": ("test_canonical.py", *SPARSE),
    "state": ("test_state.py", *SPARSE),
    **dict.fromkeys(
        ("masked_vector", "keystream", "quantizer"),
        ("test_masked_vector.py", "test_attacks_on_masks.py", "test_privacy.py"),
    ),
}
MUTATIONS = [
    # the graph's numbers
    ("graph", "RISK_BITS: Final = 40", "RISK_BITS: Final = 39"),
    ("graph", "2 * shares - holders)\n\n\n@cache", "2 * shares - holders + 1)\n\n\n@cache"),
    ("graph", "_twice(members, quorum, self.colluders, self.holders, self.shares),\n", ""),
    ("graph", "half + colluders, holders - 1, shares - 1)", "half + colluders, holders - 1, shares)"),
    ("graph", "range(1, honest // 2 + 1)", "range(1, 2)"),
    ("graph", "size - 1 + colluders", "colluders"),
    ("graph", "{quorum, min(quorum + 1, members)}", "{quorum}"),
    ("graph", "rosters = range(quorum, members + 1)", "rosters = [members]"),
    ("graph", "rosters = range(quorum, members + 1)", "rosters = [quorum]"),
    ("graph", "(MOST_EXCHANGES) + math.log(members", "(MOST_EXCHANGES) + math.log(quorum"),
    ("graph", "valid = (members + colluders) // 2", "valid = members // 2"),
    ("graph", "for bad in range(min(colluders, others) + 1)", "for bad in range(1)"),
    ("graph", "math.log(MOST_EXCHANGES) + ", ""),
    ("graph", "if bits < RISK_BITS", "if bits < 0"),
    ("graph", "or 2 * threshold <= members + self.colluders", ""),
    ("graph", "self.holders >= quorum or", ""),
    ("graph", "self.checked > threshold or", ""),
    ("graph", "self.present <= self.neighbors < self.holders", "self.present <= self.neighbors"),
    ("graph", "self.holders < 2 * self.shares <=", "0 < 2 * self.shares <="),
    ("graph", "< 2 * self.shares <= 2 * self.holders", "< 2 * self.shares"),
    ("graph", "self.colluders < 0 or", ""),
    ("graph", "other = at + number % (len(pool) - at)", "other = number % len(pool)"),
    ("graph", "return tuple(sorted(pool[:count]))", "return tuple(range(count))"),
    ("graph", 'digest("neighbors", chance)', "bytes(32)"),
    ("graph", 'digest("holders", chance)', "bytes(32)"),
    # set-up
    ("client", 'others, derive(entropy, known.rho, "graph")', "others, entropy"),
    ("client", 'others, derive(entropy, known.rho, "graph")', 'others, derive(bytes(32), known.rho, "g")'),
    (
        "client",
        "            rules.check_advert(self.federation, advert, roster.epoch, now)\n",
        "            pass\n",
    ),
    ("client", "holders = tuple(sorted((*chosen, self.number)))", "holders = chosen"),
    ("client", "split(secret, self.federation.shares,", "split(secret, 2,"),
    ("client", "if not isinstance(advert, kind):", "if False:"),
    ("rules", "    _check_claim(federation, advert, now)\n", ""),
    ("client", "        rules.check_keys_differ(roster.adverts)\n", ""),
    ("client", "if own not in roster.adverts:", "if False:"),
    ("client", '        rules.check_quorum(self.federation, len(roster.adverts), "roster")\n', ""),
    ("client", "own = mine.head if mine and self.federation.graph else mine", "own = roster.adverts[0]"),
    (
        "rules",
        "federation.members[advert.member].public, advert.signature",
        "advert.channel, advert.signature",
    ),
    ("rules", "(advert.epoch, count) != (epoch, federation.exchanges)", "count != federation.exchanges"),
    ("rules", "for key in (advert.channel, *masks):", "for key in masks:"),
    ("rules", "    if advert.fid != federation.fid:\n", "    if False:\n"),
    ("rules", "if abs(advert.made - now) > CLOCK_S:", "if False:"),
    ("rules", "if advert.member >= len(federation.members):", "if False:"),
    ("rules", "(advert.channel, advert.keys_digest, advert.commitments_digest)", "(advert.channel,)"),
    ("rules", "if isinstance(advert, Advert) and federation.graph else advert", "if False else advert"),
    ("rules", "(advert.epoch, count) != (epoch, federation.exchanges)", "advert.epoch != epoch"),
    ("packets", "self.channel, self.keys_digest,\n", "self.channel, bytes(32),\n"),
    ("packets", 'digest("commitments", self.commitments)', "bytes([self.member] * 32)"),
    ("server", "if not self._is_for_holders(deal):", "if False:"),
    ("server", "others >= set(deal.neighbors)", "True"),
    ("server", "others <= set(members)", "True"),
    ("server", "wanted = graph.holders, graph.holders - 1, graph.neighbors", "wanted = numbers"),
    ("server", "return deal.holders == members and not deal.neighbors", "return deal.holders == members"),
    # the beginning
    ("client", "if strangers := sorted(set(packet.members) - set(known.members)):", "if strangers := []:"),
    ("client", "self.number, delivery.neighbors\n", "self.number, ()\n"),
    ("rules", "*((neighbors,) if neighbors else ())", ""),
    ("client", "            rules.check_keys(self.federation, head, keys)\n", ""),
    ("client", "head = known.advert(member) if member in near else None", "head = known.advert(member)"),
    ("client", "set(state.peers)", "near if (near := state.near(self.number)) else near"),
    (
        "client",
        "if reason := state.absence(self.federation, members, of=(self.number,)):",
        "if reason := '':",
    ),
    ("client", "if m in others and m != self.number", "if m != self.number and m in self.state.peers"),
    ("rules", "or keys_digest(keys) != head.keys_digest", ""),
    ("rules", "check_public(keys[at : at + KEY_BYTES], who)", "pass"),
    ("client", "[(exchange - 1) * KEY_BYTES : exchange * KEY_BYTES]", "[:KEY_BYTES]"),
    ("state", "found.union(s for s,", "found.union(s for s in () for _,"),
    ("state", "drew,\n        dict(peers),", "((),) * len(sources),\n        dict(peers),"),
    ("state", '"graph": (self.drew, self.peers) if any(self.drew) else (),', '"graph": (),'),
    # the vector
    ("client", "if not same(start, self.state.start):", "if False:"),
    ("client", "used=True, vector=vector", "vector=vector"),
    ("client", "Shield(privacy.shortening(update),", "Shield(np.float32(1),"),
    ("client", "        if weight != w_max:\n", "        if False:\n"),
    ("masked_vector", "if self._tag(part) != tag:", "if False:"),
    ("masked_vector", "self._masks.add_to(words, first)", "self._masks.add_to(words, 0)"),
    ("masked_vector", "if shield.shortening else np.zeros_like(part)", ""),
    ("masked_vector", 'derive(shield.key, b"", "noise", run)', "shield.key"),
    ("masked_vector", "tile.start != self._noised or ", ""),
    ("keystream", "first != self._at or ", ""),
    ("keystream", "or first % RUN_WORDS == 0", ""),
    ("keystream", "divmod(first, RUN_WORDS)", "(first // RUN_WORDS, 0)"),
    ("keystream", "divmod(position, RUN_BYTES)", "(position // RUN_BYTES, 0)"),
    ("quantizer", "self._chance.seek(first * self._kind.itemsize)", "self._chance.seek(first)"),
    # survivors
    ("client", "if reason := self.state.absence(self.federation, survivors):", "if reason := '':"),
    ("rules", "    if count >= needed:\n", "    if count >= needed - 1:\n"),
    ("rules", "    if count >= needed:\n", "    if count > needed:\n"),
    ("server", "for member in chosen if self.federation.graph else ():", "for member in ():"),
    ("server", "return not any(rules.absence(", "return not all(rules.absence("),
    # signatures
    ("client", "        if turn.unlocked_by and not same(name, turn.unlocked_by):\n", "        if False:\n"),
    ("client", "(turn.opened or self.federation.graph) and", "turn.opened and"),
    ("client", "replace(turn, unlocked_by=name)))", "turn))"),
    ("client", 'derive(self.identity.secret, turn.context, "checked", name)', "turn.context"),
    ("client", 'turn.context, "checked", name)', 'turn.context, "checked")'),
    ("client", "chosen = drawn(chosen, graph.checked, chance)", "chosen = drawn(chosen, 1, chance)"),
    ("client", "if len(signatures) < self.federation.threshold:", "if False:"),
    ("client", '            verify(who.public, signature, statement, f"unlock: {who.name}")\n', ""),
    ("client", "        if strangers:\n", "        if False:\n"),
    (
        "packets",
        'digest("unlock", self.epoch, self.exchange, members, signatures)',
        'digest("unlock", members)',
    ),
    # shares
    ("client", "            if m in pairs\n", ""),
    ("server", "or [m for m, _ in packet.shares] != held:", "or False:"),
    ("server", "packet.member not in self.survivors or", ""),
    (
        "server",
        "if not same(self._tag(source, packet.member, share)",
        "if False and same(self._tag(source, 0, share)",
    ),
    ("server", "        if packet.member in self.opened:\n            return self\n", ""),
    ("server", "return max(self.lacking.values()) <= 0", "return True"),
    ("server", "len(there.intersection(self.holders[member])) >= needed", "True"),
    ("server", "if len(there) < self.federation.threshold:", "if False:"),
    ("server", "[m for m in self.survivors if m in drew or member in self.deals[m].neighbors]", "[*drew]"),
    ("server", "if m in drew or member in self.deals[m].neighbors", "if m in drew"),
    ("rules", "return holders.index(holder) + 1 if federation.graph else holder + 1", "return holder + 1"),
    # the descriptor and the encoding
    ("federation", "*(astuple(self.graph) if self.graph else ())", ""),
    ("federation", "if len(drawn) not in (0, len(fields(Graph))):", "if False:"),
    (
        "federation",
        "            self.graph.check(count, self.threshold, self.quorum)\n",
        "            pass\n",
    ),
    ("federation", "or (count > POINTS and self.graph is None)", ""),
    ("federation", "*(((self.task.digest, self.task.signatures),) if self.task else ()),", ""),
    ("federation", "if not 1 <= self.signatures <= members:", "if False:"),
    ("federation", "if len(self.digest) != _DIGEST_BYTES:", "if False:"),
    ("canonical", "    if values[count - 1 :] == ((),):\n", "    if False:\n"),
]


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the library and of these tests."""
    folder = tmp_path_factory.mktemp("mutated")
    ignored = shutil.ignore_patterns("__pycache__", Path(__file__).name)
    shutil.copytree(ROOT / "fedgc", folder / "fedgc", ignore=ignored)
    shutil.copytree(ROOT / "tests" / "secagg", folder / "tests" / "secagg", ignore=ignored)
    for name in ("pyproject.toml", "tests/conftest.py", "tests/party.py"):
        shutil.copy(ROOT / name, folder / name)
    assert not noticed(folder, SPARSE), "the tests of the copy fail before any change"
    return folder


def noticed(folder: Path, tests: tuple[str, ...]) -> bool:
    """Whether one of these tests fails in the copy."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
    paths = [f"tests/secagg/{name}" for name in tests]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([*command, *paths], cwd=folder, env=environment, capture_output=True, check=False)
    return done.returncode == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(MUTATIONS)))
def test_changed_line_is_noticed(copy, number):
    name, old, new = MUTATIONS[number]
    path = copy / "fedgc" / "secagg" / f"{name}.py"
    before = path.read_text()
    assert before.count(old) == 1, f"{name}: {old!r} occurs {before.count(old)} times"
    first = FIRST.get(name, SPARSE)
    others = tuple(sorted({each.name for each in (copy / "tests" / "secagg").glob("test_*.py")} - set(first)))
    path.write_text(before.replace(old, new))
    try:
        assert noticed(copy, first) or noticed(copy, others), f"{name}: {old!r} as {new!r}"
    finally:
        path.write_text(before)
