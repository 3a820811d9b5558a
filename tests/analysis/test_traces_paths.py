"""Critical paths of traces: the culprit is what was delayed, and the paths are as much longer as the tax says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kineto_job import ANNOTATION, Delay, Job, Op
from kineto_writer import FORMS, Collective, Form, Group, Writing, run, write_run
from shared_data import shared_file

from dlbench.analysis.critical_path import Explained, determination
from dlbench.analysis.culprits import CulpritClasses
from dlbench.analysis.tax_sources import tax_of_traces
from dlbench.analysis.traces.collectives import Collectives
from dlbench.errors import UserError

MILLISECOND = 1_000_000
KERNELS = (
    "ampere_sgemm_128x64_tn",
    "flash_fwd_kernel",
    "vectorized_elementwise_kernel",
    "layer_norm_kernel",
    "nvjet_1",
)


def ops(seed: int = 0, backward: int = 0) -> list[Op]:
    """A segment of five kernels of 100 to 300 µs, the last `backward` of them launched by the backward pass."""
    times = np.random.default_rng(seed).integers(100_000, 300_000, len(KERNELS)).tolist()
    return [
        Op(name, time, backward=number >= len(KERNELS) - backward)
        for number, (name, time) in enumerate(zip(KERNELS, times, strict=True))
    ]


def victims(segments: int, ranks: int, seed: int = 1) -> list[tuple[int, int, int]]:
    """Rank, segment and op of what is delayed before each collective."""
    random = np.random.default_rng(seed)
    return [(int(random.integers(ranks)), index, int(random.integers(len(KERNELS)))) for index in range(segments)]


def paths_of(job: Job, folder: Path) -> tuple[Collectives, Explained]:
    (group,) = tax_of_traces(job.write(folder), seed=0, explain=CulpritClasses()).groups
    assert group.explained is not None
    return group.collectives, group.explained


def named(paths: Explained) -> list[tuple[str, int]]:
    return [(culprit.name, culprit.rank) for culprit in paths.culprits]


def delayed(places: Sequence[tuple[int, int, int]]) -> list[tuple[str, int]]:
    return [(KERNELS[op], rank) for rank, _, op in places]


@pytest.mark.parametrize("form", FORMS)
def test_a_kernel_that_takes_longer_on_one_rank_is_the_culprit(tmp_path: Path, form: Form) -> None:
    places = victims(40, 4)
    delays = {place: Delay(gpu=50_000 + 37_000 * place[1]) for place in places}
    group, paths = paths_of(Job(segments=[ops()] * 40, delays=delays, form=form), tmp_path)
    assert named(paths) == delayed(places)
    assert determination(group.tau_range, paths.predicted) >= 0.999
    seconds = [culprit.seconds for culprit in paths.culprits]
    assert seconds == pytest.approx([delay.gpu * 1e-9 for delay in delays.values()], abs=3e-6)
    assert group.tau_range == pytest.approx(seconds, abs=5e-6)
    assert not any(culprit.idle for culprit in paths.culprits)


def test_a_cpu_op_that_takes_longer_is_the_culprit_where_the_cpu_is_waited_for(tmp_path: Path) -> None:
    places = victims(40, 4)
    delays = {place: Delay(cpu=2 * MILLISECOND + 10_000 * place[1]) for place in places}
    group, paths = paths_of(Job(segments=[ops()] * 40, delays=delays), tmp_path)
    assert named(paths) == [(f"aten::{name}", rank) for name, rank in delayed(places)]
    assert {culprit.kind for culprit in paths.culprits} == {"CPU op"}
    assert determination(group.tau_range, paths.predicted) >= 0.999


def test_a_cpu_that_runs_ahead_hides_its_delay_until_the_gpu_has_caught_up(tmp_path: Path) -> None:
    job = Job(segments=[ops()] * 6, synchronized=False, delays={(2, 3, 1): Delay(cpu=20 * MILLISECOND)})
    group, paths = paths_of(job, tmp_path)
    late = group.tau_range > 1e-3
    assert late.tolist() == [False, False, False, True, False, False]
    assert (paths.culprits[3].name, paths.culprits[3].rank) == (f"aten::{KERNELS[1]}", 2)
    assert paths.culprits[3].seconds > group.tau_range[3]


@pytest.mark.parametrize("flows", [True, False])
@pytest.mark.parametrize("cpu", [True, False])
def test_delays_in_the_backward_pass_are_found_on_its_thread(tmp_path: Path, flows: bool, cpu: bool) -> None:
    places = victims(40, 4)
    delays = {place: Delay(**{"cpu" if cpu else "gpu": 2 * MILLISECOND + 10_000 * place[1]}) for place in places}
    job = Job(segments=[ops(backward=3)] * 40, delays=delays, flows=flows)
    group, paths = paths_of(job, tmp_path)
    prefix = "aten::" if cpu else ""
    assert named(paths) == [(f"{prefix}{name}", rank) for name, rank in delayed(places)]
    assert determination(group.tau_range, paths.predicted) >= 0.999
    # The GPU still has work when the CPU is delayed, which hides a part.
    assert (group.tau_range <= 2.001e-3 + 1e-5 * np.arange(40)).all()


def test_the_time_in_which_a_thread_waits_for_the_backward_pass_is_not_its_own(tmp_path: Path) -> None:
    job = Job(segments=[ops(backward=3)] * 3, delays={(1, 1, 4): Delay(cpu=5 * MILLISECOND)})
    paths = paths_of(job, tmp_path)[1]
    assert ANNOTATION not in {culprit.name for culprit in paths.culprits}


def test_without_the_waits_of_streams_nearly_all_culprits_are_found(tmp_path: Path) -> None:
    count, random = 200, np.random.default_rng(5)
    places = victims(count, 4, seed=2)
    delays = {place: Delay(gpu=int(random.integers(100_000, 5 * MILLISECOND))) for place in places}
    side = {
        (rank, segment, op): int(random.integers(20_000, 400_000))
        for rank in range(4)
        for segment in range(count)
        for op in range(len(KERNELS))
        if random.random() < 0.5
    }
    job = Job(segments=[ops()] * count, delays=delays, extra=side, explicit=False)
    group, paths = paths_of(job, tmp_path)
    right = sum(found == true for found, true in zip(named(paths), delayed(places), strict=True))
    assert right >= 0.98 * count
    assert determination(group.tau_range, paths.predicted) >= 0.999


def test_the_waits_of_streams_tell_what_times_cannot(tmp_path: Path) -> None:
    # A copy that nobody waits for ends within the wait of the collective for the computation.
    count = 20
    places = [(index % 4, index, 4) for index in range(count)]
    delays = dict.fromkeys(places, Delay(gpu=MILLISECOND))
    side = dict.fromkeys(places, sum(op.gpu for op in ops()) + MILLISECOND + 5_000)
    job = Job(segments=[ops()] * count, delays=delays, extra=side)
    assert named(paths_of(job, tmp_path)[1]) == delayed(places)


def test_the_tax_grows_as_the_delay_once_that_exceeds_the_slack(tmp_path: Path) -> None:
    delays = np.arange(0, 20.5, 1.0)
    # Rank 0 is 3 ms slower than all others, and rank 3 the one that is delayed.
    slow = {(0, segment, 0): Delay(gpu=3 * MILLISECOND) for segment in range(len(delays))}
    late = {(3, segment, 2): Delay(gpu=int(delay * MILLISECOND)) for segment, delay in enumerate(delays)}
    group, paths = paths_of(Job(segments=[ops()] * len(delays), delays={**slow, **late}), tmp_path)
    past = delays > 3
    assert group.straggler[past].tolist() == [3] * int(past.sum())
    assert np.polyfit(delays[past], group.tau_range[past] * 1e3, 1)[0] == pytest.approx(1.0, rel=0.05)
    assert np.polyfit(delays[past], paths.predicted[past] * 1e3, 1)[0] == pytest.approx(1.0, rel=0.05)
    names = {culprit.name for culprit, beyond in zip(paths.culprits, past, strict=True) if beyond}
    assert names == {KERNELS[2]}
    assert {culprit.name for culprit in paths.culprits[:3]} == {KERNELS[0]}


def test_jitter_on_every_kernel_and_cpu_op_hides_no_delay_that_is_larger(tmp_path: Path) -> None:
    count, random = 100, np.random.default_rng(3)
    every = [(rank, segment, op) for rank in range(4) for segment in range(count) for op in range(len(KERNELS))]
    delays = {place: Delay(gpu=int(random.integers(10_000)), cpu=int(random.integers(500))) for place in every}
    places = victims(count, 4, seed=4)
    delays |= {place: Delay(gpu=int(random.integers(200_000, 3 * MILLISECOND))) for place in places}
    job = Job(segments=[ops(backward=2)] * count, delays=delays, explicit=False, synchronized=False)
    assert named(paths_of(job, tmp_path)[1]) == delayed(places)


def test_a_rank_that_was_held_up_in_another_group_has_that_collective_for_a_culprit(tmp_path: Path) -> None:
    world, pairs = Group("0", (0, 1, 2, 3)), (Group("1", (0, 1)), Group("2", (2, 3)))
    program = [Collective("allreduce", group) for group in (*pairs, world)] * 4
    # Before the second collective of the pair 0-1, rank 1 computes for 1 ms longer, so that both are late for the next.
    kernels = run(program, [dict.fromkeys(range(4), 300_000)] * len(program), {(1, 3): MILLISECOND})
    groups = tax_of_traces(write_run(tmp_path, kernels), seed=0, explain=CulpritClasses()).groups
    found = {tax.collectives.ranks: tax.explained for tax in groups}
    own, all_ranks = found[0, 1], found[0, 1, 2, 3]
    assert own is not None and all_ranks is not None  # noqa: PT018
    assert [(culprit.kind, culprit.rank) for culprit in own.culprits] == [("", -1), ("GEMM", 1), ("", -1), ("", -1)]
    assert own.culprits[1].seconds == pytest.approx(1e-3)
    late = all_ranks.culprits[1]
    assert (late.kind, late.rank) == ("communication", 0)
    assert late.seconds == pytest.approx(1e-3)


def test_the_paths_of_the_real_trace_set_are_as_much_longer_as_the_tax() -> None:
    files = [shared_file(f"traces/dlrm8/rank{rank}.pt.trace.json.gz") for rank in range(8)]
    groups = tax_of_traces(files, seed=0, explain=CulpritClasses()).groups
    for tax in groups:
        assert tax.explained is not None
        known = np.isfinite(tax.explained.predicted)
        difference = np.abs(tax.explained.predicted - tax.collectives.tau_range)[known]
        assert (difference <= 10e-6).all()
        assert (np.abs(tax.explained.gap[known]) <= 100e-6).all()
    # Before the first collective, the ranks' traces begin milliseconds apart.
    assert [int(np.isnan(tax.explained.predicted).sum()) for tax in groups if tax.explained] == [1, 0]


def test_traces_without_launches_are_explained_by_what_streams_did(tmp_path: Path) -> None:
    program = [Collective("allreduce", Group("0", (0, 1)))] * 3
    kernels = run(program, [{0: 200_000, 1: 200_000}] * 3, {(1, 1): MILLISECOND})
    files = write_run(tmp_path, kernels, Writing(form="epoch"))
    for file in files:
        text = json.loads(file.read_text())
        text["traceEvents"] = [each for each in text["traceEvents"] if each["cat"] == "kernel"]
        file.write_text(json.dumps(text))
    (tax,) = tax_of_traces(files, seed=0, explain=CulpritClasses()).groups
    assert tax.explained is not None
    assert [(culprit.kind, culprit.rank) for culprit in tax.explained.culprits] == [("", -1), ("GEMM", 1), ("", -1)]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(FORMS),
    st.lists(st.tuples(st.integers(0, 1), st.floats(0, 1), st.binary(max_size=6), st.integers(0, 300)), max_size=6),
)
def test_damaged_traces_are_explained_or_refused_in_a_line(
    tmp_path_factory: pytest.TempPathFactory, form: Form, damages: list[tuple[int, float, bytes, int]]
) -> None:
    files = Job(segments=[ops(backward=2)] * 3, ranks=2, form=form).write(tmp_path_factory.mktemp("damaged"))
    for rank, place, put, cut in damages:
        text = files[rank].read_bytes()
        offset = int(place * len(text))
        files[rank].write_bytes(text[:offset] + put + text[offset + cut :])
    try:
        taxes = tax_of_traces(files, seed=0, explain=CulpritClasses())
    except UserError as error:
        assert "\n" not in str(error)
    else:
        assert len(taxes.culprits) <= len(taxes.collectives)
