"""From a live run to its numbers and its timeline: what the commands say is what the record holds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import mean, median
from typing import Any

import pytest
from launch import Mpi
from live_runs import SHORT, SMALL, last_line, on_mpich, record_path, run
from trace_checker import Trace, checked

NANOSECOND = 1e-9
RECORDED = ("--iterations", "3", "--warmup", "1", "--record-ops")

SEVERAL_HOSTS = """
import os
import time

READ = time.perf_counter_ns
BEGIN = READ()
RANK = int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")))
if RANK % 2:
    time.perf_counter_ns = lambda: READ() + round((READ() - BEGIN) * 200e-6) + 5_000_000_000

from dlbench.runtime import clock
from dlbench.runtime.entry import main

clock.clock_domain = lambda: f"host {RANK}"
clock.RESYNC_SECONDS = 0.1
main("dp_pp")
"""
"""Odd ranks read clocks that are five seconds ahead and drift."""


def dlbench(*arguments: str | Path) -> str:
    """Standard output of the command."""
    command = [sys.executable, "-m", "dlbench", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def lines_of(record: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Header and iterations of a record, read as plain JSON."""
    header, *lines = map(json.loads, record.read_text().splitlines())
    return header, [line for line in lines if line["kind"] == "iteration"]


def measured_run(mpi: Mpi, strategy: str, folder: Path) -> Path:
    completed = run(mpi, strategy, 4, *RECORDED, "--record", str(folder))
    assert (completed.returncode, last_line(completed.stdout)) == (0, "OK"), completed
    return record_path(folder)


def assert_shows_the_times_of_the_record(trace: Trace, iterations: list[dict[str, Any]], first: int = 0) -> None:
    """The bars of a rank add up to the times on the lines, by category, to the nanosecond an op."""
    for rank in {event["tid"] for event in trace.ops()}:
        for line in iterations[first:]:
            bars = [event for event in trace.ops(rank) if event["args"]["iteration"] == line["index"]]
            seconds = dict.fromkeys(("compute", "issue", *line["communication"]), 0.0)
            for bar in bars:
                *kind, category = bar["cat"].split(",")
                seconds["issue" if kind == ["issue"] else category] += bar["dur"] * 1e-6
            tolerance = 2 * NANOSECOND * len(bars)
            computed = line["compute"][rank] + line["overrun"][rank]
            assert seconds.pop("compute") == pytest.approx(computed, abs=tolerance)
            assert seconds.pop("issue") == pytest.approx(line["issue"][rank], abs=tolerance)
            for name, times in line["communication"].items():
                assert seconds[name] == pytest.approx(times[rank], abs=tolerance), name


def assert_no_message_ends_before_its_send(trace: Trace) -> None:
    """A receive ends after its send begins, but for the error of the two ranks' clocks."""
    errors = {
        (band["tid"], band["args"]["iteration"]): band["args"]["clock_error_seconds"]
        for band in trace.slices(cat="iteration")
    }
    for send, receive in trace.arrows("message"):
        iteration = send["args"]["iteration"]
        allowed = errors[send["tid"], iteration] + errors[receive["tid"], iteration] + 2 * NANOSECOND
        assert (receive["ts"] + receive["dur"] - send["ts"]) * 1e-6 > -allowed


def messages_of(header: dict[str, Any]) -> int:
    """Messages of an iteration."""
    return sum(len(t["ranks"]) * sum(op["op"] == "send" for op in t["ops"]) for t in header["op_tables"])


@on_mpich
@pytest.mark.parametrize("strategy", list(SHORT))
def test_the_timeline_of_a_strategy_shows_what_its_record_holds(mpi: Mpi, strategy: str, tmp_path: Path) -> None:
    record = measured_run(mpi, strategy, tmp_path / "records")
    header, iterations = lines_of(record)
    printed = dlbench("timeline", record, "-o", tmp_path / "trace.json")
    trace = checked(tmp_path / "trace.json")
    assert f"iterations 0 to 3, 4 ranks, {len(trace.ops())} ops" in printed
    assert set(trace.names("process_name").values()) == set(header["hosts"])
    assert len(trace.arrows("message")) == messages_of(header) * 4
    assert_shows_the_times_of_the_record(trace, iterations)
    assert_no_message_ends_before_its_send(trace)


def test_messages_keep_their_order_where_ranks_read_different_clocks(mpi: Mpi, tmp_path: Path) -> None:
    program = tmp_path / "several_hosts.py"
    program.write_text(SEVERAL_HOSTS, encoding="utf-8")
    stop = ("--iterations", "100000", "--max-seconds", "0.5", "--record-ops", "--record", str(tmp_path))
    options = (*SMALL, *SHORT["dp_pp"], "--compute", "none", *stop)
    done = mpi.launch(4, [str(program), *options])
    assert (done.returncode, last_line(done.stdout)) == (0, "OK"), done.stderr
    dlbench("timeline", record_path(tmp_path), "-o", tmp_path / "trace.json.gz")
    trace = checked(tmp_path / "trace.json.gz")
    assert len(trace.arrows("message")) > 0
    assert 0 < trace.other["clock_error_seconds"] < 0.01
    assert_no_message_ends_before_its_send(trace)


@on_mpich
def test_the_analysis_of_two_strategies_says_what_their_records_and_timelines_hold(mpi: Mpi, tmp_path: Path) -> None:
    records = {strategy: measured_run(mpi, strategy, tmp_path / strategy) for strategy in ("dp", "dp_pp")}
    document = json.loads(dlbench("analyze", *(path.parent for path in records.values()), "--json"))
    assert (len(document["runs"]), document["iterations"], document["excluded"]) == (2, 6, [])
    for strategy, record in records.items():
        header, iterations = lines_of(record)
        counted = iterations[1:]
        (row,) = [row for row in document["summary"] if row["strategy"] == strategy]
        assert (row["runs"], row["iterations"], row["gpus"]) == (1, 3, 4)
        seconds = [max(line["runtime"]) for line in counted]
        assert row["seconds"] == pytest.approx(median(seconds))
        samples = header["local_batch"] * header["replicas"]
        product = samples**3 / (seconds[0] * seconds[1] * seconds[2])
        assert row["throughput"] == pytest.approx(product ** (1 / 3))
        fractions = [
            max(sync / whole for sync, whole in zip(line["sync_time"], line["runtime"], strict=True))
            for line in counted
        ]
        assert row["communication"] == pytest.approx(mean(fractions))
        (total,) = [row for row in document["relevance"] if (row["strategy"], row["name"]) == (strategy, "total")]
        assert total["share"] == pytest.approx(row["communication"])

        dlbench("timeline", record, "-o", tmp_path / "trace.json", "--iterations", "1:3")
        trace = checked(tmp_path / "trace.json")
        assert_shows_the_times_of_the_record(trace, iterations, first=1)
        shown = [max(share_of_communication(trace, rank, index) for rank in range(4)) for index in (1, 2, 3)]
        assert mean(shown) == pytest.approx(row["communication"], rel=1e-3)


def share_of_communication(trace: Trace, rank: int, iteration: int) -> float:
    """Communication fraction of a rank in an iteration, from the bars alone."""
    (band,) = [band for band in trace.slices(rank, "iteration") if band["args"]["iteration"] == iteration]
    bars = [bar for bar in trace.ops(rank) if bar["args"]["iteration"] == iteration]
    waited = sum(bar["dur"] for bar in bars if bar["cat"] != "compute" and not bar["cat"].startswith("issue"))
    return float(waited / band["dur"])
