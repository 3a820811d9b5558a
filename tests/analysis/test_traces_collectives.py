"""Collectives of several ranks: groups, alignment, verification and the tax."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kineto_writer import EPOCH, FORMS, Collective, Form, Group, Kernel, Writing, run, write_run
from numpy.typing import NDArray
from shared_data import shared_file

from dlbench.analysis.traces.alignment import Alignment, align
from dlbench.analysis.traces.collectives import Collectives, in_time
from dlbench.analysis.traces.ranks import RankedTrace, read_ranks
from dlbench.errors import UserError

GOLDEN_TAX = [7625, 1100, 169, 126, 221, 535, 582, 883]
"""Microseconds between the longest and the shortest stay in each of the collectives of the real trace set."""

REAL_STAYS = (
    (2146, 1032, 176, 131, 246, 514, 601, 952),
    (7635, 1025, 169, 132, 307, 545, 601, 922),
    (518, 517, 173, 131, 198, 468, 572, 915),
    (6132, 1021, 174, 133, 291, 542, 602, 879),
    (4882, 1108, 170, 132, 95, 61, 70, 69),
    (4679, 1060, 175, 132, 96, 10, 20, 79),
    (514, 520, 175, 131, 213, 483, 602, 920),
    (10, 8, 7, 7, 86, 357, 468, 803),
)
"""Microseconds that each of 8 ranks stayed in each of 8 collectives of that set."""
REAL_OPERATIONS = ("alltoall",) * 4 + ("allreduce", "alltoall", "allreduce", "allreduce")

WORLD = Group("0", tuple(range(4)), "default_pg")
PAIRS = (Group("1", (0, 1), "mesh_tp"), Group("2", (2, 3), "mesh_tp"))
ALLREDUCE = Collective("allreduce", WORLD)


def aligned(paths: Sequence[Path], tolerance: float = 100e-6) -> Alignment:
    return align(read_ranks(paths)[0], tolerance=tolerance)


def tax_in_time(alignment: Alignment) -> list[float]:
    """Microseconds, of all groups' collectives in their order."""
    return [float(alignment.groups[group].tau_range[index]) * 1e6 for group, index in in_time(alignment.groups)]


def uneven(program: Sequence[Collective], ranks: int = 4, seed: int = 0) -> dict[int, list[Kernel]]:
    """A run whose ranks compute for 0.2 to 1 ms before each collective, to the nanosecond."""
    times = np.random.default_rng(seed).integers(200_000, 1_000_000, size=(len(program), ranks))
    return run(program, [dict(enumerate(row)) for row in times.tolist()])


def truth(kernels: dict[int, list[Kernel]]) -> NDArray[np.int64]:
    """Nanoseconds, shape (collectives, ranks): how long each rank stays."""
    return np.array([[kernel.end - kernel.start for kernel in kernels[rank]] for rank in sorted(kernels)]).T


def test_the_real_trace_set_has_the_known_tax() -> None:
    folder = shared_file("traces/dlrm8")
    alignment = aligned([folder / f"rank{rank}.pt.trace.json.gz" for rank in range(8)])
    assert alignment.refused == ()
    assert tax_in_time(alignment) == pytest.approx(GOLDEN_TAX)
    assert {group.ranks for group in alignment.groups} == {tuple(range(8))}
    assert {operation for group in alignment.groups for operation in group.operations} == {"sendrecv", "allreduce"}
    assert max(group.end_skew.max() for group in alignment.groups) == pytest.approx(7e-6)
    assert [int(straggler) for group in alignment.groups for straggler in group.straggler[:2]] == [7, 7, 7, 5]


def test_a_twin_of_the_real_trace_set_has_the_same_tax(tmp_path: Path) -> None:
    group = Group("0", tuple(range(8)))
    kernels: dict[int, list[Kernel]] = {}
    for rank, stays in enumerate(REAL_STAYS):
        ends = [EPOCH + 10_000_000 * (index + 1) + 1000 * (rank % 8) for index in range(8)]
        kernels[rank] = [
            Kernel(Collective(operation, group), 0, end - stay * 1000, end, end - stay * 1000 - 100_000)
            for operation, end, stay in zip(REAL_OPERATIONS, ends, stays, strict=True)
        ]
    alignment = aligned(write_run(tmp_path, kernels, Writing(form="old")))
    assert tax_in_time(alignment) == pytest.approx(GOLDEN_TAX)
    assert max(group.end_skew.max() for group in alignment.groups) == pytest.approx(7e-6)


