"""The task of one hospital: its share of the images, by the site's number in its own settings.

fedgc run --task examples.hospitals.hospital:task --client ward:site=0 --client clinic:site=1 ...

It validates on held-out images in its own label proportions.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import nn

import fedgc
from examples.hospitals.scene import SITES, sites_of
from fedgc.errors import BadSetting


def task(config: fedgc.RunConfig, client: Mapping[str, object]) -> fedgc.Task:
    """Return the task of a site; on the server, whose settings name no site, it has no data."""
    sites = sites_of(config.seed)
    whole = replace(sites.task(), evaluate=lambda model: {"accuracy": sites.evaluate(model)["accuracy"]})
    if "site" not in client:
        return replace(whole, chunks={}, may_move=False)
    site = client["site"]
    if not isinstance(site, int) or not 0 <= site < SITES:
        raise BadSetting(f"client setting site: saw {site!r}, needed 0 to {SITES - 1}")
    name = list(whole.sizes())[site]

    def validate(model: nn.Module) -> Mapping[str, float]:
        with torch.no_grad():
            return {"accuracy": float(sites.points(sites.evaluate(model))[site]) / 100.0}

    return replace(whole, chunks={name: len(np.asarray(sites.rows[site]))}, may_move=False, validate=validate)


def by_class(config: fedgc.RunConfig, client: Mapping[str, object]) -> fedgc.Task:
    """Return the same task, with the accuracy of each class, and evaluated by the server alone.

    The clients' mean accuracy has the same name, and would take the place of the server's.
    """
    return replace(task(config, client), evaluate=sites_of(config.seed).evaluate, validate=None)
