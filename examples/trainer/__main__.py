"""Four loops train the same digits: a plain loop, two Trainers, and a task, where fedgc brings the loop."""

from pathlib import Path

import torch
from torch.nn.utils import vector_to_parameters

from examples.federation import Federation, Result, main, say
from examples.trainer.digits import CLIENTS, accuracy, digits, network
from fedgc.store import checkpoint

ROUNDS = 15
FOLDER = Path(__file__).parent
SETTINGS = {
    "rounds": ROUNDS,
    "local-steps": 30,
    "gate.name": "every",
    "links.grace-s": 2.0,
    "timing.quorum": 1.0,
    "optimizer.shared-momentum": "off",
}
TASK = {"task": "task:task", "data.chunks": CLIENTS, "learning-rate": 0.2}
LOOPS = {
    "plain": {"script": str(FOLDER / "plain.py")},
    "huggingface": {"script": str(FOLDER / "huggingface.py")},
    "lightning": {"script": str(FOLDER / "lightning.py")},
    "task": TASK,
}
BANDS = {**{f"accuracy_{name}": (0.93, 1.0) for name in LOOPS}, "spread_points": (0.0, 3.0)}


def example(folder: Path) -> Result:
    """Train by each loop, and score the common models."""
    _, held_out = digits()
    rows = []
    with Federation(folder, CLIENTS, PYTHONPATH=f"{FOLDER.parents[1]}:{FOLDER}") as federation:
        for name, settings in LOOPS.items():
            say(f"loop: {name}")
            federation.complete(
                name, {**SETTINGS, **settings, "history.checkpoint-dir": str(folder / "models")}
            )
            vector = checkpoint.load(folder / "models" / name).model
            model = network()
            vector_to_parameters(torch.from_numpy(vector.copy()), model.parameters())
            rows.append({"loop": name, "accuracy": accuracy(model, held_out)})
    reached = [row["accuracy"] for row in rows]
    return Result(
        {
            **{f"accuracy_{row['loop']}": row["accuracy"] for row in rows},
            "spread_points": 100.0 * (max(reached) - min(reached)),
        },
        rows,
    )


if __name__ == "__main__":
    main(example, BANDS, "trainer")
