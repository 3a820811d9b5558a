"""Placing jobs: every class as it is defined, nothing shared, found where it exists, at random, refused with reason."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from itertools import chain, combinations, combinations_with_replacement, product
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import machine, regular

from dlbench.allocators.achieved import achieved
from dlbench.allocators.classes import PAPER_CLASSES, PlacementClass, PlacementError
from dlbench.allocators.packing import NoRoomError
from dlbench.allocators.placement import Request, check_alone, place
from dlbench.allocators.topology import Topology

CHI_SQUARE_LIMIT = {1: 19.51, 5: 30.86, 17: 53.97, 23: 63.97, 80: 145.76}
"""Values that chi-square exceeds once in a hundred thousand, by degrees of freedom."""

NAMES = [str(placement) for placement in PAPER_CLASSES] + ["intra-group-same-l1-3", "inter-group-same-l1-3"]


def requests(*jobs: tuple[int, str]) -> list[Request]:
    """Nodes and class of each job; the names are j0, j1, …."""
    return [Request(f"j{index}", nodes, PlacementClass.parse(name)) for index, (nodes, name) in enumerate(jobs)]


def placed(topology: Topology, *jobs: tuple[int, str], seed: int = 0) -> tuple[tuple[str, ...], ...]:
    return place(topology, requests(*jobs), np.random.default_rng(seed))


def refusal(topology: Topology, *jobs: tuple[int, str]) -> str:
    with pytest.raises(PlacementError) as error:
        placed(topology, *jobs)
    return str(error.value)


def check(topology: Topology, jobs: Sequence[tuple[int, str]], found: Sequence[Sequence[str]]) -> None:
    """Every job has its nodes and its class, and no node two jobs."""
    assert [len(nodes) for nodes in found] == [nodes for nodes, _ in jobs]
    assert max(Counter(chain.from_iterable(found)).values()) == 1
    for (_, name), nodes in zip(jobs, found, strict=True):
        assert PlacementClass.parse(name) in achieved(topology, nodes).classes


@pytest.mark.parametrize("placement", PAPER_CLASSES, ids=str)
@pytest.mark.parametrize("nodes", [1, 2, 3, 5, 8, 13, 16])
def test_a_job_gets_its_class_and_no_nearer_one_by_accident(placement: PlacementClass, nodes: int) -> None:
    topology = regular(3, 5, 16)
    if nodes < placement.smallest():
        return
    for seed in range(30):
        (found,) = placed(topology, (nodes, str(placement)), seed=seed)
        assert achieved(topology, found).tightest == placement


@pytest.mark.parametrize("nodes", [3, 4, 5])
def test_rank_order_alone_keeps_a_small_machine_from_a_nearer_class(nodes: int) -> None:
    two_switches = regular(1, 2, 3)
    for seed in range(100):
        (found,) = placed(two_switches, (nodes, "intra-group"), seed=seed)
        assert str(achieved(two_switches, found).tightest) == "intra-group"


def test_the_last_block_is_the_shorter_one() -> None:
    topology = machine([4, 1], [4, 1])
    for seed in range(20):
        (found,) = placed(topology, (5, "intra-group-same-l1-4"), seed=seed)
        assert [node[:4] for node in found] in (["g0s0"] * 4 + ["g0s1"], ["g1s0"] * 4 + ["g1s1"])


def test_no_jobs_need_no_nodes() -> None:
    assert placed(regular(1, 1, 1)) == ()


def test_jobs_of_all_classes_fill_a_machine_to_the_last_node() -> None:
    topology = regular(3, 4, 8)  # 96 nodes
    jobs = [
        (8, "intra-l1"),
        (4, "intra-l1"),
        (16, "intra-group-same-l1-4"),
        (6, "intra-group-same-l1-2"),
        (12, "intra-group"),
        (16, "inter-group-same-l1-4"),
        (8, "inter-group-same-l1-2"),
        (20, "inter-group"),
        (3, "inter-group"),
        (2, "intra-group"),
        (1, "intra-l1"),
    ]
    assert sum(nodes for nodes, _ in jobs) == len(topology.nodes)
    for seed in range(20):
        check(topology, jobs, placed(topology, *jobs, seed=seed))


def test_pairs_across_groups_fill_a_machine_to_the_last_node() -> None:
    topology = machine([3, 2], [4], [1])  # at most 5 pairs have a node outside the fullest group
    jobs = [(2, "inter-group")] * 5
    for seed in range(20):
        check(topology, jobs, placed(topology, *jobs, seed=seed))


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_whatever_is_placed_is_of_the_class_that_was_asked_for(data: st.DataObject) -> None:
    groups = data.draw(st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4), min_size=1, max_size=4))
    topology = machine(*groups)
    job = st.tuples(st.integers(1, 12), st.sampled_from(NAMES))
    jobs = data.draw(st.lists(job, min_size=1, max_size=6))
    try:
        found = placed(topology, *jobs, seed=data.draw(st.integers(0, 99)))
    except PlacementError as error:
        assert "\n" not in str(error)
    else:
        check(topology, jobs, found)


Free = tuple[tuple[int, ...], ...]


def ways(free: Free, nodes: int, name: str) -> Iterable[Free]:
    """What is left free after every way to give the blocks of a job to switches, straight from the definitions."""
    spread, _, block = name.partition("-same-l1-")
    size = nodes if name == "intra-l1" else int(block or 1)
    blocks = [size] * (nodes // size) + [nodes % size] * (nodes % size > 0)
    switches = [(group, switch) for group, sizes in enumerate(free) for switch in range(len(sizes))]
    seen = set()
    for chosen in product(switches, repeat=len(blocks)):
        groups = {group for group, _ in chosen}
        valid = {
            "intra-l1": len(set(chosen)) == 1,
            "intra-group": len(groups) == 1 and len(set(chosen)) > 1,
            "inter-group": len(groups) > 1,
        }[spread]
        left = [list(sizes) for sizes in free]
        for (group, switch), taken in zip(chosen, blocks, strict=True):
            left[group][switch] -= taken
        if valid and min(map(min, left)) >= 0:
            seen.add(tuple(map(tuple, left)))
    return seen


def exists(free: Free, jobs: Sequence[tuple[int, str]]) -> bool:
    """Whether all jobs can be placed: every way of every job is tried."""
    states = {free}
    for nodes, name in jobs:
        states = set(chain.from_iterable(ways(state, nodes, name) for state in states))
    return bool(states)


def is_placed(topology: Topology, jobs: Sequence[tuple[int, str]]) -> bool:
    try:
        found = placed(topology, *jobs)
    except PlacementError as error:
        assert "none was found" not in str(error)  # small machines are decided
        return False
    check(topology, jobs, found)
    return True


def instances(count: int) -> Iterable[tuple[Free, list[tuple[int, str]]]]:
    """Small machines, and jobs that they could hold by their nodes alone."""
    rng = np.random.default_rng(7)
    for _ in range(count):
        groups = [rng.integers(1, 4, size=rng.integers(1, 4)) for _ in range(rng.integers(1, 4))]
        free = tuple(tuple(switches.tolist()) for switches in groups)
        left, jobs = min(9, sum(map(sum, free))), []
        for nodes, name in zip(rng.integers(1, 6, size=5).tolist(), rng.choice(NAMES, size=5).tolist(), strict=True):
            if PlacementClass.parse(name).smallest() <= nodes <= left:
                jobs.append((nodes, name))
                left -= nodes
        if jobs:
            yield free, jobs


def test_jobs_of_any_class_are_placed_exactly_where_a_placement_exists() -> None:
    outcomes = Counter[bool]()
    for free, jobs in instances(150):
        expected = exists(free, jobs)
        assert is_placed(machine(*free), jobs) is expected, (free, jobs)
        outcomes[expected] += 1
    assert min(outcomes[True], outcomes[False]) > 30


def test_the_exhaustive_search_decides_alone_where_no_attempt_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise NoRoomError(job=0, size=1, wanted=1, free=0)

    monkeypatch.setattr("dlbench.allocators.placement.pack", fails)
    for free, jobs in instances(80):
        assert is_placed(machine(*free), jobs) is exists(free, jobs), (free, jobs)


def test_jobs_under_one_switch_are_packed_wherever_it_is_possible() -> None:
    outcomes = Counter[bool]()
    for switches in combinations_with_replacement(range(1, 7), 2):
        for count in (2, 3, 4):
            for sizes in combinations_with_replacement(range(1, 5), count):
                if sum(sizes) <= sum(switches):
                    jobs = [(nodes, "intra-l1") for nodes in sizes]
                    expected = exists((switches,), jobs)
                    assert is_placed(machine(switches), jobs) is expected, (switches, sizes)
                    outcomes[expected] += 1
    assert min(outcomes[True], outcomes[False]) > 30


def test_sizes_that_do_not_divide_each_other_are_packed_exactly() -> None:
    check(
        machine([10, 10, 10]),
        jobs := [(size, "intra-l1") for size in (7, 5, 5, 4, 3, 3, 3)],
        placed(machine([10, 10, 10]), *jobs),
    )


def chi_square(drawn: Iterable[Hashable], kinds: int) -> float:
    """Of counts that should all be alike."""
    counts = Counter(drawn)
    expected = sum(counts.values()) / kinds
    assert len(counts) <= kinds
    return sum((count - expected) ** 2 for count in counts.values()) / expected + (kinds - len(counts)) * expected


@pytest.mark.parametrize(
    ("nodes", "name"),
    [
        (1, "intra-l1"),
        (3, "intra-l1"),
        (5, "intra-group"),
        (5, "intra-group-same-l1-2"),
        (5, "intra-group-same-l1-4"),
        (5, "inter-group"),
        (6, "inter-group-same-l1-2"),
        (6, "inter-group-same-l1-4"),
    ],
)
@pytest.mark.parametrize("rank", [0, -1])
def test_every_node_switch_and_group_is_as_likely_as_any_other(nodes: int, name: str, rank: int) -> None:
    topology = regular(2, 3, 4)
    rng = np.random.default_rng(3)
    jobs = requests((nodes, name))
    drawn = [place(topology, jobs, rng)[0][rank] for _ in range(2000)]
    assert chi_square(drawn, 24) < CHI_SQUARE_LIMIT[23]
    assert chi_square((node[:4] for node in drawn), 6) < CHI_SQUARE_LIMIT[5]
    assert chi_square((node[:2] for node in drawn), 2) < CHI_SQUARE_LIMIT[1]


@pytest.mark.parametrize(("switches", "name"), [(2, "intra-group"), (3, "intra-group")])
def test_every_set_of_nodes_of_a_class_is_as_likely_as_any_other(switches: int, name: str) -> None:
    topology = regular(1, switches, 3)
    sets = comb(3 * switches, 3) - switches  # all of 3 nodes but those under one switch
    rng = np.random.default_rng(5)
    drawn = [frozenset(place(topology, requests((3, name)), rng)[0]) for _ in range(2500)]
    assert chi_square(drawn, sets) < CHI_SQUARE_LIMIT[sets - 1]


def test_jobs_side_by_side_are_as_likely_on_any_node() -> None:
    topology = regular(2, 3, 4)
    rng = np.random.default_rng(9)
    jobs = requests((2, "inter-group"), (4, "intra-l1"), (4, "intra-group-same-l1-2"), (6, "inter-group"))
    drawn = [place(topology, jobs, rng) for _ in range(2000)]
    for job in range(len(jobs)):
        assert chi_square((found[job][0] for found in drawn), 24) < CHI_SQUARE_LIMIT[23]


def test_the_same_seed_gives_the_same_nodes_and_another_seed_others() -> None:
    topology, jobs = regular(3, 4, 8), [(8, "intra-l1"), (12, "inter-group"), (8, "intra-group-same-l1-2")]
    assert placed(topology, *jobs, seed=1) == placed(topology, *jobs, seed=1) != placed(topology, *jobs, seed=2)


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (
            (11, "intra-l1"),
            "job j0 of class intra-l1 on 11 nodes wants 1 block of 11 nodes under one L1 switch; "
            "the largest switch has 10 nodes",
        ),
        (
            (31, "intra-group"),
            "job j0 of class intra-group on 31 nodes wants 31 nodes under two L1 switches or more of one group; "
            "the best group has 30 nodes",
        ),
        (
            (28, "intra-group-same-l1-4"),
            "job j0 of class intra-group-same-l1-4 on 28 nodes wants 7 blocks of 4 nodes under two L1 switches or more "
            "of one group; the best group has 6 blocks of 4 nodes",
        ),
        (
            (61, "inter-group"),
            "job j0 of class inter-group on 61 nodes wants 61 nodes in two groups or more; "
            "there are 60 nodes in 2 groups",
        ),
    ],
)
def test_a_job_that_the_machine_cannot_hold_is_refused_with_what_it_has(job: tuple[int, str], message: str) -> None:
    assert refusal(regular(2, 3, 10), job) == message


def test_a_machine_of_one_switch_or_one_group_has_no_wider_class() -> None:
    assert refusal(regular(1, 1, 8), (2, "intra-group")) == (
        "job j0 of class intra-group on 2 nodes wants 2 nodes under two L1 switches or more of one group; "
        "the best group has 0 nodes"
    )
    assert refusal(regular(1, 2, 8), (2, "inter-group")) == (
        "job j0 of class inter-group on 2 nodes wants 2 nodes in two groups or more; there are 16 nodes in 1 group"
    )


def test_a_job_that_finds_no_place_beside_the_others_is_named_with_what_is_left() -> None:
    assert refusal(machine([2, 2], [2, 2]), (3, "intra-group"), (2, "intra-group"), (3, "intra-group")) == (
        "job j1 of class intra-group on 2 nodes wants 2 nodes under two L1 switches or more of one group; "
        "1 free beside 2 other jobs (no placement exists)"
    )


def test_jobs_that_want_more_nodes_than_there_are_are_refused_together() -> None:
    assert refusal(regular(1, 2, 5), (5, "intra-l1"), (6, "intra-group")) == (
        "2 jobs together want 11 nodes; topology made has 10"
    )


def test_too_many_large_blocks_are_counted_before_anything_is_tried() -> None:
    assert refusal(regular(3, 17, 10), (128, "inter-group-same-l1-4"), (300, "inter-group-same-l1-4")) == (
        "2 jobs together want 107 blocks of 4 nodes, each under one L1 switch; topology made has 102"
    )


def test_a_class_that_the_size_excludes_is_refused_before_the_machine_is_looked_at() -> None:
    assert refusal(regular(1, 1, 1), (1, "inter-group")) == (
        "job j0: inter-group needs 2 nodes or more; one node is intra-l1"
    )


def test_a_job_alone_is_checked_without_being_placed() -> None:
    (fits, too_large) = requests((10, "intra-l1"), (11, "intra-l1"))
    check_alone(regular(2, 3, 10), fits)
    with pytest.raises(PlacementError, match="the largest switch has 10 nodes"):
        check_alone(regular(2, 3, 10), too_large)


@pytest.mark.parametrize("pair", list(combinations([3, 2, 5], 2)), ids=str)
def test_the_check_of_a_job_alone_agrees_with_placing_it(pair: tuple[int, int]) -> None:
    for sizes in product(range(1, 5), pair, range(1, 3)):
        topology = machine(sizes[:2], sizes[2:])
        for nodes, name in product(range(1, 8), NAMES):
            (request,) = requests((nodes, name))
            if nodes < request.placement.smallest() or nodes > len(topology.nodes):
                continue
            try:
                check_alone(topology, request)
            except PlacementError:
                assert not exists((sizes[:2], sizes[2:]), [(nodes, name)])


def test_a_thousand_jobs_on_ten_thousand_gpus_are_placed_in_a_fraction_of_a_second() -> None:
    topology = regular(14, 18, 10)
    names = ["intra-l1", "intra-group", "inter-group"]
    jobs = [(2, names[index % 3]) for index in range(1000)]
    begin = time.process_time()
    found = placed(topology, *jobs)
    assert time.process_time() - begin < 1
    check(topology, jobs, found)
