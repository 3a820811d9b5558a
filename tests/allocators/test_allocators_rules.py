"""Rules: the paper's classes for each strategy, and files that say something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dlbench.allocators.rules import load_rules
from dlbench.errors import OptionError, SpecError

RULES: dict[str, Any] = {
    "name": "mine",
    "description": "near ones",
    "strategies": {"dp": {"classes": ["intra-l1"], "iterations": 3}},
    "source": "guess",
}


def refusal(tmp_path: Path, **strategies: Any) -> str:
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({**RULES, "strategies": strategies}))
    with pytest.raises(SpecError) as error:
        load_rules(str(path))
    return str(error.value).removeprefix(f"{path}: ")


def test_the_shipped_rules_are_those_of_the_paper() -> None:
    rules = load_rules("paper")
    assert {name: " ".join(rule.classes) for name, rule in rules.strategies.items()} == {
        "dp": "intra-l1 intra-group inter-group",
        "fsdp": "intra-l1 intra-group-same-l1-2 inter-group-same-l1-2",
        "dp_pp": "intra-l1 intra-group-same-l1-2 inter-group-same-l1-2 inter-group",
        "dp_pp_tp": "intra-group-same-l1-4 inter-group-same-l1-4 inter-group",
        "dp_pp_ep": "intra-group inter-group",
    }
    assert {name: rule.iterations for name, rule in rules.strategies.items()} == {
        "dp": 10,
        "fsdp": 6,
        "dp_pp": 6,
        "dp_pp_tp": 4,
        "dp_pp_ep": 4,
    }


def test_a_file_of_ones_own_is_loaded_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump(RULES))
    assert [str(found) for found in load_rules(str(path)).rule("dp").placements()] == ["intra-l1"]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            {"classes": ["intra-l2"], "iterations": 3},
            "at strategies.dp.classes[0]: expected a placement class such as intra-l1 or inter-group-same-l1-2, "
            'found "intra-l2"',
        ),
        ({"classes": [], "iterations": 3}, "at strategies.dp.classes: expected at least one, found none"),
        (
            {"classes": ["intra-l1", "intra-l1"], "iterations": 3},
            "at strategies.dp.classes: expected each class once, found intra-l1, intra-l1",
        ),
        ({"classes": ["intra-l1"]}, "at strategies.dp.iterations: missing; expected an integer >= 1"),
        (
            {"classes": ["intra-l1"], "iterations": 3, "model": "vit-h"},
            "at strategies.dp.model: unknown key 'model'; valid: classes, iterations",
        ),
    ],
)
def test_a_wrong_rule_is_refused_with_its_place(tmp_path: Path, rule: dict[str, Any], message: str) -> None:
    assert refusal(tmp_path, dp=rule) == message


def test_an_unknown_strategy_is_refused_with_the_nearest(tmp_path: Path) -> None:
    assert refusal(tmp_path, dppp={"classes": ["intra-l1"], "iterations": 3}).startswith(
        "at strategies.dppp: unknown strategy 'dppp', did you mean dp_pp?"
    )


def test_a_strategy_without_a_rule_is_told(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump(RULES))
    with pytest.raises(OptionError, match="rules mine say nothing of fsdp; they know dp"):
        load_rules(str(path)).rule("fsdp")


def test_unknown_rules_are_answered_with_those_that_there_are() -> None:
    with pytest.raises(SpecError, match=r"unknown rules 'papers'; did you mean 'paper'\? valid: paper; or the path"):
        load_rules("papers")
