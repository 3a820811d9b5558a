"""Rules: the placement classes that make sense for each strategy, and how long it runs beside others."""

from __future__ import annotations

from importlib.resources import files

import msgspec

from dlbench.allocators.classes import PlacementClass
from dlbench.allocators.experiment import ClassName
from dlbench.errors import OptionError, SpecError
from dlbench.specs.check import Positive, Text, require
from dlbench.specs.load import load_named
from dlbench.strategies import get_strategy

_FOLDER = files("dlbench.allocators") / "rules"


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a strategy is placed and run."""

    classes: tuple[ClassName, ...]
    iterations: Positive
    """Measured iterations of a run."""

    def placements(self) -> tuple[PlacementClass, ...]:
        """The classes, in the order of the file."""
        return tuple(map(PlacementClass.parse, self.classes))


class Rules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rule for each strategy of a mix.

    Raises `SpecError` for an unknown strategy, and where a class is missing or named twice.
    """

    name: Text
    description: Text
    strategies: dict[Text, Rule]
    source: Text
    """Where the choice comes from."""

    def __post_init__(self) -> None:
        for strategy, rule in self.strategies.items():
            place = f"strategies.{strategy}"
            try:
                get_strategy(strategy)
            except OptionError as error:
                raise SpecError(f"at {place}: {error}") from None
            require(bool(rule.classes), f"{place}.classes", "at least one", "none")
            once = len(set(rule.classes)) == len(rule.classes)
            require(once, f"{place}.classes", "each class once", ", ".join(rule.classes))

    def rule(self, strategy: str) -> Rule:
        """The rule of a strategy. Raises `OptionError` where there is none."""
        if strategy not in self.strategies:
            raise OptionError(f"rules {self.name} say nothing of {strategy}; they know {', '.join(self.strategies)}")
        return self.strategies[strategy]


def load_rules(name_or_path: str) -> Rules:
    """Rules by name, or by path: whatever has a `/` or ends in .yaml or .yml. Raises `SpecError`."""
    return load_named(name_or_path, _FOLDER, "rules", Rules)
