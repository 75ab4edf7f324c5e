"""Deployments of FedAvg by other frameworks, which `examples.hospitals.deployed` starts and times."""

MARKS = "marks.jsonl"  # the file that their servers write
