"""Personal layers: three clients train one body together, and each keeps a head of its own."""

from pathlib import Path

from examples.federation import Federation, Result, main, say

CLIENTS = 3
ROUNDS = 15
SCRIPT = Path(__file__).with_name("train.py")
PRIVATE = {"nothing": "", "head": "--private head.*", "normalization": "--private body.1.*"}
BANDS = {
    "accuracy_nothing": (0.1, 0.5),
    "accuracy_head": (0.85, 1.0),
    "accuracy_normalization": (0.7, 1.0),
}


def example(folder: Path) -> Result:
    """Train with different private tensors, one run after the other."""
    rows = []
    with Federation(folder, CLIENTS) as federation:
        for name, words in PRIVATE.items():
            say(f"private: {name}")
            settings = {"script": f"{SCRIPT} {words}".strip(), "rounds": ROUNDS, "gate.name": "every"}
            federation.complete(name, settings)
            rows.append({"private": name, "accuracy": federation.last(name, "accuracy")})
    return Result({f"accuracy_{row['private']}": row["accuracy"] for row in rows}, rows)


if __name__ == "__main__":
    main(example, BANDS, "personal")
