"""A site of NVFlare's FedAvg, as a script of its client API: `nvflare_site.py FOLDER SITE`."""

import sys
from pathlib import Path

import nvflare.client as flare
import torch
from nvflare.apis.dxo import MetaKey

from examples.hospitals.rivals.work import Hospital


def main(folder: str, site: str) -> None:
    """Train whenever the server sends a model."""
    hospital = Hospital(Path(folder), int(site))
    flare.init()
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        given = {name: torch.as_tensor(each) for name, each in received.params.items()}
        trained = hospital.train(given, received.current_round + 1)
        meta = {MetaKey.NUM_STEPS_CURRENT_ROUND: hospital.samples}  # the weight of an update in the mean
        flare.send(flare.FLModel(params=dict(trained), meta=meta))


if __name__ == "__main__":
    main(*sys.argv[1:])
