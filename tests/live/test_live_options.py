"""The options of a run, under a real mpiexec: what they change, and that the record says so."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from launch import Completed, Mpi
from live_runs import command, last_line, on_mpich, run, sabotaged, said, valid_record

from dlbench.records.reader import Record, read_ops

UNWANTED = ("pandas", "scipy", "matplotlib", "jinja2", "typer", "rich", "yaml")


def ok(completed: Completed) -> Completed:
    assert (completed.returncode, said(completed.stderr)) == (0, []), completed
    return completed


def record_of(mpi: Mpi, folder: Path, strategy: str, ranks: int, *options: str) -> Record:
    """Record of a run that went well."""
    assert last_line(ok(run(mpi, strategy, ranks, "--record", str(folder), *options)).stdout) == "OK"
    return valid_record(folder)


@pytest.mark.parametrize("strategy", ["dp", "fsdp"])
def test_persistent_collectives_deliver_right_data_every_time(mpi: Mpi, strategy: str, tmp_path: Path) -> None:
    record = record_of(mpi, tmp_path, strategy, 2, "--persistent", "--check", "--iterations", "5")

    assert record.header.backend.persistent
    assert record.header.options["persistent"] is True
    assert len(record.iterations) == 6


@on_mpich
@pytest.mark.parametrize(
    ("dtype", "carrier", "size"),
    [
        ("fp8", "MPI_UINT8_T", 1),
        ("fp16", "MPI_UINT16_T", 2),
        ("fp32", "MPI_FLOAT", 4),
        ("fp64", "MPI_DOUBLE", 8),
    ],
)
def test_a_dtype_sets_the_carrier_and_the_bytes(mpi: Mpi, dtype: str, carrier: str, size: int, tmp_path: Path) -> None:
    header = record_of(
        mpi, tmp_path, "fsdp", 2, "--dtype", dtype, "--gpu", "h100", "--check", "--iterations", "1"
    ).header

    assert (header.dtype, header.backend.carrier) == (dtype, carrier)
    assert all(message.bytes == message.elements * size for message in header.messages)


@on_mpich
def test_real_matrix_products_take_time_and_none_takes_none(mpi: Mpi, tmp_path: Path) -> None:
    small = ("--model", "vit-b", "--local-batch", "1", "--iterations", "2")
    gemm = record_of(mpi, tmp_path / "gemm", "dp", 2, "--compute", "gemm", *small)
    none = record_of(mpi, tmp_path / "none", "dp", 2, "--compute", "none", *small)

    assert (gemm.header.compute, none.header.compute) == ("gemm", "none")
    assert gemm.header.options["compute_precision"] == "float32"
    assert min(gemm.iterations[-1].compute) > 10 * max(none.iterations[-1].compute)


@on_mpich
def test_a_sleep_is_as_long_as_the_roofline_says(mpi: Mpi, tmp_path: Path) -> None:
    options = ("--time-scale", "2", "--progress", "none", "--record-ops", "--iterations", "20")

    record = record_of(mpi, tmp_path, "dp", 2, *options)

    table = record.header.op_tables[0].ops
    phases = [index for index, entry in enumerate(table) if entry.op == "compute"]
    expected = sum(table[index].seconds for index in phases)
    assert len(phases) == 9
    assert expected > 0.01
    slept = [(ops[rank, phases, 1] - ops[rank, phases, 0]).sum() for ops in read_ops(record.path) for rank in (0, 1)]
    # Others may use the cores: the best of 42 is what the code can do.
    assert expected <= min(slept) < 1.05 * expected


COUNT_PROGRESS = """
    import atexit

    from dlbench.comm.mpi import MpiCommunicator

    Sabotaged = Faithful
    calls = []
    progress = MpiCommunicator.progress
    MpiCommunicator.progress = lambda communicator: calls.append(progress(communicator))
    atexit.register(lambda: open(f"calls-{RANK}", "w").write(str(len(calls))))
