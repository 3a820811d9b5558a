"""How the numbers of a report are made, in paragraphs."""

from __future__ import annotations

from collections.abc import Iterator

from dlbench.analysis.growth import MOST_GROUPS, MOST_ITERATIONS, MOST_MAXIMA
from dlbench.analysis.results import Results
from dlbench.analysis.trace_results import TraceResults
from dlbench.statistics import FEWEST_SAMPLES

_MEDIANS = (
    "Medians have the interval between two order statistics, which covers them with at least 95 % whatever the "
    "distribution (Hoefler and Belli, SC15)."
)
_WAITS = (
    "tau range, med and mean are the largest, median and mean wait. A wait that does not exceed the error of the "
    "clocks is unresolved, and a rank is a straggler only where it came later than every other by more than that."
)
_CULPRITS = (
    "It is compared with that of the rank that came first, as far back as they have nothing in common. The culprit is "
    "what took longer on the one than on the other by the largest difference; what has no counterpart counts in full. "
    "Both paths begin at one moment, so their difference is the tax by construction, and R² close to 1 proves nothing: "
    "what of it is idle time (gap) is not explained."
)
_GROWTH = "How waits grow with the group is predicted by extreme value fits of the block times, which ranks compute"
_LAW = "B* takes the waits of the group of most ranks. How far the predictions hold: docs/models.md."


def method(results: Results | None, traced: TraceResults | None) -> Iterator[str]:
    """What there is to say of the runs, and of the traces."""
    if results is not None:
        yield from _of_runs(results)
    if traced is not None:
        yield from _of_traces(traced)


def _of_runs(results: Results) -> Iterator[str]:
    yield (
        "Warm-up iterations are never counted, and runs are pooled only where all factors are equal. The time of an "
        "iteration is that of its slowest rank; its throughput is local batch × replicas / that time. sync_time of a "
        "rank is the time in blocking communication and in waits for non-blocking communication; the communication "
        "fraction of an iteration is the largest sync_time / runtime of its ranks."
    )
    yield (
        f"{_MEDIANS} Geometric and arithmetic means, and ratios of geometric means, have that between percentiles of a "
        "bootstrap in two levels: runs with replacement, then iterations of each drawn run "
        f"(seed {results.seed}). Below {FEWEST_SAMPLES} iterations there is no interval."
    )
    yield (
        "The slowdown σ is a ratio of geometric means, never a mean of ratios. Its baseline are the runs of the same "
        "factors that had no other job beside them. A concurrent iteration counts where on average at least "
        f"{100 * results.min_overlap:g} % of the experiment's other jobs ran during it, by wall-clock time."
    )
    if results.taxes.groups:
        yield (
            "The synchronisation tax is that of the runs that recorded their ops. In a collective, a rank waits from "
            f"its own entry to the last entry of its group: {_WAITS} Estimates are over iterations, each with the "
            "median, mean or sum of its collectives."
        )
    if results.taxes.explained:
        yield (
            "Why the last rank came late, its critical path says: from its entry into the collective back in time, "
            "always to what was over last of all that had to be over before, by the dependencies that the programs of "
            f"the ranks have. {_CULPRITS}"
        )
    if results.growth.found:
        yield (
            f"{_GROWTH} between two collectives of a group. At most {MOST_GROUPS} groups are fitted, of the "
            f"configurations of most GPUs, with {MOST_ITERATIONS} iterations and {MOST_MAXIMA:,} maxima of each at "
            f"most. {_LAW}"
        )


def _of_traces(traced: TraceResults) -> Iterator[str]:
    taxes = traced.taxes
    yield (
        "In traces, ranks leave a collective together, so a rank waits by as much as its kernel takes longer than the "
        f"shortest of the group: {_WAITS} Collectives belong together by sequence number, or by their order where "
        "there is none; a group in which operations, sizes or ends do not agree is refused."
    )
    yield (
        f"Traces know no iterations: estimates are over collectives. {_MEDIANS} Means and ratios have that between "
        f"percentiles of a bootstrap (seed {taxes.seed}). Below {FEWEST_SAMPLES} collectives there is no interval."
    )
    if taxes.explained:
        yield (
            "Why the last rank came late, its critical path says: from the collective's kernel back in time, always to "
            "what was over last of all that it waits for: what is before it on its stream or thread, its launch, other "
            "streams, the GPU where a call blocks, the thread that woke its own. Waits between streams are exact where "
            "the traces have events of cuda_sync; otherwise they are taken from the order of events. "
            f"{_CULPRITS}"
        )
    if traced.growth.found:
        yield (
            f"{_GROWTH} from the end of a collective's kernel to the start of the next of the group. At most "
            f"{MOST_GROUPS} groups are fitted, those of most ranks, with {MOST_MAXIMA:,} maxima of each at most. {_LAW}"
        )