@pytest.mark.parametrize("seq", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_stays_to_its_last_digit(tmp_path: Path, form: Form, seq: bool) -> None:
    kernels = uneven([ALLREDUCE] * 20)
    alignment = aligned(write_run(tmp_path, kernels, Writing(form=form, seq=seq)))
    (group,) = alignment.groups
    resolution = 1000 if form == "old" else 1
    assert group.durations * 1e9 == pytest.approx(truth(kernels), abs=resolution)
    assert group.error == pytest.approx(np.full((20, 4), resolution * 1e-9))
    assert group.end_skew.max() == pytest.approx(0, abs=2 * (resolution - 1) * 1e-9 + 1e-12)
    assert set(group.operations) == {"collective" if form == "rocm" else "allreduce"}


def test_the_measures_are_those_of_the_definitions() -> None:
    leave = np.array([[10.0, 10.0, 10.0], [20.0, 20.5, 20.0]])
    stays = np.array([[4.0, 1.0, 2.0], [3.0, 3.5, 9.0]])
    collectives = Collectives(
        group="world",
        ranks=(0, 2, 5),
        operations=("allreduce", "allgather"),
        names=("a", "b"),
        bytes=np.array([8, -1]),
        enter=leave - stays,
        leave=leave,
        error=np.zeros((2, 3)),
    )
    assert len(collectives) == 2
    assert collectives.tau_range.tolist() == [3.0, 6.0]
    assert collectives.tau_med.tolist() == [1.0, 0.5]
    assert collectives.tau_mean == pytest.approx([4 / 3, 6.5 / 3])
    assert collectives.straggler.tolist() == [2, 0]
    assert collectives.end_skew.tolist() == [0.0, 0.5]


def test_a_delayed_rank_is_the_straggler_and_the_others_wait_for_the_delay(tmp_path: Path) -> None:
    even = [dict.fromkeys(range(4), 300_000)] * 6
    kernels = run([ALLREDUCE] * 6, even, delays={(2, 3): 5_000_000})
    (group,) = aligned(write_run(tmp_path, kernels)).groups
    assert group.tau_range == pytest.approx([0, 0, 0, 5e-3, 0, 0], abs=1e-9)
    assert group.tau_mean[3] == pytest.approx(5e-3 * 3 / 4)
    assert group.straggler[3] == 2


def test_groups_are_told_apart_by_name_and_ranks_though_they_share_a_stream(tmp_path: Path) -> None:
    program = [
        collective
        for step in range(5)
        for collective in (Collective("allgather", PAIRS[0], 64), Collective("allgather", PAIRS[1], 64), ALLREDUCE)
    ]
    kernels = uneven(program)
    alignment = aligned(write_run(tmp_path, kernels))
    assert {group.group: group.ranks for group in alignment.groups} == {
        "mesh_tp (0-1)": (0, 1),
        "mesh_tp (2-3)": (2, 3),
        "default_pg (0-3)": (0, 1, 2, 3),
    }
    pair = next(group for group in alignment.groups if group.ranks == (2, 3))
    expected = [
        [kernel.end - kernel.start for kernel in kernels[rank] if kernel.collective.group == PAIRS[1]]
        for rank in (2, 3)
    ]
    assert pytest.approx(np.array(expected)) == pair.durations.T * 1e9
    assert pair.bytes.tolist() == [128] * 5


def test_ranks_that_end_in_an_ellipsis_are_those_of_the_metadata(tmp_path: Path) -> None:
    alignment = aligned(write_run(tmp_path, uneven([ALLREDUCE] * 3), Writing(shorten_ranks=True)))
    assert [group.group for group in alignment.groups] == ["default_pg (0-3)"]


def changed(paths: Sequence[Path], change: Callable[[bytes], bytes]) -> Sequence[Path]:
    """The traces with another text."""
    for path in paths:
        path.write_bytes(change(path.read_bytes()))
    return paths


def test_metadata_of_groups_may_be_a_text_in_a_text(tmp_path: Path) -> None:
    config = [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 4, "ranks": "[0, 1, 2, 3]"}]

    def as_text(text: bytes) -> bytes:
        return re.sub(rb'"pg_config": \[.*?\}\]', b'"pg_config": ' + json.dumps(json.dumps(config)).encode(), text)

    paths = write_run(tmp_path, uneven([ALLREDUCE] * 3), Writing(shorten_ranks=True))
    assert [group.group for group in aligned(changed(paths, as_text)).groups] == ["default_pg (0-3)"]


