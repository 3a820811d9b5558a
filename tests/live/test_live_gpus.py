"""Runs on GPUs, under a real mpiexec: the GPUs are memory of the process, NCCL is a stand-in below CuPy's bindings."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest
from launch import Completed, Mpi
from live_runs import (
    SHORT,
    SMALL,
    assert_ops_explain_times,
    checked_messages,
    command,
    last_line,
    on_mpich,
    said,
    valid_record,
)
from stand_in import StandIn, calls

from dlbench.records.reader import Record, read_ops

pytestmark = pytest.mark.patient

TESTS = Path(__file__).parents[1]
NCCL = ("--backend", "nccl")
NAMES = {22304: "2.23.4", 22602: "2.26.2"}
WITHOUT_NCCL = {"PYTHONPATH": str(TESTS)}


def on_gpus(strategy: str, *options: str) -> list[str]:
    """Arguments of Python for a small run of a strategy on GPUs; later options win."""
    return [str(TESTS / "live" / "gpu_ranks.py"), strategy, *SMALL, *SHORT[strategy], *options]


def refusal(completed: Completed) -> str:
    """The one line of a run that was refused."""
    assert (completed.returncode, completed.stdout) == (2, ""), completed
    (line,) = said(completed.stderr)
    return line


def failure(completed: Completed, folder: Path) -> tuple[str, Record]:
    """The one line of a run that failed, and its record, whose end says the same."""
    assert completed.returncode not in (0, 2), completed
    (line,) = [line for line in said(completed.stderr) if line.startswith("FAILED: ")]
    record = valid_record(folder)
    assert record.end is not None
    assert (record.end.status, record.end.reason) == ("failed", line.removeprefix("FAILED: "))
    return line, record


def failed_soon(mpi: Mpi, program: list[str], env: dict[str, str], folder: Path) -> tuple[str, Record]:
    """Start a run of two ranks that a fault must end within seconds; as `failure`."""
    started = time.monotonic()
    completed = mpi.launch(2, program, env=env)
    assert time.monotonic() - started < 20
    return failure(completed, folder)


@pytest.mark.parametrize(
    ("strategy", "ranks", "version"),
    [(strategy, ranks, 22602 if ranks == 2 else 22304) for strategy in SHORT for ranks in (2, 4)]  # noqa: PLR2004
    + [("fsdp", 4, 22602), ("dp_pp_tp", 4, 22602)],
)
def test_a_strategy_delivers_right_data_over_nccl_and_leaves_a_valid_record(
    cupy_mpi: Mpi, stand_in: StandIn, strategy: str, ranks: int, version: int, tmp_path: Path
) -> None:
    log = tmp_path / "calls"
    options = ("--check", "--record-ops", "--iterations", "2", "--record", str(tmp_path))
    environment = stand_in.environment(log=log, version=version)

    completed = cupy_mpi.launch(ranks, on_gpus(strategy, *NCCL, *options), env=environment)

    assert (completed.returncode, said(completed.stderr)) == (0, []), completed
    assert last_line(completed.stdout) == "OK"
    record = valid_record(tmp_path)
    header = record.header
    assert f"check      OK: {checked_messages(header)} messages verified on {ranks} ranks" in completed.stdout
    assert (header.backend.name, header.options["buffers"]) == ("nccl", "gpu")
    assert header.devices == [f"host:{rank}" for rank in range(ranks)]
    assert [gpu.uuid for gpu in header.accelerators] == [f"HOST-{rank}" for rank in range(ranks)]
    assert {(gpu.name, gpu.nccl, gpu.numa_node) for gpu in header.accelerators} == {("host memory", NAMES[version], 0)}
    for iteration, ops in zip(record.iterations, read_ops(record.path), strict=True):
        assert_ops_explain_times(header, iteration, ops)
    assert_closed(log, ranks)
    shared = [note for note in header.notes if note.endswith("and this is NCCL 2.23.4")]
    assert assert_streams(log, ranks, ordered=version >= 22600) == bool(shared)


def assert_streams(log: Path, ranks: int, *, ordered: bool) -> bool:
    """All communicators of a rank use one stream, or where NCCL keeps them in order one each. Whether several share."""
    groups = False
    for rank in range(ranks):
        own = [call for call in calls(log) if call["world_rank"] == rank]
        groups |= any(call["call"] == "ncclCommSplit" for call in own)
        used = {(call["comm"], call["stream"]) for call in own if "stream" in call}
        streams = {stream for _, stream in used}
        assert len(streams) == (len(used) if ordered else 1)
    return groups and not ordered


def assert_closed(log: Path, ranks: int) -> None:
    """Every rank has destroyed the communicators that it made: children before parents, nothing in flight."""
    for rank in range(ranks):
        own = [call for call in calls(log) if call["world_rank"] == rank]
        made = [call["comm"] for call in own if call["call"] in {"ncclCommInitRankConfig", "ncclCommSplit"}]
        destroyed = [(call["comm"], call["in_flight"]) for call in own if call["call"] == "ncclCommDestroy"]
        assert made
        assert destroyed == [(comm, 0) for comm in reversed(made)]


def test_a_strategy_delivers_right_data_over_mpi_from_the_memory_of_gpus(mpi: Mpi, tmp_path: Path) -> None:
    options = ("--buffers", "gpu", "--compute", "gemm", "--check", "--iterations", "2", "--record", str(tmp_path))

    completed = mpi.launch(2, on_gpus("dp_pp", *options, "--model", "vit-b"), env=WITHOUT_NCCL)

    assert (completed.returncode, said(completed.stderr)) == (0, []), completed
    header = valid_record(tmp_path).header
    assert "check      OK: " in completed.stdout
    assert (header.backend.name, header.options["buffers"]) == ("mpi", "gpu")
    assert (header.compute, header.options["gemm_precision"]) == ("gemm", "auto")
    assert [(gpu.uuid, gpu.nccl) for gpu in header.accelerators] == [("HOST-0", ""), ("HOST-1", "")]


@on_mpich
def test_a_gpu_spins_while_messages_travel_through_the_host(mpi: Mpi, tmp_path: Path) -> None:
    options = ("--compute", "spin", "--time-scale", "1", "--iterations", "1", "--record", str(tmp_path))

    completed = mpi.launch(2, on_gpus("dp", *options), env=WITHOUT_NCCL)

    assert last_line(completed.stdout) == "OK"
    record = valid_record(tmp_path)
    assert (record.header.compute, record.header.options["buffers"]) == ("spin", "host")
    # 7.13 ms of ViT-H on a B200.
    assert min(record.iterations[-1].runtime) > 7.1e-3


def test_an_error_that_nccl_finds_by_itself_ends_the_job_and_names_rank_and_op(
    cupy_mpi: Mpi, stand_in: StandIn, tmp_path: Path
) -> None:
    program = on_gpus("dp", *NCCL, "--iterations", "100000", "--record", str(tmp_path))

    # Iteration 2, after the first message and 16 all-reduces: the fourth of eight.
    line, record = failed_soon(cupy_mpi, program, stand_in.environment(fault="async:1:20"), tmp_path)

    assert re.match(
        r"FAILED: rank 1 \(\S+, host:1\) failed in op 17 \(wait for gradient\[0\] … gradient\[7\]\) of iteration 2: ",
        line,
    )
    assert len(record.iterations) == 2


def test_a_message_that_never_comes_ends_the_job_at_the_timeout_and_names_the_op(
    cupy_mpi: Mpi, stand_in: StandIn, tmp_path: Path
) -> None:
    program = on_gpus("fsdp", *NCCL, "--timeout", "2", "--record", str(tmp_path))

    # After the first gather and the first scatter, with which the ranks are connected.
    line, _ = failed_soon(cupy_mpi, program, stand_in.environment(fault="lost:1:5"), tmp_path)

    assert re.fullmatch(
        r"FAILED: hang: rank \d \(\S+, host:\d\) is in op \d+ \(.*\) of iteration 0 after 2\.\d s; "
        r"the limit is --timeout 2",
        line,
    )


def test_the_check_finds_one_wrong_bit_and_the_communicators_are_closed_all_the_same(
    cupy_mpi: Mpi, stand_in: StandIn, tmp_path: Path
) -> None:
    log = tmp_path / "calls"
    program = on_gpus("dp", *NCCL, "--check", "--record", str(tmp_path))

    completed = cupy_mpi.launch(2, program, env=stand_in.environment(fault="wrong:1:4", log=log))

    assert (completed.returncode, said(completed.stderr)) == (1, [])
    assert re.search(
        r"FAILED: wrong data: rank 1 \(\S+, host:1\) op \d+ \(allreduce/world gradient\[3\]\): ", completed.stdout
    )
    assert_closed(log, 2)


def test_nccl_that_does_not_start_is_one_line_with_the_advice(cupy_mpi: Mpi, stand_in: StandIn) -> None:
    completed = cupy_mpi.launch(2, on_gpus("dp", *NCCL, "--no-record"), env=stand_in.environment(fault="id"))

    assert re.fullmatch(r"NCCL does not start: .*; NCCL_DEBUG=INFO says why; .*", refusal(completed))


def test_nccl_that_makes_no_groups_is_one_line_with_the_advice(cupy_mpi: Mpi, stand_in: StandIn) -> None:
    program = on_gpus("dp_pp_tp", *NCCL, "--no-record")

    completed = cupy_mpi.launch(4, program, env=stand_in.environment(fault="split"))

    assert re.fullmatch(
        r"NCCL does not split its communicator on rank 0 of 4 \(NCCL_ERROR_SYSTEM_ERROR: .*\); NCCL_DEBUG=INFO .*",
        refusal(completed),
    )


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (
            "lost:1:1",
            r"hang: rank \d .* is in op 1 \(reduce_scatter/shard gradients\) of the first messages after 2\.\d s",
        ),
        ("async:1:1", r"rank \d .* failed in op 1 \(reduce_scatter/shard gradients\) of the first messages: "),
    ],
)
def test_ranks_that_cannot_be_connected_end_the_job_and_name_the_op(
    cupy_mpi: Mpi, stand_in: StandIn, fault: str, words: str
) -> None:
    program = on_gpus("fsdp", *NCCL, "--timeout", "2", "--no-record")

    completed = cupy_mpi.launch(2, program, env=stand_in.environment(fault=fault))

    assert completed.returncode not in (0, 2), completed
    assert re.search(words, completed.stderr)


def test_two_ranks_on_one_gpu_are_named_before_nccl_starts(cupy_mpi: Mpi, stand_in: StandIn, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    environment = {**stand_in.environment(log=log), "HOST_GPUS": "1"}

    completed = cupy_mpi.launch(2, on_gpus("dp", *NCCL), env=environment)

    assert re.fullmatch(
        r"rank 0 \((\S+), host:0\) and rank 1 \(\1, host:0\) drive one GPU, host memory HOST-0; .*", refusal(completed)
    )
    assert not log.exists() or [call for call in calls(log) if "Comm" in call["call"]] == []


def test_two_versions_of_nccl_are_refused(cupy_mpi: Mpi, stand_in: StandIn) -> None:
    completed = cupy_mpi.launch(2, on_gpus("dp", *NCCL), env={**stand_in.environment(), "ODD_VERSION": "22105"})

    assert re.match(
        r"NCCL is not the same on all ranks: 2\.23\.4 on rank 0 \(\S+\), 2\.21\.5 on rank 1 \(\S+\); ",
        refusal(completed),
    )


def test_what_does_not_fit_beside_what_nccl_takes_for_its_messages_is_refused_with_a_scale(
    cupy_mpi: Mpi, stand_in: StandIn, tmp_path: Path
) -> None:
    log = tmp_path / "calls"
    environment = {**stand_in.environment(log=log), "HOST_MEMORY": "1000000000"}

    # ViT-H has 632 404 480 parameters of 2 bytes, sent from one buffer and received into another: 2.53 GB.
    # 0.99 × (1 GB − 512 MiB) / 2.53 GB = 0.181.
    completed = cupy_mpi.launch(2, on_gpus("dp", *NCCL, "--scale", "1"), env=environment)

    assert re.fullmatch(
        r"rank 0 \(\S+, host:0\): host memory has 1\.000 GB of memory free, 536\.9 MB must stay so, and its "
        r"rank needs 2\.530 GB for messages; --scale 0\.18 would fit",
        refusal(completed),
    )
    assert [call["call"] for call in calls(log) if "stream" in call] == 2 * ["ncclAllReduce"], "NCCL has taken its part"


def test_a_signal_ends_a_run_over_nccl_after_its_iteration(cupy_mpi: Mpi, stand_in: StandIn, tmp_path: Path) -> None:
    program = on_gpus("dp_pp_tp", *NCCL, "--iterations", "1000000", "--record", str(tmp_path))
    with cupy_mpi.start(4, program, env=stand_in.environment()) as job:
        job.wait_for_output("\n             1 ")
        os.kill(job.rank_pids()[2], signal.SIGTERM)
        completed = job.wait(20)

    assert (completed.returncode, said(completed.stderr)) == (143, [])
    record = valid_record(tmp_path)
    assert record.end is not None
    assert (record.end.status, record.end.signal, record.end.iterations) == (
        "terminated",
        "SIGTERM",
        len(record.iterations),
    )


def test_a_killed_rank_takes_a_run_over_nccl_down_and_leaves_what_was_finished(
    cupy_mpi: Mpi, stand_in: StandIn, tmp_path: Path
) -> None:
    program = on_gpus("dp", *NCCL, "--iterations", "1000000", "--record", str(tmp_path))
    with cupy_mpi.start(2, program, env=stand_in.environment()) as job:
        job.wait_for_output("\n             1 ")
        killed = time.monotonic()
        os.kill(job.rank_pids()[1], signal.SIGKILL)
        completed = job.wait(20)
        assert time.monotonic() - killed < 5
        assert job.alive() == []

    assert completed.returncode not in (0, 1, 2)
    assert len(valid_record(tmp_path).iterations) >= 2


@pytest.mark.parametrize("options", [NCCL, ("--buffers", "gpu")], ids=["nccl", "GPU-aware MPI"])
def test_without_a_gpu_one_line_says_what_is_missing(mpi: Mpi, options: tuple[str, ...]) -> None:
    if Path("/dev/nvidiactl").exists() or Path("/dev/kfd").exists():
        pytest.skip("this host has GPUs")

    line = refusal(mpi.launch(4, [*command("dp"), "--no-record", *options]))

    assert re.fullmatch(r"rank 0 \(\S+\): no GPU driver on this host; .*", line)
