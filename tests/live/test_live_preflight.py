"""What a run refuses before it begins: once, on one line, with exit code 2 and with what would be right."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from launch import IMPLEMENTATIONS, Completed, Mpi, find_mpi
from live_runs import SMALL, last_line, on_mpich, run, said, valid_record

SMALL_MEMORY = """
from dlbench.runtime import hosts
from dlbench.runtime.entry import main

hosts.available_memory = lambda: 50_000_000
main("dp")
"""


def refusal(completed: Completed) -> str:
    """The one line of a refused run."""
    assert completed.returncode == 2, completed
    assert completed.stdout == ""
    (line,) = said(completed.stderr)
    assert "Traceback" not in completed.stderr
    return line


def test_an_unknown_option_is_named_once_with_what_was_meant(mpi: Mpi) -> None:
    line = refusal(run(mpi, "dp", 4, "--iteratons", "3"))

    assert line == "unknown option --iteratons, did you mean --iterations?; see 'python -m dlbench.dp --help'"


def test_a_world_size_that_does_not_fit_is_answered_with_ones_that_do(mpi: Mpi) -> None:
    assert refusal(run(mpi, "dp_pp", 3, "--pp", "2")) == "world size 3 is not a multiple of pp = 2; use 2, 4, 6, …"


@on_mpich
def test_an_unknown_model_is_answered_with_the_known_ones(mpi: Mpi) -> None:
    line = refusal(run(mpi, "dp", 2, "--model", "gpt5"))

    assert line.startswith("unknown model 'gpt5'")
    assert "llama3-70b, llama3-8b" in line


@on_mpich
def test_a_delay_of_an_op_that_is_not_there_is_refused(mpi: Mpi) -> None:
    assert refusal(run(mpi, "dp", 2, "--delay", "1:18:5")) == "--delay 1:18:5: rank 1 has ops 0 to 17"


@on_mpich
def test_a_mistake_in_a_configuration_file_names_the_file(mpi: Mpi, tmp_path: Path) -> None:
    file = tmp_path / "site.yaml"
    file.write_text("iteratons: 3\n")

    line = refusal(run(mpi, "dp", 2, "--config", str(file)))

    assert str(file) in line
    assert "did you mean" in line


@on_mpich
def test_a_place_for_the_record_that_cannot_be_is_refused(mpi: Mpi, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()

    assert str(file) in refusal(run(mpi, "dp", 2, "--record", str(file / "records")))


def test_messages_beyond_the_memory_are_refused_with_the_scale_that_fits(mpi: Mpi, tmp_path: Path) -> None:
    program = tmp_path / "small_memory.py"
    program.write_text(SMALL_MEMORY)
    options = ["--time-scale", "0.0001", "--iterations", "1", "--record", str(tmp_path)]

    line = refusal(mpi.launch(2, [str(program), *options]))

    # ViT-H: 632 404 480 gradients of 2 bytes, sent and received, on two ranks.
    found = re.fullmatch(
        r"host \S+ has 50\.00 MB of memory available, but the message buffers of its ranks need 5\.059 GB; "
        r"--scale (\S+) would fit",
        line,
    )
    assert found, line
    assert 0.009 < float(found[1]) <= 0.05 / 5.059
    completed = mpi.launch(2, [str(program), *options, "--scale", found[1]])
    assert (completed.returncode, last_line(completed.stdout)) == (0, "OK"), completed
    assert valid_record(tmp_path).header.scale == float(found[1])


def test_the_launcher_of_another_mpi_is_refused(mpi: Mpi) -> None:
    (name,) = set(IMPLEMENTATIONS) - {mpi.name}
    other = find_mpi(name)
    if not isinstance(other, Mpi):
        pytest.skip(other)

    line = refusal(run(replace(mpi, python=other.python), "dp", 3))

    assert "the launcher does not belong to" in line
    assert "use the mpiexec that belongs to this MPI (`dlbench run` finds it)" in line


def test_one_process_of_a_larger_allocation_is_refused(mpi: Mpi) -> None:
    line = refusal(alone(mpi, "-m", "dlbench.dp", SLURM_NTASKS="4"))

    assert line.startswith("MPI sees a world of 1 rank, but SLURM_NTASKS=4: ")
    assert "srun --mpi=pmi2" in line


def test_a_variable_that_another_launcher_has_left_does_not_count(mpi: Mpi, tmp_path: Path) -> None:
    options = ["--iterations", "1", "--record", str(tmp_path), *SMALL]
    inherited = {"mpich": "OMPI_COMM_WORLD_SIZE", "openmpi": "PMI_SIZE"}[mpi.name]

    completed = alone(mpi, "-m", "dlbench", "run", "dp", "-n", "2", *options, **{inherited: "4"})

    assert (completed.returncode, last_line(completed.stdout)) == (0, "OK"), completed
    launcher = {"mpich": "PMI", "openmpi": "Open MPI mpiexec"}[mpi.name]
    assert valid_record(tmp_path).header.backend.launcher == launcher


def test_without_an_mpi_library_the_remedy_comes_first(mpi: Mpi) -> None:
    nowhere = {"MPI4PY_LIBMPI": "/nowhere"}

    for completed in (
        mpi.launch(3, ["-m", "dlbench.dp"], env=nowhere),
        alone(mpi, "-m", "dlbench", "run", "dp", "-n", "3", **nowhere),
    ):
        assert refusal(completed).startswith(
            "install an MPI: pip install 'dlbench[mpich]', or load your site's MPI module; "
        )


def test_dlbench_run_finds_the_launcher_of_the_mpi_in_use(mpi: Mpi, tmp_path: Path) -> None:
    options = ["--iterations", "1", "--check", "--record", str(tmp_path), *SMALL]

    completed = alone(mpi, "-m", "dlbench", "run", "dp", "-n", "4", *options)

    assert (completed.returncode, last_line(completed.stdout)) == (0, "OK"), completed
    header = valid_record(tmp_path).header
    assert header.world_size == 4
    assert {"mpich": "MPICH", "openmpi": "Open MPI"}[mpi.name] in header.backend.library


def test_dlbench_run_refuses_before_it_starts_anything(mpi: Mpi) -> None:
    line = refusal(alone(mpi, "-m", "dlbench", "run", "dp_pp", "-n", "3", "--pp", "2"))

    assert line == "world size 3 is not a multiple of pp = 2; use 2, 4, 6, …"


def alone(mpi: Mpi, *args: str, **environment: str) -> Completed:
    """Run Python without a launcher."""
    completed = subprocess.run(
        [mpi.python, *args],
        env={**os.environ, "HYDRA_IFACE": "lo", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return Completed(completed.returncode, completed.stdout, completed.stderr)
