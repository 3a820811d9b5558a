"""The check of a GPU on memory of the process: that it runs, judges, and ends as it says. Its subject needs a GPU."""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import device_check
import pytest
from device_checks import (
    CHECKS,
    FAILED,
    HOST,
    OK,
    SKIPPED,
    Bench,
    Row,
    datasheet,
    detection,
    energy,
    hidden_share,
    products,
    rates,
    rows,
    spins,
)
from host_device import HostDevice, HostDriver, HostMultiplier
from launch import Mpi
from stand_in import StandIn

from dlbench.accelerator.protocol import GpuFacts, Meter, Reading

SCRIPT = Path(__file__).parent / "device_check.py"


def bench(driver: Any = None, device: Any = None, spec: str = "") -> Bench:
    driver = driver or HostDriver()
    return Bench(driver=driver, device=device or driver.open(0), sizes=HOST, spec=spec)


def script(python: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [python, str(SCRIPT), *options]
    hidden = {"CUDA_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    # A job of SLURM around the tests says nothing of the ranks that the script starts.
    own = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "PMI"))}
    env = {**own, **hidden, **environment}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100, env=env)


def test_without_a_gpu_one_line_says_what_is_missing() -> None:
    done = script(sys.executable)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("device check: ")
    assert done.stderr.count("\n") == 1


