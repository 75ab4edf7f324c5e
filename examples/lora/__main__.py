"""LoRA adapters of a small language model on three clients: only the adapter travels."""

from pathlib import Path

from examples.federation import Federation, Result, main

CLIENTS = 3
ROUNDS = 20
SCRIPT = Path(__file__).with_name("train.py")
SETTINGS = {"script": str(SCRIPT), "rounds": ROUNDS, "links.grace-s": 2.0}
BANDS = {
    "loss_base": (2.1, 2.5),
    "loss": (1.8, 2.1),
    "update_kb": (50.0, 54.0),
}


def example(folder: Path) -> Result:
    """Train the adapter, and compare its loss with that of the base alone."""
    with Federation(folder, CLIENTS) as federation:
        federation.complete("lora", SETTINGS)
        losses = federation.measured("lora", "loss")
        with federation.store() as store:
            base = store.run("lora").initial_metrics["loss"]
        updates = [
            row.up_bytes
            for own in federation.client_rows("lora").values()
            for number, row in own
            if row.counted and number > 1  # the first client has also sent the first model
        ]
    figures = {"loss_base": base, "loss": losses[-1], "update_kb": max(updates) / 1000, "rounds": len(losses)}
    return Result(figures, [{"round": at, "loss": loss} for at, loss in enumerate(losses, start=1)])


if __name__ == "__main__":
    main(example, BANDS, "lora")
