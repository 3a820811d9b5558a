"""When a run has measured enough."""

from __future__ import annotations

from dataclasses import dataclass

from dlbench.runtime.request import RunOptions
from dlbench.statistics import Summary, relative_half_width, summarise


@dataclass(frozen=True, slots=True)
class Stop:
    """Why the measurement ends; `completed` unless a ceiling came before the goal."""

    reason: str


class StoppingRule:
    """Decides after each measured iteration whether the run goes on; lives on rank 0.

    Goals: `--iterations`, then `--min-seconds` and `--until-ci`. Ceilings: `--max-seconds` and `--max-iterations`.
    """

    def __init__(self, options: RunOptions) -> None:
        self._options = options
        self._seconds: list[float] = []
        self._total = 0.0

    def add(self, seconds: float) -> None:
        """Take in the slowest rank's time of a measured iteration."""
        self._seconds.append(seconds)
        self._total += seconds

    def verdict(self) -> Stop | None:
        """The reason to stop, or None to go on."""
        options = self._options
        if options.max_seconds is not None and self._total >= options.max_seconds:
            return Stop(f"--max-seconds {options.max_seconds:g} reached{self._missed()}")
        if len(self._seconds) >= options.ceiling:
            return Stop(f"{len(self._seconds)} iterations measured{self._missed()}")
        if len(self._seconds) < options.iterations or self._total < options.min_seconds:
            return None
        if options.until_ci is not None and not self._tight():
            return None
        return Stop(f"{len(self._seconds)} iterations measured{self._reached()}")

    def _width(self) -> float | None:
        """Half of the 95 % interval over the median; None while there are too few samples."""
        summary: Summary = summarise(self._seconds)
        return relative_half_width(summary.interval, summary.median) if summary.interval else None

    def _tight(self) -> bool:
        width = self._width()
        return width is not None and self._options.until_ci is not None and width <= self._options.until_ci

    def _reached(self) -> str:
        return "" if self._options.until_ci is None else f", median known within ±{self._width():.2%}"

    def _missed(self) -> str:
        """What was not reached when a ceiling ended the run."""
        if self._options.until_ci is None or not self._seconds or self._tight():
            return ""
        width = self._width()
        known = f"median known within ±{width:.2%}" if width is not None else "too few samples for an interval"
        return f", {known}, not within ±{self._options.until_ci:.2%}"