"""


@pytest.mark.parametrize(("progress", "least", "most"), [("poll", 21, 10**6), ("none", 0, 0)])
def test_progress_is_driven_while_a_rank_sleeps_or_not(
    mpi: Mpi, progress: str, least: int, most: int, tmp_path: Path
) -> None:
    """Of the backward phases of eight buckets, seven have requests in flight, in each of three iterations."""
    program = sabotaged(tmp_path, "dp", COUNT_PROGRESS)
    options = ("--progress", progress, "--record", str(tmp_path), "--warmup", "1", "--iterations", "2")

    ok(mpi.launch(2, [*program, *options], cwd=tmp_path))

    counts = [int((tmp_path / f"calls-{rank}").read_text()) for rank in (0, 1)]
    assert all(least <= count <= most for count in counts), counts
    assert valid_record(tmp_path).header.options["progress"] == progress


@on_mpich
@pytest.mark.parametrize(("op", "least", "most"), [(0, 0, 0), (3, 3 * 40, 10**6)])
def test_a_delay_drives_requests_in_flight_as_a_phase_does(
    mpi: Mpi, op: int, least: int, most: int, tmp_path: Path
) -> None:
    """Before the forward pass nothing is in flight; op 3 follows the start of the first all-reduce, op 2."""
    program = sabotaged(tmp_path, "dp", COUNT_PROGRESS)
    options = ("--compute", "none", "--delay", f"1:{op}:40", "--no-record", "--warmup", "1", "--iterations", "2")

    ok(mpi.launch(2, [*program, *options], cwd=tmp_path))

    calls = int((tmp_path / "calls-1").read_text())
    assert least <= calls <= most
    assert (tmp_path / "calls-0").read_text() == "0"


LAST_OP_OF_STAGE_0 = 15
"""Four microbatches: four times compute and send, four times receive and compute."""


@pytest.mark.parametrize(("sync", "together"), [("barrier", True), ("window", True), ("none", False)])
def test_ranks_begin_together_or_as_soon_as_they_can(mpi: Mpi, sync: str, together: bool, tmp_path: Path) -> None:
    """Stage 1 has done its part when stage 0 is still in its last backward, which a delay makes long."""
    options = ("--sync", sync, "--delay", f"0:{LAST_OP_OF_STAGE_0}:60", "--warmup", "4", "--iterations", "6")

    record = record_of(mpi, tmp_path, "dp_pp", 2, *options)

    assert record.header.options["sync"] == sync
    measured = [iteration for iteration in record.iterations if not iteration.warmup]
    skews = sorted(iteration.skew[0] - iteration.skew[1] for iteration in measured)
    assert (skews[len(skews) // 2] < 0.03) is together, skews


@pytest.mark.parametrize("sync", ["window", "none"])
def test_ops_lie_in_their_iteration_however_ranks_begin_one(mpi: Mpi, sync: str, tmp_path: Path) -> None:
    record = record_of(mpi, tmp_path, "fsdp", 2, "--sync", sync, "--record-ops", "--check", "--iterations", "4")

    assert len(record.iterations) == 5
    for iteration, ops in zip(record.iterations, read_ops(record.path), strict=True):
        begin = iteration.start + np.array(iteration.skew)
        assert np.all(ops[:, 0, 0] >= begin - 1e-8)
        assert np.all(ops[:, -1, 1] <= begin + iteration.runtime + 1e-8)


@on_mpich
def test_a_run_goes_on_until_the_median_is_known(mpi: Mpi, tmp_path: Path) -> None:
    options = ("--until-ci", "0.5", "--iterations", "2", "--max-iterations", "200", "--delay", "0:0:10")

    record = record_of(mpi, tmp_path, "dp", 2, *options)

    assert 6 <= len(record.iterations) - 1 < 200
    assert record.end is not None
    assert "median known within ±" in record.end.reason


@on_mpich
def test_a_run_stops_at_its_time_limit(mpi: Mpi, tmp_path: Path) -> None:
    options = ("--max-seconds", "0.2", "--iterations", "1000", "--delay", "0:0:50")

    record = record_of(mpi, tmp_path, "dp", 2, *options)

    measured = len(record.iterations) - 1
    assert measured <= 4
    assert record.end is not None
    assert record.end.reason == f"{measured} iterations measured: --max-seconds 0.2 came before --iterations 1000"


def test_json_is_all_that_stands_on_stdout(mpi: Mpi) -> None:
    completed = run(mpi, "dp", 2, "--json", "--no-record", "--iterations", "7", "--check")

    assert completed.returncode == 0
    summary = json.loads(completed.stdout)
    assert (summary["status"], summary["strategy"], summary["world_size"]) == ("completed", "dp", 2)
    assert (summary["iterations"], summary["warmup"], summary["record"]) == (8, 1, None)
    seconds = summary["seconds"]
    assert seconds["minimum"] <= seconds["interval"]["low"] <= seconds["median"] <= seconds["interval"]["high"]
    assert "# check      OK" in completed.stderr
    assert "\nOK\n" in completed.stderr


@on_mpich
def test_the_record_repeats_what_the_run_was_told_of_itself(mpi: Mpi, tmp_path: Path) -> None:
    told = (
        "--label",
        "fabric=ndr",
        "--label",
        "note=a=b",
        "--experiment",
        "e7",
        "--job",
        "j3",
        "--seed",
        "42",
    )

    header = record_of(mpi, tmp_path, "dp", 2, *told, "--placement", "intra-group", "--iterations", "1").header

    assert header.labels == {"fabric": "ndr", "note": "a=b"}
    assert (header.experiment, header.job, header.placement, header.seed) == ("e7", "j3", "intra-group", 42)
    assert header.command[-2:] == ["--iterations", "1"]
    assert set(header.packages) >= {"dlbench", "numpy", "mpi4py", "msgspec"}


@on_mpich
def test_the_command_line_wins_over_the_file(mpi: Mpi, tmp_path: Path) -> None:
    file = tmp_path / "site.yaml"
    file.write_text("iterations: 3\nwarmup: 0\nrecord-ops: true\nlabel:\n  site: here\n")

    record = record_of(mpi, tmp_path, "dp", 2, "--config", str(file), "--iterations", "2")

    assert [iteration.warmup for iteration in record.iterations] == [False, False]
    assert record.header.labels == {"site": "here"}
    assert len(read_ops(record.path)) == 2


@on_mpich
def test_no_record_leaves_no_file(mpi: Mpi, tmp_path: Path) -> None:
    ok(mpi.launch(2, [*command("dp"), "--no-record", "--iterations", "1"], cwd=tmp_path))

    assert list(tmp_path.iterdir()) == []


def test_a_rank_imports_nothing_that_belongs_to_the_command_line(mpi: Mpi, tmp_path: Path) -> None:
    report = f"""
        import atexit

        Sabotaged = Faithful
        if RANK == 1:
            loaded = lambda: sorted(set({UNWANTED}) & set(sys.modules))
            atexit.register(lambda: print("rank 1 has", loaded(), flush=True))
    """

    completed = ok(mpi.launch(2, [*sabotaged(tmp_path, "dp", report), "--no-record", "--iterations", "1", "--check"]))

    assert "rank 1 has []" in completed.stdout
