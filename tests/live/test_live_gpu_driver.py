"""What a run asks of the GPU's driver and when, under a real mpiexec; a stand-in for libcuda writes it down."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launch import Mpi
from live_runs import command, on_mpich, said

SOURCE = Path(__file__).parents[1] / "accelerator" / "stand_in" / "cuda.c"
_FLAGS = ("-std=gnu11", "-Wall", "-Wextra", "-shared", "-fPIC")
HAS_DRIVER = Path("/dev/nvidiactl").exists() or Path("/dev/kfd").exists()
GPU_BUFFERS = ("--no-record", "--iterations", "1", "--buffers", "gpu")
NCCL = ("--no-record", "--backend", "nccl")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a libcuda.so.1, and of a CuPy that is not there: what follows the driver is not of interest here."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("no C compiler: the stand-in for libcuda needs cc")
    folder = tmp_path_factory.mktemp("driver")
    subprocess.run([compiler, *_FLAGS, "-o", folder / "libcuda.so.1", SOURCE], check=True, timeout=60)
    (folder / "cupy.py").write_text("print('cupy is loaded', flush=True)\nraise ImportError('of no interest here')\n")
    return folder


def environment(driver: Path, **more: str) -> dict[str, str]:
    """Variables of a rank on a host with this driver."""
    libraries = os.pathsep.join(filter(None, [str(driver), os.environ.get("LD_LIBRARY_PATH", "")]))
    return {"LD_LIBRARY_PATH": libraries, "PYTHONPATH": str(driver), **more}


def test_every_rank_has_its_gpu_current_before_mpi_is_even_loaded(mpi: Mpi, driver: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"

    completed = mpi.launch(3, [*command("dp"), *GPU_BUFFERS], env=environment(driver, STAND_IN_CUDA_LOG=str(log)))

    assert sorted(log.read_text().splitlines()) == [
        f"GPU {rank} before MPI is loaded" for rank in range(3) for _ in ("made", "current")
    ]
    assert completed.returncode == 2
    assert "CuPy is installed, but does not load: of no interest here" in said(completed.stderr)[0]


@on_mpich
def test_a_rank_that_sees_one_gpu_has_that_one(mpi: Mpi, driver: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    one = environment(driver, STAND_IN_CUDA_LOG=str(log), STAND_IN_CUDA_GPUS="1")

    mpi.launch(2, [*command("dp"), *GPU_BUFFERS], env=one)

    assert log.read_text().splitlines() == ["GPU 0 before MPI is loaded"] * 4


@on_mpich
@pytest.mark.parametrize(
    ("options", "ending"), [((), (0, False)), (("--backend", "nccl"), (2, True))], ids=["MPI on the host", "NCCL"]
)
def test_no_gpu_is_touched_for_an_mpi_that_does_not_read_its_memory(
    mpi: Mpi, driver: Path, tmp_path: Path, options: tuple[str, ...], ending: tuple[int, bool]
) -> None:
    log = tmp_path / "log"

    completed = mpi.launch(
        1, [*command("dp"), *GPU_BUFFERS[:3], *options], env=environment(driver, STAND_IN_CUDA_LOG=str(log))
    )

    # NCCL gets as far as CuPy, which is not there.
    assert (completed.returncode, "does not load: of no interest here" in completed.stderr) == ending
    assert not log.exists()


@on_mpich
@pytest.mark.parametrize("where", ["load", "cuInit", "cuDevicePrimaryCtxRetain"])
def test_a_driver_that_hangs_before_mpi_is_reported_at_the_limit_of_the_start(
    mpi: Mpi, driver: Path, where: str
) -> None:
    hanging = environment(driver, STAND_IN_CUDA_HANG=where, DLBENCH_START_TIMEOUT="2.5")
    started = time.monotonic()

    completed = mpi.launch(2, [*command("dp"), *GPU_BUFFERS], env=hanging)

    assert time.monotonic() - started < 10
    assert completed.returncode == 1
    (line,) = [line for line in said(completed.stderr) if line.startswith("FAILED: hang: ")]
    assert re.search(r"rank \d \(\S+, cpu\) is in selecting the GPU after ", line)
    assert line.endswith("; the limit is DLBENCH_START_TIMEOUT 2.5")


@pytest.mark.parametrize("where", ["load", "cuInit"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_driver_that_hangs_while_the_gpu_is_opened_is_reported_at_the_time_limit(
    mpi: Mpi, driver: Path, where: str, ranks: int
) -> None:
    hanging = environment(driver, STAND_IN_CUDA_HANG=where)
    started = time.monotonic()

    completed = mpi.launch(ranks, [*command("dp"), *NCCL, "--timeout", "2.5"], env=hanging)

    assert time.monotonic() - started < 15
    assert completed.returncode == 1
    (line,) = [line for line in said(completed.stderr) if line.startswith("FAILED: hang: ")]
    assert re.search(r"rank \d \(\S+, cpu\) is in opening the GPU after ", line)
    assert line.endswith("; the limit is --timeout 2.5")


@pytest.mark.parametrize("options", [GPU_BUFFERS, (*NCCL, "--grace", "1")], ids=["selecting", "opening"])
def test_a_signal_ends_a_rank_whose_driver_hangs_while_it_is_loaded(
    mpi: Mpi, driver: Path, options: tuple[str, ...]
) -> None:
    with mpi.start(1, [*command("dp"), *options], env=environment(driver, STAND_IN_CUDA_HANG="load")) as job:
        (pid,) = job.rank_pids()
        wait_until_loaded(pid, driver / "libcuda.so.1")
        os.kill(pid, signal.SIGTERM)
        completed = job.wait(20)

    assert completed.returncode == 128 + signal.SIGTERM
    (line,) = said(completed.stderr)
    assert re.fullmatch(
        r"FAILED: SIGTERM on rank 0 \(\S+, cpu\); (selecting|opening) the GPU was still running [\d.]+ s "
        r"after the signal",
        line,
    )


def wait_until_loaded(pid: int, library: Path) -> None:
    """Wait until a process maps a library, in whose constructor it then is."""
    deadline = time.monotonic() + 20
    while str(library) not in Path(f"/proc/{pid}/maps").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_calibration_whose_driver_hangs_ends_at_the_limit_and_by_ctrl_c(driver: Path, tmp_path: Path) -> None:
    hanging = {**os.environ, **environment(driver, STAND_IN_CUDA_HANG="load")}
    calibrate = [sys.executable, "-m", "dlbench", "calibrate"]

    ended = subprocess.run(
        calibrate,
        env={**hanging, "DLBENCH_START_TIMEOUT": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    with subprocess.Popen(calibrate, env=hanging, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as interrupted:
        wait_until_loaded(interrupted.pid, driver / "libcuda.so.1")
        interrupted.send_signal(signal.SIGINT)
        _, words = interrupted.communicate(timeout=10)

    assert ended.returncode == 1
    assert said(ended.stderr) == [
        "FAILED: hang: the GPU is not open after 1 s; the limit is DLBENCH_START_TIMEOUT, and `dlbench doctor` says "
        "which library hangs"
    ]
    assert (interrupted.returncode, words) == (-signal.SIGINT, "")
    assert list(tmp_path.iterdir()) == []


@on_mpich
def test_cupy_is_loaded_by_a_run_on_gpus_of_a_host_with_a_driver_and_by_no_other(mpi: Mpi, driver: Path) -> None:
    on_cpus, on_gpus = [*command("dp"), *GPU_BUFFERS[:3]], [*command("dp"), *NCCL]

    assert "cupy is loaded" in mpi.launch(1, on_gpus, env=environment(driver)).stdout
    assert "cupy is loaded" not in mpi.launch(1, on_cpus, env=environment(driver)).stdout
    if HAS_DRIVER:
        pytest.skip("this host has a driver")
    without = mpi.launch(1, on_gpus, env={"PYTHONPATH": str(driver)})
    assert (without.returncode, without.stdout) == (2, "")
    (line,) = said(without.stderr)
    assert line.endswith(": no GPU driver on this host; run on a node with GPUs, or have the driver installed")
