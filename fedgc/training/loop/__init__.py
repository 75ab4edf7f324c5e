"""A training script's side of a federation: `fedgc.join`, and what `fed.steps` does between two batches.

This package runs in the user's process. The client's side is `fedgc.training.script`; both share
`shared_vectors` and `protocol`.
"""
