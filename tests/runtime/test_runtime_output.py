"""What rank 0 prints."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest
from handmade_run import header
from hypothesis import given
from hypothesis import strategies as st

from dlbench.records.measures import Measures
from dlbench.records.schema import Iteration
from dlbench.runtime.output import (
    Printer,
    SummaryRow,
    header_lines,
    milliseconds,
    number,
    rank_map,
    row,
    summary_lines,
    table_head,
)
from dlbench.statistics import summarise


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0000"),
        (0.005123456, "0.0051235"),  # 5 µs in ms
        (1.0, "1.0000"),
        (12.3456, "12.346"),
        (9.99996, "10.000"),
        (99999.4, "99999"),
        (123456.7, "123457"),  # 123 s in ms
        (-12.3456, "-12.346"),
    ],
)
def test_a_number_has_five_significant_digits(value: float, text: str) -> None:
    assert number(value) == text


@given(st.floats(1e-4, 1e9))
def test_five_digits_are_never_off_by_more_than_half_the_last(value: float) -> None:
    text = number(value)
    assert math.isclose(float(text), value, rel_tol=5.1e-5)
    assert len(text) <= 11, "the columns of the table would touch"


def test_a_small_run_shows_every_rank() -> None:
    assert list(rank_map(["a", "a", "long"], ["cuda:0", "cuda:1", "cuda:0"])) == [
        "rank  host  device",
        "   0  a     cuda:0",
        "   1  a     cuda:1",
        "   2  long  cuda:0",
    ]


def spread(ranks: int, per_host: int) -> tuple[list[str], list[str]]:
    return [f"n{rank // per_host:03}" for rank in range(ranks)], [f"cuda:{rank % per_host}" for rank in range(ranks)]


def test_sixteen_ranks_are_shown_one_by_one_and_seventeen_by_host() -> None:
    assert len(list(rank_map(*spread(16, 4)))) == 1 + 16
    assert list(rank_map(*spread(17, 4))) == [
        " rank  host  device",
        "  0-3  n000  cuda:0 … cuda:3",
        "  4-7  n001  cuda:0 … cuda:3",
        " 8-11  n002  cuda:0 … cuda:3",
        "12-15  n003  cuda:0 … cuda:3",
        "   16  n004  cuda:0",
    ]


def test_a_thousand_ranks_on_250_hosts_are_cut_in_the_middle() -> None:
    lines = list(rank_map(*spread(1000, 4)))
    assert len(lines) == 1 + 16 + 1
    assert lines[1].split()[:2] == ["0-3", "n000"]
    assert lines[8].split()[:2] == ["28-31", "n007"]
    assert lines[9].split() == ["…", "234", "more", "hosts", "…"]
    assert lines[10].split()[:2] == ["968-971", "n242"]
    assert lines[17].split()[:2] == ["996-999", "n249"]


def test_seventeen_hosts_leave_out_one() -> None:
    assert [line for line in rank_map(*spread(17, 1)) if "1 more host" in line]


def test_ranks_dealt_out_in_turn_are_one_line_a_host() -> None:
    hosts = [f"n{rank % 2}" for rank in range(20)]
    assert list(rank_map(hosts, ["cpu"] * 20))[1:] == ["0,2,…,18  n0    cpu", "1,3,…,19  n1    cpu"]


def text_of(**changes: Any) -> list[str]:
    return list(header_lines(header(**changes), None))


def test_the_header_says_what_runs_on_what() -> None:
    lines = text_of()
    assert lines[0] == "dlbench 1.2.3  dp  vit-h  bf16"
    assert lines[1:] == [
        "model      vit-h, 632,404,480 parameters",
        "layout     2 ranks = 2 replicas",
        "workload   local batch 16, sequence 257, 50 buckets",
        "message    allreduce (world, 2 ranks) 50 × 12648090 elements, 25.30 MB, non-blocking",
        "compute    sleep, b200 roofline",
        "ideal      7.130 ms an iteration, if communication took no time",
        "backend    mpi, MPICH 5.0.2; bf16 as MPI_UINT16_T",
        "memory     2.530 GB of message buffers per rank",
        "run        sync barrier, progress poll, seed 0",
        "versions   dlbench 1.2.3",
        "record     none",
        "rank  host  device",
        "   0  nid1  cpu",
        "   1  nid2  cpu",
    ]


def test_the_header_of_a_run_that_computes_nothing_says_that_it_has_no_ideal_time() -> None:
    lines = text_of(compute="none", ideal_seconds=0.0)
    assert [line for line in lines if line.startswith("ideal")] == ["ideal      none: nothing is computed"]


def test_the_header_says_every_factor_that_bears_on_the_numbers() -> None:
    lines = text_of(
        strategy="dp_pp",
        degrees={"pp": 2},
        replicas=1,
        microbatches=16,
        buckets=0,
        scale=0.5,
        time_scale=0.25,
        backend={"name": "mpi", "library": "MPICH 5", "carrier": "MPI_UINT16_T", "persistent": True},
        notes=["pp = 2: the largest that fits"],
        system="leonardo",
        placement="intra-l1",
        experiment="e7",
        job="123",
        labels={"fabric": "hdr", "model": "a, b"},
    )
    assert "layout     2 ranks = 1 replica × pp 2" in lines
    assert "workload   local batch 16, sequence 257, 16 microbatches, scale 0.5, time scale 0.25" in lines
    assert "backend    mpi (persistent), MPICH 5; bf16 as MPI_UINT16_T" in lines
    assert "note       pp = 2: the largest that fits" in lines
    assert {"system     leonardo", "placement  intra-l1", "experiment e7", "job        123"} <= set(lines)
    assert {"label      fabric = hdr", "label      model = a, b"} <= set(lines)


H100 = {
    "name": "NVIDIA H100 80GB HBM3",
    "driver": "12.8",
    "runtime": "12.9",
    "cupy": "14.2.0",
    "memory_bytes": 85_000_000_000,
}


def test_the_header_names_the_gpus_their_software_and_where_each_rank_finds_its_own() -> None:
    lines = text_of(
        backend={"name": "nccl", "library": "NCCL 2.23.4", "carrier": "ncclBfloat16"},
        devices=["cuda:0", "cuda:1"],
        accelerators=[{**H100, "nccl": "2.23.4", "pci": "0000:3B:00.0"}, {**H100, "nccl": "2.23.4"}],
        options={"sync": "barrier", "progress": "poll", "buffers": "gpu"},
    )
    assert "backend    nccl, NCCL 2.23.4; bf16 as ncclBfloat16" in lines
    assert (
        "device     2 × NVIDIA H100 80GB HBM3, 85.00 GB, driver 12.8, runtime 12.9, CuPy 14.2.0, NCCL 2.23.4" in lines
    )
    assert "memory     2.530 GB of message buffers per rank, on the GPU" in lines
    assert lines[-2:] == ["   0  nid1  cuda:0 0000:3B:00.0", "   1  nid2  cuda:1"]


def test_gpus_of_two_kinds_have_a_line_each() -> None:
    lines = text_of(accelerators=[H100, {**H100, "name": "NVIDIA A100"}])
    assert [line for line in lines if line.startswith("device")] == [
        "device     1 × NVIDIA H100 80GB HBM3, 85.00 GB, driver 12.8, runtime 12.9, CuPy 14.2.0",
        "device     1 × NVIDIA A100, 85.00 GB, driver 12.8, runtime 12.9, CuPy 14.2.0",
    ]


def test_control_characters_of_names_are_escaped() -> None:
    lines = text_of(accelerators=[{**H100, "name": "H100\x1b[2J\n80GB"}] * 2)
    (device,) = [line for line in lines if line.startswith("device")]
    assert device.startswith("device     2 × H100\\x1b[2J\\n80GB, 85.00 GB")


def test_the_header_says_where_the_record_is() -> None:
    assert "record     results/x.jsonl" in list(header_lines(header(), "results/x.jsonl"))


def iteration(**changes: Any) -> Iteration:
    fields: dict[str, Any] = {
        "index": 3,
        "warmup": False,
        "start": 10.0,
        "skew": [0.0, 12.5e-6],
        "runtime": [0.040, 0.050],
        "sync_time": [0.030, 0.010],
        "compute": [0.01, 0.04],
        "overrun": [0.001, 0.002],
        "issue": [0.001, 0.003],
        "communication": {"allreduce/world": [0.030, 0.010]},
    }
    return Iteration(**{**fields, **changes})


def test_the_slowest_rank_makes_the_time_and_the_busiest_the_communication_fraction() -> None:
    measures = Measures(iteration(), samples=32)
    assert measures.seconds == 0.050
    assert measures.throughput == pytest.approx(640)  # 32 / 0.05
    assert measures.communication == pytest.approx(0.75)  # rank 0: 30 / 40, although rank 1 took longer
    assert measures.hidden == pytest.approx(0.1)  # rank 1: (2 + 3) / 50
    assert measures.skew == 12.5e-6


def shown(**changes: Any) -> str:
    made = iteration(**changes)
    return row(made, Measures(made, samples=32))


def test_a_row_stands_under_the_names_of_its_columns() -> None:
    names, units = (f"# {line}" for line in table_head())
    line = shown()
    ends = [names.index(name) + len(name) for name in ("iteration", "time", "throughput", "comm.", "hidden", "skew")]
    cells = line.split()
    assert cells == ["3", "50.000", "640.00", "75.0", "10.0", "12.5"]
    assert [line.index(f" {cell}") + 1 + len(cell) for cell in cells] == ends
    assert units.split() == ["#", "[ms]", "[samples/s]", "[%]", "[%]", "[µs]"]
    assert [index + 1 for index, letter in enumerate(units) if letter == "]"] == ends[1:]


def test_warm_ups_and_missed_starts_are_marked() -> None:
    assert shown(warmup=True).endswith(" w")
    assert shown(late=[1]).endswith("  !")
    assert shown(warmup=True, late=[0, 1]).endswith(" w!")


@pytest.mark.parametrize(("seconds", "time"), [(5e-6, "0.0050000"), (100.0, "100000"), (20_000.0, "20000000")])
def test_very_short_and_very_long_iterations_keep_their_digits_and_their_columns(seconds: float, time: str) -> None:
    cells = shown(runtime=[seconds] * 2, sync_time=[seconds / 2] * 2).split()
    assert len(cells) == 6
    assert cells[1] == time


def in_milliseconds(*seconds: float) -> SummaryRow:
    return SummaryRow("time [ms]", summarise(seconds), milliseconds)


def test_the_summary_fits_80_columns() -> None:
    lines = summary_lines([SummaryRow(" reduce_scatter/replica [ms]", summarise([123456.789] * 6), milliseconds)], 1e6)
    assert all(len(f"# {line}") <= 80 for line in lines)


def cells_of(line: str, name: str) -> list[str]:
    return line.removeprefix(name).split()


def test_the_summary_has_an_interval_from_six_samples_on() -> None:
    # Six samples: the interval is from the smallest to the largest; the median of 1 … 6 ms is 3.5 ms.
    lines = list(summary_lines([in_milliseconds(1e-3, 2e-3, 3e-3, 4e-3, 5e-3, 6e-3)], 640.0))
    assert lines[0].split() == ["median", "low", "high", "minimum", "maximum"]
    assert cells_of(lines[1], "time [ms]") == ["3.5000", "1.0000", "6.0000", "1.0000", "6.0000"]
    assert lines[2:] == ["geometric mean of the throughput: 640.00 samples/s"]


def test_the_summary_says_why_there_is_no_interval_below_six() -> None:
    lines = list(summary_lines([in_milliseconds(1e-3, 2e-3)], 640.0))
    assert cells_of(lines[1], "time [ms]") == ["1.5000", "-", "-", "1.0000", "2.0000"]
    assert lines[3] == "low and high: no 95 % interval below 6 iterations"


def test_a_run_that_measured_nothing_says_so() -> None:
    assert list(summary_lines([], None)) == ["no iteration was measured"]


def test_comments_are_marked_and_every_line_is_written_at_once() -> None:
    class Pipe(io.StringIO):
        flushed = ""

        def flush(self) -> None:
            self.flushed = self.getvalue()

    pipe = Pipe()
    printer = Printer(pipe)
    printer.comment(["one", ""])
    printer.line("OK")
    assert pipe.flushed == "# one\n#\nOK\n"