def lines_of(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """The rows of the table, by what is checked."""
    return {line.partition("  ")[0]: line for line in done.stdout.splitlines() if "  " in line}


COLLECTIVES = ("allreduce", "allgather", "reduce_scatter", "alltoall")
DTYPES = ("bf16", "fp16", "fp32", "fp64", "fp8")
ALONE = {f"{name} of {dtype}, a copy" for name in COLLECTIVES for dtype in DTYPES}
TWO = {f"{name} of {dtype}, two GPUs" for name in (*COLLECTIVES, "message") for dtype in DTYPES}


def test_every_check_of_one_gpu_and_of_two_runs_on_host_memory_and_the_stand_in(
    cupy_mpi: Mpi, stand_in: StandIn
) -> None:
    done = script(cupy_mpi.python, "--host", **stand_in.environment())
    assert done.stderr == ""
    assert done.returncode == 0, done.stdout
    head = done.stdout.splitlines()[:4]
    assert head[1] == "# device    host:0 host memory"
    assert head[2].endswith("NCCL 2.23.4")
    assert head[3].split() == ["check", "found", "bound", "verdict"]
    lines = lines_of(done)
    once = {"identity", "memory", "copies", "communicators", "product in bf16", "kernel of 1.000 ms", "sleep of 1 ms"}
    judged = ALONE | TWO | once | {"spin of 1 ms", "clean exit", "clean exit, two GPUs"}
    assert [name for name in judged if not lines[name].endswith(OK)] == []
    for what in ("a copy", "two GPUs"):
        for check in ("a started all-reduce", "a kernel", "all-reduce beside a kernel", "products beside all-reduces"):
            reason = "SKIPPED: streams of host memory do not run beside each other"
            assert lines[f"{check}, {what}"].endswith(reason)
    assert done.stdout.splitlines()[-1].startswith("OK (")


def test_a_wrong_bit_fails_the_check_that_saw_it_and_the_whole(cupy_mpi: Mpi, stand_in: StandIn) -> None:
    done = script(cupy_mpi.python, "--host", **stand_in.environment(fault="wrong:1:0"))
    assert done.returncode == 1
    wrong = lines_of(done)["allreduce of bf16, two GPUs"]
    assert wrong.split()[5:10] == ["rank", "1:", "1", "of", "1003"]
    assert wrong.endswith(FAILED)
    assert done.stdout.splitlines()[-1].startswith("FAILED: allreduce of bf16, two GPUs (")


def test_the_checks_of_one_rank_see_a_wrong_bit_too(cupy_mpi: Mpi, stand_in: StandIn) -> None:
    done = script(cupy_mpi.python, "--host", "--launcher", "/none", **stand_in.environment(fault="wrong:0:0"))
    assert done.returncode == 1
    lines = lines_of(done)
    assert lines["allreduce of bf16, a copy"].split()[5:8] == ["1", "of", "1003"]
    assert lines["allreduce of bf16, a copy"].endswith(FAILED)
    assert lines["two GPUs"].endswith(
        "SKIPPED: --launcher /none: no such program; use auto, srun, or the path of an mpiexec"
    )
    assert not TWO & set(lines)


def test_two_ranks_of_which_one_waits_for_good_are_ended_and_have_failed(
    cupy_mpi: Mpi, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in stand_in.environment(fault="lost:1:3").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "executable", cupy_mpi.python)
    found: list[Row] = []
    device_check.check_pair(["--host", "--launcher", cupy_mpi.mpiexec], 2, 5.0, found)
    assert found[-1].check == "clean exit, two GPUs"
    assert found[-1].found.endswith("before the last check")
    assert found[-1].verdict == FAILED


@pytest.mark.parametrize(
    ("gpus", "reason"), [(1, "one is visible"), (0, "the checks of one have not come to their end")]
)
def test_without_two_gpus_what_needs_them_is_skipped(
    gpus: int, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found: list[Row] = []
    device_check.check_pair([], gpus, 1.0, found)
    assert found == [Row("two GPUs", "-", "-", f"SKIPPED: {reason}")]


def test_a_child_that_takes_too_long_is_ended_and_has_failed(capsys: pytest.CaptureFixture[str]) -> None:
    assert device_check.check(["--host"], limit=0.01) == 1
    printed = capsys.readouterr().out.splitlines()
    assert "status -15 before the last check" in printed[-3]
    assert printed[-2].endswith("SKIPPED: the checks of one have not come to their end")
    assert printed[-1].startswith("FAILED: clean exit (")


@pytest.mark.parametrize(
    ("status", "seconds", "verdict"), [(0, 0.5, OK), (0, 11.0, FAILED), (0, 0.0, FAILED), (-6, 0.1, FAILED)]
)
def test_an_exit_is_clean_that_is_quick_and_without_an_error(status: int, seconds: float, verdict: str) -> None:
    assert device_check.clean_exit("clean exit", status, seconds).verdict == verdict


@pytest.mark.parametrize(("told", "failed"), [(1, []), (2, [Row("rows", "1 have come", "2", FAILED)])])
def test_a_row_that_a_library_has_written_into_is_missed(
    told: int, failed: list[Row], capsys: pytest.CaptureFixture[str]
) -> None:
    row = Row("a", "1", "1", OK)
    torn = '{"row": NCCL INFO ["b", "1", "1", "OK"]}'
    program = f"print({json.dumps(json.dumps({'row': row}))}); print({torn!r}); print('{{\"end\": {told}}}')"
    found: list[Row] = []
    ended = device_check.follow([sys.executable, "-c", program], 10.0, found)
    assert (ended.status, found) == (0, [row, *failed])


def test_what_libraries_print_in_between_is_passed_on_as_a_comment(capsys: pytest.CaptureFixture[str]) -> None:
    output = io.StringIO('node7:12 [0] NCCL INFO Bootstrap\n{"end": true}\n\n17\n')
    assert list(device_check.messages(output)) == [{"end": True}]
    assert capsys.readouterr().out == "# node7:12 [0] NCCL INFO Bootstrap\n# 17\n"


def test_skipped_rows_are_counted_and_do_not_fail(capsys: pytest.CaptureFixture[str]) -> None:
    found = [Row("a", "1", "1", OK), Row("b", "-", "-", f"{SKIPPED}: no b")]
    assert device_check.verdict(found) == 0
    assert device_check.verdict([*found, Row("c", "2", "1", FAILED)]) == 1
    assert capsys.readouterr().out == "OK (2 checks, 1 skipped)\nFAILED: c (3 checks, 1 skipped)\n"


def test_a_check_that_breaks_is_a_row_and_the_others_are_made() -> None:
    def broken(bench: Bench) -> Iterator[Row]:
        raise RuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered\nmore")

    first, second, _ = rows(bench(), [broken, detection])
    assert first.verdict == FAILED
    assert first.found == "RuntimeError: cudaErrorIllegalAddress: an illegal memory access was encountered"
    assert second.verdict == OK


def test_all_checks_are_made() -> None:
    names = [check.__name__ for check in CHECKS]
    assert names == [
        "detection", "copies", "collectives", "products", "overlap", "rates", "spins", "phases", "energy",
    ]  # fmt: skip


def test_without_nccl_what_needs_it_is_skipped_with_the_reason() -> None:
    found = {row.check: row.verdict for row in rows(bench())}
    assert found["collectives"] == found["overlap"] == "SKIPPED: the host device has no NCCL"


def facts(name: str, gigabytes: float) -> GpuFacts:
    return GpuFacts(
        kind="cuda",
        index=0,
        name=name,
        uuid="GPU-1",
        pci="0000:01:00.0",
        driver="12.8",
        runtime="12.9",
        cupy="14.2.0",
        memory_bytes=round(gigabytes * 1e9),
    )


@pytest.mark.parametrize(
    ("name", "gigabytes", "spec"),
    [
        ("NVIDIA H100 80GB HBM3", 85.0, "h100"),
        ("NVIDIA H200", 150.1, "h200"),
        ("NVIDIA GH200 480GB", 101.0, "gh200"),
        ("NVIDIA A100-SXM4-40GB", 42.4, "a100-40gb"),
        ("NVIDIA A100-SXM-64GB", 68.4, "a100-64gb"),
        ("AMD Instinct MI250X", 68.7, "mi250x-gcd"),
        ("AMD Instinct MI300X", 206.0, "mi300x"),
    ],
)
def test_the_datasheet_is_the_one_of_the_name_and_the_memory(name: str, gigabytes: float, spec: str) -> None:
    found, reason = datasheet(facts(name, gigabytes), "")
    assert found is not None
    assert (found.name, reason) == (spec, "")


@pytest.mark.parametrize(
    ("name", "gigabytes", "reason"),
    [
        ("NVIDIA L40S", 48.0, "no shipped GPU is called like NVIDIA L40S; --gpu names one"),
        (
            "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
            10.0,
            "NVIDIA H100 80GB HBM3 MIG 1g.10gb has 10.00 GB of memory, not the 80.00 GB of h100; --gpu names another",
        ),
    ],
)
def test_a_gpu_without_a_datasheet_of_its_own_is_compared_with_none(name: str, gigabytes: float, reason: str) -> None:
    assert datasheet(facts(name, gigabytes), "") == (None, reason)


def test_a_datasheet_that_is_named_is_taken_whatever_the_gpu_is_called() -> None:
    found, _ = datasheet(facts("host memory", 1.0), "h100")
    assert found is not None
    assert found.name == "h100"


def measured(tmp_path: Path, fp32: float, bandwidth: float) -> dict[str, Row]:
    """Rows of the rates of host memory beside a datasheet with these figures."""
    spec = tmp_path / "mine.yaml"
    sources = {"peak_flops": "here", "memory_bandwidth": "here", "memory_bytes": "here"}
    figures = {"peak_flops": {"fp32": fp32}, "memory_bandwidth": bandwidth, "memory_bytes": 1}
    spec.write_text(json.dumps({"name": "mine", "vendor": "me", **figures, "source": sources}))
    return {row.check: row for row in rates(bench(spec=str(spec)))}


def test_rates_far_from_the_datasheet_fail_on_both_sides(tmp_path: Path) -> None:
    """No host multiplies with an EFLOP/s, or copies with less than a KB/s."""
    found = measured(tmp_path, 1e18, 1e3)
    assert found["rate in fp32"].verdict == FAILED
    assert found["rate in fp32"].bound == "30% to 102% of mine"
    assert found["memory bandwidth"].verdict == FAILED
    assert found["rate in fp16"].verdict == "SKIPPED: the datasheet has no figure for it"


class Spinless(HostDevice):
    """Whose kernels end at once."""

    def spin(self, stream: Any, nanoseconds: int) -> None:
        """Do nothing."""


def test_a_kernel_that_ends_too_early_fails() -> None:
    driver = HostDriver()
    device = driver.open(0)
    found = list(spins(bench(driver, Spinless(device.facts, device._queue))))
    assert [row.verdict for row in found] == [FAILED, FAILED]
    assert found[0].bound.startswith("-2 µs to ")


class Transposing(HostDevice):
    """Whose products mix up what is given to them."""

    def multiplier(self, stream: Any, precision: Any) -> Any:
        """Products of the right operand with itself."""
        right = HostMultiplier(precision)

        def multiply(left: int, second: int, out: int, *, rows: int, columns: int, k: int) -> None:
            right.multiply(left, left, out, rows=rows, columns=columns, k=k)

        return SimpleNamespace(multiply=multiply, close=right.close)


def test_products_of_the_wrong_operands_fail_in_every_precision() -> None:
    driver = HostDriver()
    device = driver.open(0)
    found = list(products(bench(driver, Transposing(device.facts, device._queue))))
    assert [row.verdict for row in found] == [FAILED] * 5


class Timeline:
    """A device on whose two streams a share of the shorter work is hidden behind the longer."""

    def __init__(self, shared: float) -> None:
        self.facts = facts("a GPU", 1.0)
        self.shared = shared
        self.busy: dict[str, float] = {}

    def timed_event(self) -> Any:
        return SimpleNamespace(record=lambda stream: None, synchronize=lambda: None)

    def elapsed(self, begin: Any, end: Any) -> float:
        """Of all work since the last question."""
        apart = list(self.busy.values())
        self.busy = {}
        return sum(apart) - (self.shared * min(apart) if len(apart) > 1 else 0)


@pytest.mark.parametrize(("shared", "verdict"), [(0.9, OK), (0.3, OK), (0.1, FAILED), (0.0, FAILED)])
def test_overlap_is_the_share_of_the_shorter_work_that_costs_no_time(shared: float, verdict: str) -> None:
    timeline: Any = Timeline(shared)

    def taking(stream: str, seconds: float) -> Any:
        def launch() -> None:
            timeline.busy[stream] = timeline.busy.get(stream, 0) + seconds

        return stream, launch

    row = hidden_share(bench(device=timeline), taking("compute", 1e-4), taking("communication", 1e-5), "a copy")
    assert row.verdict == verdict
    assert row.check == "products beside all-reduces, a copy"
    assert row.found.startswith(f"{shared:.0%} hidden (2.000 ms and 1.000 ms")


class Counting(Meter):
    """A GPU that takes so many watts."""

    source = "counter"

    def __init__(self, watts: float, limit: float) -> None:
        self.watts, self.limit = watts, limit
        self.reads = 0
        self.closed = False

    def read(self) -> Reading:
        """Two readings that are the time of the work apart, as nearly as the host keeps it."""
        self.reads += 1
        joules = self.watts * HOST.energy_seconds * self.reads
        return Reading(joules, 1980.0, 2619.0, self.limit, 0.0)

    def close(self) -> None:
        """Remember it."""
        self.closed = True


@pytest.mark.parametrize(
    ("watts", "limit", "verdict", "bound"),
    [
        (400.0, 700.0, OK, "5 W to 840 W"),
        (400.0, math.nan, OK, "≥ 5 W"),
        (0.0, 700.0, FAILED, "5 W to 840 W"),
        (90_000.0, 700.0, FAILED, "5 W to 840 W"),
    ],
)
def test_power_lies_between_that_of_an_idle_card_and_the_limit(
    watts: float, limit: float, verdict: str, bound: str
) -> None:
    meter = Counting(watts, limit)
    power, clocks = energy(bench(HostDriver(meter=meter)))
    assert (power.verdict, power.bound) == (verdict, bound)
    assert clocks.verdict == OK
    assert meter.closed


def test_without_a_meter_energy_is_skipped_with_what_brings_it() -> None:
    (row,) = energy(bench())
    assert row.verdict == "SKIPPED: no NVML for this GPU; pip install 'dlbench[gpu]' brings pynvml"
