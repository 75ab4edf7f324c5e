"""A run of four clients, written by the store: one is slow, one dies in the third round."""

from collections.abc import Sequence

from fedgc.config import RunConfig
from fedgc.history import ClientRow, RoundRow
from fedgc.store.database import Store
from fedgc.store.records import Appended, Audited, Begun, Decided, Evaluated, Present, Seen

START = 1_700_000_000.0
MODEL_BYTES = 40_000
NAMES = {"aa": "quick", "bb": "steady", "cc": "slow", "dd": "dead"}


def clients_of(number: int) -> list[ClientRow]:
    """The rows of the four clients in a round: the slow one discards work, one dies in the third."""
    moved = {"up_bytes": 10_000, "down_bytes": MODEL_BYTES, "control_bytes": 500, "link": "session"}
    rows = [
        ClientRow("aa", 8, 8, 32, 0.32, 0.01, 0.001, 0.1, 0.05, **moved),
        ClientRow("bb", 6, 6, 24, 0.48, 0.02, 0.001, 0.1, 0.05, **moved),
        ClientRow("cc", 3, 2, 12, 0.96, 0.08, 0.002, 0.1, 0.05, **moved),
    ]
    if number < 3:
        rows.append(ClientRow("dd", 8, 8, 32, 0.32, 0.01, 0.001, 0.1, 0.05, **moved))
    if number == 3:
        rows.append(ClientRow("dd", 2, 0, 8, 0.1, 0.01, 0.001, failure="lost", down_bytes=MODEL_BYTES))
    return rows


def round_of(number: int, outcome: str = "synced", clients: Sequence[ClientRow] | None = None) -> RoundRow:
    """One round as the driver tells it."""
    values = {
        "round": number, "version": number - 1, "started": START + 2 * number, "outcome": outcome,
        "working_s": 1.0 + number / 100, "collecting_s": 0.25, "chunks": 16, "covered": 16, "short": (),
        "replicas": 2, "blocks": 2, "needed": 3, "amplification": 1.2, "error": None, "loss": 2.0 / number,
        "samples": 640, "skips": 3, "takes": 1, "pruned": 1, "repairs": 0, "reason": "every round",
    }  # fmt: skip
    return RoundRow(**values, clients=tuple(clients_of(number) if clients is None else clients))


def tell_a_run(store: Store, run: str = "spring", rounds: int = 12) -> None:
    """Write a running run: every fourth round is skipped, every second one is evaluated."""
    store.write(Begun(START, run, RunConfig(task="digits", rounds=99, work="coded").table()))
    for client, name in NAMES.items():
        store.write(Seen(START, client, name, "north", "session"))
    loads = {"aa": 8, "bb": 6, "cc": 3}
    basis = {"replicas": 2, "most_blocks": 2, "deadline_s": 9.0, "measured": True, "model_bytes": MODEL_BYTES}
    band = {"predicted_s": 1.3, "band_s": [1.1, 1.6], "loads": loads}
    store.write(
        Decided(START, run, 1, "plan", {**basis, "loads": {**loads, "dd": 8}}, "16 chunks on 4 clients")
    )
    for number in range(1, rounds + 1):
        outcome = "skipped" if number % 4 == 0 else "synced"
        store.write(Appended(START + 2 * number + 2, run, round_of(number, outcome)))
        if number % 2 == 0:
            store.write(
                Evaluated(START + 2 * number + 2, run, number, {"accuracy": 1 - 1 / number, "loss": 1.0})
            )
    store.write(Decided(START + 8, run, 4, "plan", {**basis, **band}, "16 chunks, because of cc: 0.08 s"))
    store.write(Audited(START, "joined", "aa", "with key 12ab", run))
    present = [
        {"client": client, "name": name, "present": client != "dd", "finished": 5, "link": "session"}
        for client, name in NAMES.items()
    ]
    now = {"round": rounds + 1, "rounds": 99, "phase": "working", "covered": 9, "chunks": 16, "replicas": 2}
    store.write(Present(START + 2 * rounds + 3, run, {**now, "clients": present}))
