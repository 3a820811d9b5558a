"""Strategies: pure functions from (model, parallelism, rank) to the ops of one iteration."""

from dlbench.strategies import ops
from dlbench.strategies.configuration import Configuration, Role, configure
from dlbench.strategies.layout import Coordinates, Layout
from dlbench.strategies.registry import STRATEGIES, get_strategy
from dlbench.strategies.strategy import Strategy, Workload

__all__ = [
    "STRATEGIES",
    "Configuration",
    "Coordinates",
    "Layout",
    "Role",
    "Strategy",
    "Workload",
    "configure",
    "get_strategy",
    "ops",
]