def test_a_trace_that_does_not_know_the_ranks_learns_them_from_the_others(tmp_path: Path) -> None:
    paths = write_run(tmp_path, uneven([ALLREDUCE] * 3))
    changed(paths[2:3], lambda text: text.replace(b"[0, 1, 2, 3]", b"null").replace(b'"null"', b"null"))
    alignment = aligned(paths)
    assert [(group.group, group.ranks) for group in alignment.groups] == [("default_pg (0-3)", (0, 1, 2, 3))]
    assert alignment.notes == ()


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ((0, 1, 2), "0-2"),
        ((0, 8, 16), "0-16:8"),
        ((0, 1, 5), "0,1,5"),
        ((0, 1, 2, 3, 4, 5, 6, 7, 9, 11), "0,1,2,3,4,5,6,7,… 10 in all"),
    ],
)
def test_a_group_is_labelled_with_its_ranks(tmp_path: Path, ranks: tuple[int, ...], words: str) -> None:
    kernels = run([Collective("allreduce", Group("7", ranks))], [dict.fromkeys(ranks, 5000)])
    assert [group.group for group in aligned(write_run(tmp_path, kernels)).groups] == [f"7 ({words})"]


def test_a_rank_without_sequence_numbers_makes_the_group_one_by_index(tmp_path: Path) -> None:
    kernels = uneven([ALLREDUCE] * 5)
    paths = write_run(tmp_path, kernels)
    changed(paths[:1], lambda text: re.sub(rb', "Seq": \d+', b"", text))
    (group,) = aligned(paths).groups
    assert group.durations * 1e9 == pytest.approx(truth(kernels))


def test_a_rank_that_is_none_of_the_group_is_refused(tmp_path: Path) -> None:
    paths = write_run(tmp_path, uneven([ALLREDUCE] * 2))
    changed(paths[3:], lambda text: text.replace(b'"rank": 3', b'"rank": 9'))
    assert aligned(paths).refused == ("default_pg (0-3): rank 9 has kernels of it, but is none of its ranks",)


def test_a_group_without_the_list_of_its_ranks_is_known_by_name_and_size(tmp_path: Path) -> None:
    writing = Writing(shorten_ranks=True, rank_in_metadata=False)
    alignment = aligned(write_run(tmp_path, uneven([ALLREDUCE] * 3), writing))
    assert [group.group for group in alignment.groups] == ["default_pg (4 ranks)"]
    assert alignment.groups[0].ranks == (0, 1, 2, 3)


@pytest.mark.parametrize("lost", [0, 7, 18])
def test_a_rank_that_lost_a_kernel_is_refused_at_the_first_index_that_disagrees(tmp_path: Path, lost: int) -> None:
    kernels = uneven([ALLREDUCE] * 20)
    del kernels[2][lost]
    alignment = aligned(write_run(tmp_path, kernels, Writing(seq=False)))
    assert alignment.groups == ()
    (reason,) = alignment.refused
    assert reason.startswith(f"default_pg (0-3): collective {lost} of 19 disagrees: its ends lie ")
    assert "apart, that of rank 2 farthest; 100.0 µs are allowed" in reason
    assert alignment.notes == (
        "default_pg (0-3): rank 2 has 19 collectives, others up to 20; those beyond were left out",
    )


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("lost", [0, 20, 37])
def test_a_shift_of_collectives_that_follow_each_other_within_the_tolerance_is_refused(
    tmp_path: Path, rank: int, lost: int
) -> None:
    world = Group("0", (0, 1, 2), "mesh_tp")
    fast = Collective("allreduce", world, transfer=20_000)
    kernels = run([fast] * 40, [dict.fromkeys(world.ranks, 20_000)] * 40)
    del kernels[rank][lost]
    for other in {0, 1, 2} - {rank}:
        del kernels[other][-1]
    (reason,) = aligned(write_run(tmp_path, kernels, Writing(seq=False))).refused
    assert reason.startswith(
        f"mesh_tp (0-2): collective {lost} of 39 disagrees: its ends lie 40.00 µs apart, that of rank {rank} farthest; "
        "those of its neighbours are nearer; "
    )


