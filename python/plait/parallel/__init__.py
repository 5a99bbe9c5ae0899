"""Experts of whole models over the ranks of a group: sharding, checkpoints, gradients. Its functions are those of `plait` itself."""
