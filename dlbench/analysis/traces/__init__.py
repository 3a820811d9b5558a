"""Traces of PyTorch's profiler (Kineto), one file per rank: their events, and the collectives that ranks share."""
