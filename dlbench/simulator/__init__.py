"""Simulator: a network model that runs communication programs of any size on one machine."""
