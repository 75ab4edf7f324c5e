"""Deployments of FedAvg by other frameworks, which `examples.hospitals.deployed` starts and times."""
