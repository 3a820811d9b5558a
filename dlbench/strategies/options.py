"""The options that say what is trained and how it is spread: declared once, for every command that takes them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from dlbench.arguments import at_least, more_than, text
from dlbench.specs import MESSAGE_DTYPES
from dlbench.strategies.configuration import DEFAULT_DTYPE, DEFAULT_LOCAL_BATCH
from dlbench.strategies.registry import STRATEGIES
from dlbench.strategies.strategy import Strategy

DEFAULT_GPU = "b200"
WORKLOAD_OPTIONS = (
    "dtype",
    "local_batch",
    "sequence_length",
    "microbatches",
    "buckets",
    "units",
    "sharding",
    "pp",
    "tp",
    "ep",
    "scale",
    "time_scale",
)
"""Those that become arguments of `configure`, under the same names."""


OWN_OPTIONS = {
    "microbatches": "parts of the local batch in a pipeline",
    "buckets": "parts of the gradients",
    "units": "parts of the parameters",
    "sharding": "ranks that share a copy of the parameters",
    "pp": "pipeline stages",
    "tp": "ranks that share a layer",
    "ep": "ranks that share the experts",
}
"""Options that only some strategies have."""


def add_workload_arguments(parser: argparse.ArgumentParser, strategy: Strategy | None = None) -> None:
    """Declare the options. An option that is not given is None: the default is the strategy's, as its help says.

    With a strategy, the help shows only the options that it has; `configure` says so of the others.
    """
    work = parser.add_argument_group("what is trained")
    models = ", ".join(f"{strategy.name} {strategy.model}" for strategy in STRATEGIES.values())
    work.add_argument("--model", type=text, metavar="NAME", help=f"model spec, by name or path (default: {models})")
    work.add_argument(
        "--gpu", type=text, metavar="NAME", help=f"GPU spec whose roofline times the compute (default {DEFAULT_GPU})"
    )
    work.add_argument(
        "--dtype", choices=MESSAGE_DTYPES, help=f"datatype of compute and messages (default {DEFAULT_DTYPE})"
    )
    _integer(work, "--local-batch", f"samples per replica and iteration (default {DEFAULT_LOCAL_BATCH})")
    _integer(work, "--sequence-length", "tokens per sample (default: the model's)")

    spread = parser.add_argument_group("how it is spread over the ranks")
    for option, described in OWN_OPTIONS.items():
        shown = strategy is None or option in strategy.defaults
        _integer(spread, f"--{option}", f"{described} {_defaults(option)}" if shown else argparse.SUPPRESS)

    size = parser.add_argument_group("how large it is")
    size.add_argument(
        "--scale", type=more_than(0.0), metavar="F", help="factor on the elements of every message (default 1)"
    )
    size.add_argument("--time-scale", type=more_than(0.0), metavar="F", help="factor on all compute (default 1)")


def workload_options(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of `configure` from parsed options: those that were given."""
    return {name: arguments[name] for name in WORKLOAD_OPTIONS if arguments.get(name) is not None}


def _integer(group: argparse._ArgumentGroup, option: str, described: str) -> None:
    group.add_argument(option, type=at_least(1), metavar="N", help=described)


def _defaults(option: str) -> str:
    values = {name: strategy.defaults[option] for name, strategy in STRATEGIES.items() if option in strategy.defaults}
    default = "/".join(str(value) for value in dict.fromkeys(values.values()))
    return f"({', '.join(values)}; default {default})"
