"""When a run has measured enough."""

from __future__ import annotations

from math import ceil

from dlbench.runtime.request import RunOptions
from dlbench.statistics import relative_reach, summarise


class StoppingRule:
    """Decides after each measured iteration whether the run goes on; lives on rank 0.

    Goals: `--iterations`, `--min-seconds` and `--until-ci`, all of them. Ceilings: `--max-seconds` and
    `--max-iterations`, whichever comes first.
    """

    def __init__(self, options: RunOptions) -> None:
        self._options = options
        self._seconds: list[float] = []
        self._total = 0.0
        self._next_look = options.iterations

    def add(self, seconds: float) -> None:
        """Take in the slowest rank's time of a measured iteration."""
        self._seconds.append(seconds)
        self._total += seconds

    def finished(self) -> bool:
        """Whether all goals or a ceiling are reached.

        The interval is looked at when its samples have grown by a tenth, not after each: the more often one looks, the
        likelier it is to be found tight by chance.
        """
        if self._ceiling():
            return True
        if len(self._seconds) < self._next_look:
            return False
        if not self._missed():
            return True
        if self._options.until_ci is not None:
            self._next_look = ceil(len(self._seconds) * 1.1)
        return False

    def reason(self) -> str:
        """Why a finished run ends, with every goal that a ceiling left unreached."""
        missed = self._missed()
        measured = f"{len(self._seconds)} iteration{'s' if len(self._seconds) != 1 else ''} measured"
        if missed:
            return f"{measured}: {self._ceiling()} came before {' and '.join(missed)}"
        return measured if self._options.until_ci is None else f"{measured}, {self._known()}"

    def _ceiling(self) -> str | None:
        options = self._options
        if options.max_seconds is not None and self._total >= options.max_seconds:
            return f"--max-seconds {options.max_seconds:g}"
        if len(self._seconds) >= options.ceiling:
            return f"--max-iterations {options.ceiling:g}"
        return None

    def _missed(self) -> list[str]:
        """The goals that are not reached yet."""
        options = self._options
        missed = []
        if len(self._seconds) < options.iterations:
            missed.append(f"--iterations {options.iterations}")
        if self._total < options.min_seconds:
            missed.append(f"--min-seconds {options.min_seconds:g}")
        if options.until_ci is not None and self._reach() > options.until_ci:
            missed.append(f"--until-ci {options.until_ci:g} ({self._known()})")
        return missed

    def _reach(self) -> float:
        """How far the 95 % interval reaches from the median; infinite while there are too few samples."""
        if not self._seconds:
            return float("inf")
        summary = summarise(self._seconds)
        return relative_reach(summary.interval, summary.median)

    def _known(self) -> str:
        reach = self._reach()
        return f"median known within ±{reach:.2%}" if reach < float("inf") else "too few samples for an interval"
