"""docs/experiments.md: it names every key of a plan and of its neighbours, and its examples are what they claim."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dlbench.allocators.catalogue import Catalogue, load_catalogue
from dlbench.allocators.classes import PAPER_CLASSES
from dlbench.allocators.experiment import Experiment, Job, Plan, read_plan
from dlbench.allocators.patterns import Tiers
from dlbench.allocators.rules import Rules, load_rules
from dlbench.specs.reading import convert, read_yaml

PAGE = (Path(__file__).parents[2] / "docs/experiments.md").read_text(encoding="utf-8")


def rows_after(header: str) -> list[list[str]]:
    """The table whose first heading this is."""
    lines = PAGE[PAGE.index(f"\n| {header} |") + 1 :].splitlines()
    table = lines[: next(index for index, line in enumerate(lines) if not line.startswith("|"))]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def keys(header: str) -> list[tuple[str, bool]]:
    """Keys that a table names, and whether it says that they may be left out."""
    return [(key, row[1] == "–") for row in rows_after(header) for key in re.findall("`([a-z_]+)`", row[0])]


@pytest.mark.parametrize(
    ("header", "struct"),
    [("key of the plan", Plan), ("key of an experiment", Experiment), ("key of a job", Job)],
)
def test_every_key_of_a_plan_is_explained_and_those_that_may_be_left_out_are_marked(header: str, struct: Any) -> None:
    assert sorted(keys(header)) == sorted((field.name, not field.required) for field in msgspec.structs.fields(struct))


def test_the_classes_have_the_scores_of_the_code() -> None:
    assert [(row[0], float(row[2])) for row in rows_after("class")] == [
        (f"`{placement}`", placement.score) for placement in PAPER_CLASSES
    ]


def test_the_strategies_have_the_sizes_classes_and_iterations_of_the_shipped_files() -> None:
    catalogue, rules = load_catalogue("paper"), load_rules("paper")
    expected = []
    for strategy, entry in catalogue.strategies.items():
        rule = rules.rule(strategy)
        sizes = ", ".join(map(str, entry.sizes or ()))
        expected.append([strategy, sizes, ", ".join(rule.classes), str(rule.iterations)])
    assert rows_after("strategy") == expected


def test_the_examples_of_files_are_read_as_what_they_are_shown_for(tmp_path: Path) -> None:
    tiers, catalogue, rules, plan = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for text, struct in ((tiers, Tiers), (catalogue, Catalogue), (rules, Rules)):
        (tmp_path / "file.yaml").write_text(text, encoding="utf-8")
        convert(read_yaml(tmp_path / "file.yaml"), struct, "file.yaml")
    (tmp_path / "plan.yaml").write_text(plan, encoding="utf-8")
    (experiment,) = read_plan(tmp_path / "plan.yaml").experiments
    assert [job.gpus for job in experiment.jobs] == [16, 8]
