"""What drawing yields: figures with their captions, and what could not be drawn."""

from __future__ import annotations

from dataclasses import dataclass, field

from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure that is ready to be saved."""

    name: str
    """Name of its files, e.g. scaling; further figures of a family have a number behind it."""
    title: str
    """What the family shows."""
    caption: str
    """What is shown, how many samples there are, what the intervals are, and what is not shown."""
    figure: Figure


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A figure, or a part of one, that the runs do not allow."""

    name: str
    """Family of the figure."""
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Drawing:
    """The figures that the runs allow."""

    plots: list[Plot] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)

    def add(self, other: Drawing) -> None:
        """Take over what another drawing has."""
        self.plots.extend(other.plots)
        self.left_out.extend(other.left_out)