@pytest.mark.parametrize("lost", [1, 3])
def test_a_real_rank_that_lost_a_kernel_is_refused(lost: int) -> None:
    folder = shared_file("traces/dlrm8")
    traces, _ = read_ranks([folder / f"rank{rank}.pt.trace.json.gz" for rank in range(8)])
    whole = traces[5].communication
    columns = ("group", "operation", "name", "start", "end", "seq", "bytes")
    without: dict[str, Any] = {name: np.delete(getattr(whole, name), lost) for name in columns}
    traces[5] = RankedTrace(5, replace(whole, **without))
    (reason,) = align(traces).refused
    assert reason.startswith(f"sendrecv (all ranks): collective {lost} of 4 disagrees: its ends lie ")
    assert "that of rank 5 farthest" in reason


def test_with_sequence_numbers_only_the_lost_collective_is_left_out(tmp_path: Path) -> None:
    kernels = uneven([ALLREDUCE] * 20)
    expected = np.delete(truth(kernels), 7, axis=0)
    del kernels[2][7]
    alignment = aligned(write_run(tmp_path, kernels))
    assert alignment.refused == ()
    assert alignment.groups[0].durations * 1e9 == pytest.approx(expected)
    assert alignment.notes == (
        "default_pg (0-3): 1 of 20 collectives lack a rank and were left out, the first with Seq 8 on rank 2",
    )


