"""All strategies. A new one is a file with its program and its `Strategy`, and a line here."""

from __future__ import annotations

from dlbench.errors import OptionError
from dlbench.strategies.data_parallel import DATA_PARALLEL
from dlbench.strategies.dp_pp import DP_PP
from dlbench.strategies.dp_pp_ep import DP_PP_EP
from dlbench.strategies.dp_pp_tp import DP_PP_TP
from dlbench.strategies.fully_sharded import FULLY_SHARDED
from dlbench.strategies.strategy import Strategy

STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy for strategy in (DATA_PARALLEL, FULLY_SHARDED, DP_PP, DP_PP_TP, DP_PP_EP)
}


def get_strategy(name: str) -> Strategy:
    """The strategy of that name; raises `OptionError` with the list of all names."""
    if name in STRATEGIES:
        return STRATEGIES[name]
    import difflib  # noqa: PLC0415 - only for a mistake

    close = difflib.get_close_matches(name, STRATEGIES, n=1)
    hint = f", did you mean {close[0]}?" if close else ";"
    raise OptionError(f"unknown strategy {name!r}{hint} there are {', '.join(STRATEGIES)}")
