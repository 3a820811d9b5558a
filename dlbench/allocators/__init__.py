"""Allocators: the design of experiments, that is which jobs run together, how large, and placed where."""