def test_several_kernels_with_one_sequence_number_are_taken_in_their_order(tmp_path: Path) -> None:
    kernels = uneven([ALLREDUCE] * 6)
    expected = truth(kernels)
    for rank, those in kernels.items():
        kernels[rank] = [replace(kernel, seq=kernel.seq // 3) for kernel in those]
    (group,) = aligned(write_run(tmp_path, kernels)).groups
    assert group.durations * 1e9 == pytest.approx(expected)


def test_an_index_shift_without_a_lost_kernel_is_refused_by_the_operation(tmp_path: Path) -> None:
    program = [ALLREDUCE, Collective("allgather", WORLD)] * 3
    kernels = uneven(program)
    del kernels[1][1]
    del kernels[0][-1], kernels[2][-1], kernels[3][-1]
    (reason,) = aligned(write_run(tmp_path, kernels, Writing(seq=False)), tolerance=1.0).refused
    assert reason == (
        "default_pg (0-3): collective 1 of 5 disagrees: rank 1 performs allreduce, most ranks allgather; "
        "a trace has lost kernels, or clocks drift"
    )


def test_another_size_is_refused(tmp_path: Path) -> None:
    kernels = uneven([ALLREDUCE] * 3)
    kernels[3][2] = replace(kernels[3][2], collective=replace(ALLREDUCE, elements=7))
    (reason,) = aligned(write_run(tmp_path, kernels)).refused
    assert "collective 2 of 3 disagrees: rank 3 sends 14 bytes, most ranks 2048 bytes; " in reason


def test_uneven_all_to_alls_are_no_disagreement(tmp_path: Path) -> None:
    exchange = Collective("alltoall", WORLD)
    kernels = uneven([exchange] * 3)
    kernels[3][2] = replace(kernels[3][2], collective=replace(exchange, elements=7))
    alignment = aligned(write_run(tmp_path, kernels))
    assert alignment.refused == ()
    assert alignment.groups[0].bytes.tolist() == [2048] * 3


def test_a_clock_that_is_off_is_refused_until_the_tolerance_allows_it(tmp_path: Path) -> None:
    kernels = uneven([ALLREDUCE] * 3)
    kernels[1] = [replace(kernel, start=kernel.start + 250_000, end=kernel.end + 250_000) for kernel in kernels[1]]
    paths = write_run(tmp_path, kernels)
    (reason,) = aligned(paths).refused
    assert reason == (
        "default_pg (0-3): collective 0 of 3 disagrees: its ends lie 250.0 µs apart, that of rank 1 farthest; "
        "100.0 µs are allowed; the traces are of different windows or jobs, or clocks differ"
    )
    (group,) = aligned(paths, tolerance=300e-6).groups
    assert group.durations * 1e9 == pytest.approx(truth(kernels))
    assert group.end_skew == pytest.approx([250e-6] * 3)


def test_a_missing_rank_makes_the_tax_a_lower_bound_and_is_said(tmp_path: Path) -> None:
    paths = write_run(tmp_path, uneven([ALLREDUCE] * 3))
    traces, notes = read_ranks(paths[:3])
    alignment = align(traces)
    assert alignment.groups[0].ranks == (0, 1, 2)
    assert notes == ["3 of 4 ranks have a trace here; the first without is rank 3"]
    assert alignment.notes == (
        "default_pg (0-3): 3 of its 4 ranks have kernels of it here, so the tax is a lower bound",
    )


def test_messages_between_two_ranks_are_no_collectives(tmp_path: Path) -> None:
    kernels = uneven([ALLREDUCE] * 3)
    message = Kernel(Collective("send", WORLD), 9, EPOCH + 1, EPOCH + 2, EPOCH)
    kernels[0].insert(0, message)
    alignment = aligned(write_run(tmp_path, kernels, Writing(seq=False)))
    assert [group.operations for group in alignment.groups] == [("allreduce",) * 3]
    assert alignment.notes == ("1 point-to-point kernel left out: no collectives",)


def test_kernels_that_name_neither_group_nor_operation_are_taken_for_one_group(tmp_path: Path) -> None:
    alignment = aligned(write_run(tmp_path, uneven([ALLREDUCE] * 3), Writing(form="rocm")))
    assert [group.group for group in alignment.groups] == ["collective (all ranks)"]


def test_two_groups_that_cannot_be_told_apart_are_refused(tmp_path: Path) -> None:
    program = [Collective("allreduce", pair) for pair in PAIRS for _ in range(5)]
    kernels = uneven(program)
    paths = write_run(tmp_path, kernels, Writing(seq=False))
    for path in paths:
        path.write_bytes(re.sub(rb', "(Process Group \w+|Collective name)": "[^"]*"', b"", path.read_bytes()))
    (reason,) = aligned(paths).refused
    assert reason == (
        "allreduce (2 ranks): 4 ranks have kernels of groups of 2, which name neither group nor ranks: "
        "the groups cannot be told apart"
    )


def test_one_rank_alone_has_nothing_to_compare(tmp_path: Path) -> None:
    alignment = aligned(write_run(tmp_path, uneven([ALLREDUCE] * 3))[:1])
    with pytest.raises(UserError, match=r"^no collectives to compare: default_pg \(0-3\): only rank 0 has kernels"):
        alignment.require_groups()


def test_a_run_without_communication_says_so(tmp_path: Path) -> None:
    paths = write_run(tmp_path, {0: [], 1: []})
    with pytest.raises(UserError, match="^no collectives to compare: no rank has communication kernels$"):
        aligned(paths).require_groups()


def test_a_rank_without_kernels_of_a_group_of_unknown_size_is_named(tmp_path: Path) -> None:
    kernels = uneven([ALLREDUCE] * 3)
    kernels[1] = []
    alignment = aligned(write_run(tmp_path, kernels, Writing(form="rocm")))
    assert alignment.groups[0].ranks == (0, 2, 3)
    assert alignment.notes == (
        "collective (all ranks): 1 of 4 traces have no kernels of it, the first that of rank 1; "
        "if it takes part, the tax is a lower bound",
    )


def test_kernels_that_were_lost_are_a_reason_why_nothing_can_be_compared(tmp_path: Path) -> None:
    paths = write_run(tmp_path, uneven([ALLREDUCE] * 3))[:2]
    changed(paths[1:], lambda text: re.sub(rb'"dur": [\d.]+', b'"dur": -1', text))
    alignment = aligned(paths)
    assert alignment.lost == (f"{paths[1]}: 3 communication kernels without a valid ts and dur dropped",)
    with pytest.raises(
        UserError, match=r"only rank 0 has kernels .*; .*rank1.*: 3 communication kernels without a valid"
    ):
        alignment.require_groups()


def test_traces_of_jobs_of_different_sizes_are_an_error(tmp_path: Path) -> None:
    paths = write_run(tmp_path, uneven([ALLREDUCE] * 3))
    changed(paths[2:], lambda text: text.replace(b'"world_size": 4', b'"world_size": 16'))
    with pytest.raises(UserError) as raised:
        read_ranks(paths)
    assert str(raised.value) == (
        f"{paths[1]} is of a job of 4 ranks and {paths[2]} of one of 16; give the traces of one job"
    )


def test_a_trace_that_does_not_know_its_job_goes_with_any(tmp_path: Path) -> None:
    paths = write_run(tmp_path, uneven([ALLREDUCE] * 3))
    changed(paths[:1], lambda text: text.replace(b'"world_size": 4', b'"nodes": 4'))
    traces, notes = read_ranks(paths)
    assert ([trace.communication.world_size for trace in traces], notes) == ([None, 4, 4, 4], [])


def test_two_files_of_one_rank_are_an_error(tmp_path: Path) -> None:
    paths = write_run(tmp_path, uneven([ALLREDUCE] * 3))
    copy = tmp_path / "copy.json"
    copy.write_bytes(paths[1].read_bytes())
    with pytest.raises(UserError, match=r"rank1\.pt\.trace\.json and .*copy\.json are both traces of rank 1; give one"):
        read_ranks([*paths, copy])


def test_a_rank_is_taken_from_the_file_name_or_the_order_and_this_is_said(tmp_path: Path) -> None:
    paths = write_run(tmp_path, uneven([ALLREDUCE] * 3), Writing(rank_in_metadata=False))
    renamed = [path.rename(tmp_path / f"{place}.json") for path, place in zip(paths, "abcd", strict=True)]
    traces, notes = read_ranks(renamed)
    assert [trace.communication.path.name for trace in traces] == ["a.json", "b.json", "c.json", "d.json"]
    assert notes[2] == f"{renamed[2]}: names no rank; taken as rank 2 by its place among the files"
    named = [path.rename(tmp_path / f"step_Rank-{3 - place}_1.json") for place, path in enumerate(renamed)]
    traces, notes = read_ranks(named)
    assert [trace.communication.path for trace in traces] == named[::-1]
    assert notes[0] == f"{named[0]}: names no rank; taken as rank 3 by the file's name"


@settings(max_examples=25, deadline=None)
@given(
    compute=st.lists(st.lists(st.integers(0, 10_000_000), min_size=3, max_size=3), min_size=1, max_size=6),
    form=st.sampled_from(("epoch", "new")),
)
def test_the_tax_is_that_of_the_arrivals(
    compute: list[list[int]], form: Form, tmp_path_factory: pytest.TempPathFactory
) -> None:
    world = Group("0", (0, 1, 2))
    kernels = run([Collective("allreduce", world)] * len(compute), [dict(enumerate(row)) for row in compute])
    (group,) = aligned(write_run(tmp_path_factory.mktemp("run"), kernels, Writing(form=form))).groups
    arrivals = np.array(compute)
    assert group.tau_range * 1e9 == pytest.approx(np.ptp(arrivals, axis=1), abs=1e-3)
    assert group.tau_mean * 1e9 == pytest.approx(arrivals.max(axis=1) - arrivals.mean(axis=1), abs=1e-3)
    assert group.straggler.tolist() == arrivals.argmax(axis=1).tolist()
