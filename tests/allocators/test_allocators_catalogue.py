"""Catalogues: which strategies a job of a size can have."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlbench.allocators.catalogue import feasible, feasible_by_size, load_catalogue
from dlbench.allocators.patterns import for_nodes, load_tiers
from dlbench.errors import OptionError, SpecError

PAPER = load_catalogue("paper")
SMALL = load_catalogue("small")
ALL = ("dp", "fsdp", "dp_pp", "dp_pp_tp", "dp_pp_ep")


@pytest.mark.parametrize(
    ("size", "strategies"),
    [
        (4, ()),
        (8, ("dp",)),
        (16, ("dp", "fsdp", "dp_pp")),
        (32, ("fsdp", "dp_pp")),
        (64, ("dp_pp",)),
        (128, ()),
        (256, ("dp_pp_tp",)),
        (512, ("dp_pp_tp", "dp_pp_ep")),
        (1024, ("dp_pp_ep",)),
    ],
)
def test_the_papers_strategies_share_a_machine_at_the_papers_sizes(size: int, strategies: tuple[str, ...]) -> None:
    assert feasible(size, 4, PAPER) == strategies


def test_on_nodes_of_eight_gpus_every_size_doubles() -> None:
    assert feasible(8, 8, PAPER) == ()
    assert feasible(16, 8, PAPER) == ("dp",)
    assert feasible(32, 8, PAPER) == ("dp", "fsdp", "dp_pp")
    assert feasible(2048, 8, PAPER) == ("dp_pp_ep",)


@pytest.mark.parametrize("gpus_per_node", [4, 8])
def test_every_size_of_the_papers_tiers_has_a_strategy(gpus_per_node: int) -> None:
    sizes = [size for size, _ in for_nodes(load_tiers("paper"), gpus_per_node).weights()]
    assert all(feasible_by_size(sizes, gpus_per_node, PAPER).values())


@pytest.mark.parametrize("size", [2, 4, 8])
def test_on_a_single_machine_every_strategy_runs_at_the_small_tiers_sizes(size: int) -> None:
    assert feasible(size, 1, SMALL) == ALL


def test_without_listed_sizes_a_strategy_runs_where_its_layout_allows_it() -> None:
    # Above 8 GPUs FSDP shards by 8 and DP+PP has 8 stages, neither of which divides 12; of 7 ranks only DP, FSDP
    # (sharded by 7) and the hybrids (1 × 1) make something.
    assert feasible(12, 1, SMALL) == ("dp", "dp_pp_tp", "dp_pp_ep")
    assert feasible(7, 1, SMALL) == ("dp", "fsdp", "dp_pp_tp", "dp_pp_ep")


def test_a_size_without_a_strategy_is_refused_with_the_sizes_that_have_one() -> None:
    with pytest.raises(OptionError) as caught:
        feasible_by_size((8, 24), 4, PAPER)
    assert str(caught.value) == (
        "no strategy of catalogue paper runs on 24 GPUs at 4 GPUs per node; use 8, 16, 32, 64, 256, 512, 1024"
    )


def test_a_pattern_asks_once_for_each_of_its_sizes() -> None:
    assert feasible_by_size((16, 8, 8, 16), 4, PAPER) == {8: ("dp",), 16: ("dp", "fsdp", "dp_pp")}


VALID = """\
name: mine
description: made up
gpus_per_node: 4
strategies:
  dp: {model: vit-h, sizes: [6]}
  dp_pp: {model: gpt2-l, sizes: [16]}
source: made up
"""


def test_a_catalogue_of_ones_own_names_its_models(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(VALID)
    mine = load_catalogue(str(tmp_path / "mine.yaml"))
    assert feasible(6, 4, mine) == ("dp",)
    assert feasible(12, 8, mine) == ("dp",)
    assert mine.strategies["dp_pp"].model == "gpt2-l"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("dp_pp:", "dp_pq:", "at strategies.dp_pq: unknown strategy 'dp_pq', did you mean dp_pp? there are dp, "),
        ("gpt2-l", "gpt2-m", "at strategies.dp_pp.model: unknown model 'gpt2-m'; did you mean 'gpt2-"),
        ("[16]", "[20]", "at strategies.dp_pp.sizes: world size 20 is not a multiple of pp = 8; use 16, 24, 32, "),
        ("[16]", "16", "at strategies.dp_pp.sizes: expected a list"),
        ("[6]", "[6.5]", "at strategies.dp.sizes[0]: expected an integer >= 1, found 6.5"),
        ("sizes: [6]", "gpus: [6]", "at strategies.dp.gpus: unknown key 'gpus'"),
    ],
)
def test_a_mistake_in_a_catalogue_is_named_with_its_place(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(VALID.replace(old, new))
    with pytest.raises(SpecError) as caught:
        load_catalogue(str(path))
    assert str(caught.value).startswith(f"{path}: {said}")


def test_a_catalogue_without_strategies_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\ndescription: made up\nstrategies: {}\nsource: made up\n")
    with pytest.raises(SpecError, match="at strategies: expected at least one, found none"):
        load_catalogue(str(path))


def test_unknown_catalogues_are_answered_with_those_that_exist() -> None:
    with pytest.raises(SpecError) as caught:
        load_catalogue("smal")
    assert str(caught.value) == (
        "unknown catalogue 'smal'; did you mean 'small'? valid: paper, small; or the path of a YAML file"
    )
