"""Local work: local SGD with partial steps, and the weighted mean of the updates."""
