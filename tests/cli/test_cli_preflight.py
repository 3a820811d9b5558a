"""`dlbench preflight`: where its ranks are started, and when it is a rank itself."""

from __future__ import annotations

import os
import shlex
import sys
from itertools import dropwhile
from pathlib import Path

import pytest

from dlbench.cli.preflight import preflight, started_as_rank
from dlbench.errors import OptionError, UserError
from dlbench.slurm import job_launchers, launchers
from dlbench.slurm.launchers import Library

LIMITS = ["--clock-limit", "0.1", "--hop-timeout", "20.0"]
ALLOCATION = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_NUM_NODES": "3"}
PLAN = """
version: 1
system: {system}
mode: {mode}
seed: 0
gpus: 12
gpus_per_node: 4
experiments:
- name: tier
  kind: concurrent
  timeout_seconds: 60
  jobs:
  - {{name: a, strategy: dp, model: vit-h, gpus: 4, placement: {placement}, nodes: {first}}}
  - {{name: b, strategy: dp, model: vit-h, gpus: 2, placement: {placement}, nodes: {second}}}
"""


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """MPICH, an mpiexec for it, cores enough, and no trace of SLURM or of another launcher."""
    library = Library("MPICH Version: 5.0.2", None)
    for module in (launchers, job_launchers):
        monkeypatch.setattr(module, "loaded_library", lambda: library)
        monkeypatch.setattr(module, "find_mpiexec", lambda *_: "/opt/mpiexec")
        monkeypatch.setattr(module, "usable_cores", lambda: set(range(64)))
    for name in list(os.environ):
        if name.startswith(("SLURM", "PMI", "OMPI", "HYDRA")):
            monkeypatch.delenv(name)


def dry_run(capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    """The words of the command that would be started, its variables aside."""
    preflight([*argv, "--dry-run"])
    (line,) = capsys.readouterr().out.splitlines()
    return list(dropwhile(lambda word: "=" in word, shlex.split(line)))


def rank_command(words: list[str]) -> list[str]:
    """What a rank runs."""
    return words[words.index(sys.executable) :]


def test_ranks_on_this_machine_are_started_like_those_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    words = dry_run(capsys, "-n", "4", "--json", "--launcher-args=-prepend-rank")
    assert words[:4] == ["/opt/mpiexec", "-n", "4", "-prepend-rank"]
    assert rank_command(words) == [sys.executable, "-m", "dlbench.preflight", "-n", "4", *LIMITS, "--json"]


def test_without_a_number_the_tasks_of_the_allocation_count(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OptionError, match="how many ranks\\? e.g. dlbench preflight -n 4"):
        preflight([])
    monkeypatch.setenv("SLURM_NTASKS", "6")
    words = dry_run(capsys, "--launcher", "srun")
    assert words[:5] == ["srun", "--mpi=pmi2", "-K1", "-n", "6"]
    assert rank_command(words)[3:5] == ["-n", "6"]


def test_ranks_per_node_fill_the_nodes_of_the_allocation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ALLOCATION.items():
        monkeypatch.setenv(name, value)
    words = dry_run(capsys, "--ranks-per-node", "4", "--launcher", "srun")
    assert words[:5] == ["srun", "--mpi=pmi2", "-K1", "-n", "12"]
    assert words[words.index("-N") :][:5] == ["-N", "3", "--ntasks-per-node=4", "-w", "n1,n2,n3"]
    assert rank_command(words)[3:7] == ["-n", "12", "--ranks-per-node", "4"]
    words = dry_run(capsys, "--ranks-per-node", "4", "-n", "5", "--launcher", "mpiexec")
    assert words[:7] == ["/opt/mpiexec", "-hosts", "n1,n2", "-ppn", "4", "-n", "5"]


def test_more_ranks_than_the_nodes_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ALLOCATION.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(OptionError) as error:
        preflight(["--ranks-per-node", "4", "-n", "13", "--launcher", "srun"])
    assert str(error.value) == "-n 13 with --ranks-per-node 4 needs 4 nodes, and the allocation has 3"


def experiment(folder: Path, system: str, mode: str, placement: str, first: str, second: str) -> str:
    plan = PLAN.format(system=system, mode=mode, placement=placement, first=first, second=second)
    (folder / "experiment.yaml").write_text(plan)
    return str(folder)


def test_an_experiment_is_checked_on_all_of_its_nodes_in_the_order_of_slurm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ALLOCATION.items():
        monkeypatch.setenv(name, value)
    folder = experiment(tmp_path, "topology.conf", "reserved", "intra-l1", "[n3]", "[n1]")
    words = dry_run(capsys, folder, "--launcher", "srun")
    assert words[:5] == ["srun", "--mpi=pmi2", "-K1", "-n", "8"]
    assert words[words.index("-w") + 1] == "n1,n3"
    assert rank_command(words)[3:7] == ["-n", "8", "--ranks-per-node", "4"]


def test_an_experiment_on_this_machine_has_the_ranks_of_all_its_jobs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = experiment(tmp_path, "local", "queue", "null", "[]", "[]")
    words = dry_run(capsys, folder)
    assert words[words.index("-n") + 1] == "6"
    assert rank_command(words)[3:] == ["-n", "6", *LIMITS]


def test_an_experiment_does_not_take_a_number_of_ranks(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="an experiment says itself how many ranks it has; leave -n and"):
        preflight([str(tmp_path), "-n", "4"])


RANKS = [
    ({"PMI_SIZE": "4", "PMI_RANK": "1"}, None, True),
    ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1"}, 4, True),
    ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "1", "SLURM_STEP_ID": "0"}, None, True),
    ({"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_STEP_ID": "3"}, 1, True),
    ({"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_STEP_ID": "3"}, 8, False),  # srun --pty bash
    ({"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967290"}, None, False),  # salloc
    ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, None, False),  # a batch script
    ({}, None, False),
]


@pytest.mark.parametrize(("environment", "asked", "is_rank"), RANKS)
def test_a_rank_is_told_from_a_batch_script_and_a_shell(
    environment: dict[str, str], asked: int | None, is_rank: bool
) -> None:
    assert started_as_rank(environment, asked) == is_rank


def test_a_rank_becomes_the_light_process_of_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setenv("PMI_RANK", "1")
    assert dry_run(capsys, "--json") == [sys.executable, "-m", "dlbench.preflight", *LIMITS, "--json"]
    assert dry_run(capsys, "-n", "2", "--launcher", "/opt/mpiexec")[0] == "/opt/mpiexec"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--ranks-per-nod", "4"], "did you mean --ranks-per-node?"),
        (["-n", "0"], "expected an integer of 1 or more"),
        (["/nowhere"], "/nowhere/experiment.yaml: no such file or directory"),
    ],
)
def test_wrong_options_are_refused_before_anything_starts(argv: list[str], message: str) -> None:
    with pytest.raises(UserError) as error:
        preflight(argv)
    assert message in str(error.value)
