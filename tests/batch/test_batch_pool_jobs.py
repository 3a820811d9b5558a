"""From the experiment in a folder to jobs that can be started: their nodes, their classes, their command lines."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from dlbench.allocators.experiment import Experiment, Job, Plan, write_plan
from dlbench.errors import OptionError, PreflightError, SpecError
from dlbench.slurm import pool_jobs
from dlbench.slurm.pool_jobs import PoolExperiment, load_experiment

INSIDE = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "n[1-6]"}
TOPOLOGY = "SwitchName=s1 Nodes=n[1-2]\nSwitchName=s2 Nodes=n[3-6]\nSwitchName=g Switches=s[1-2]\n"
SMALL: dict[str, Any] = {"scale": 0.001, "iterations": 20}


def job(name: str, gpus: int, nodes: str = "", **changes: Any) -> Job:
    """A job of DP; the names of its nodes are separated by blanks."""
    plain: dict[str, Any] = {"strategy": "dp", "model": "vit-b", "options": SMALL, "seed": 5}
    return Job(name=name, gpus=gpus, nodes=tuple(nodes.split()), **(plain | changes))


def reserved(name: str, gpus: int, nodes: str, **changes: Any) -> Job:
    return job(name, gpus, nodes, placement="intra-l1", **changes)


def write(folder: Path, *jobs: Job, system: str = "cluster", mode: str = "reserved", gpus_per_node: int = 4) -> Path:
    experiment = Experiment(name="trial", kind="concurrent", timeout_seconds=240, jobs=jobs)
    gpus = sum(job.gpus for job in jobs)
    plan = Plan(
        system=system,
        mode=mode,  # type: ignore[arg-type]
        seed=1,
        gpus=gpus,
        gpus_per_node=gpus_per_node,
        experiments=(experiment,),
    )
    write_plan(plan, folder / "experiment.yaml")
    return folder


def load(folder: Path, environment: dict[str, str] = INSIDE, grace: float = 25.0) -> PoolExperiment:
    return load_experiment(folder, environment, grace)


def recorded_as(experiment: PoolExperiment) -> str:
    """Name of the experiment in the records of its first job."""
    (name,) = (option for option in experiment.jobs[0].options if option.startswith("--experiment="))
    return name.partition("=")[2]


def test_experiments_of_two_sets_that_have_one_name_are_two_in_their_records(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("first", "again", "other")]
    for folder, gpus in zip(folders, (4, 4, 8), strict=True):
        folder.mkdir()
        write(folder, reserved("a", gpus, "n1" if gpus == 4 else "n1 n2"))
    first, again, other = (load(folder) for folder in folders)
    assert first.name == other.name == "trial"
    assert recorded_as(first) == recorded_as(again) != recorded_as(other)
    assert re.fullmatch("trial-[0-9a-f]{8}", recorded_as(first))


def test_a_job_gets_its_nodes_and_the_options_of_every_run(tmp_path: Path) -> None:
    write(tmp_path, reserved("a", 8, "n3 n1"), reserved("b", 4, "n2"))
    experiment = load(tmp_path)
    assert (experiment.name, experiment.timeout_seconds, experiment.ranks) == ("trial", 240, 12)
    first, second = experiment.jobs
    assert (first.nodes, first.gpus, first.per_node, first.placement) == (("n3", "n1"), 8, 4, "intra-l1")
    assert (second.nodes, second.gpus, second.per_node) == (("n2",), 4, 4)
    assert first.options == (
        *("--model=vit-b", f"--record={tmp_path}/results", f"--experiment={recorded_as(experiment)}"),
        *("--job=a", "--placement=intra-l1"),
        *("--concurrent-jobs=2", "--label=mode=reserved", "--grace=20", "--scale=0.001", "--iterations=20"),
    )


def test_every_attempt_counts_the_seed_up(tmp_path: Path) -> None:
    (found,) = load(write(tmp_path, reserved("a", 4, "n1"))).jobs
    assert found.program(1)[:3] == [sys.executable, "-m", "dlbench.dp"]
    assert [found.program(attempt)[-1] for attempt in (1, 2, 7)] == ["--seed=5", "--seed=6", "--seed=11"]


def test_the_jobs_own_options_win(tmp_path: Path) -> None:
    write(tmp_path, reserved("a", 4, "n1", options={"grace": 3, "label": "fabric=ndr"}))
    (found,) = load(tmp_path).jobs
    assert found.options[-2:] == ("--grace=3", "--label=fabric=ndr")


def test_a_system_brings_its_name_and_its_flags(tmp_path: Path) -> None:
    experiment = load(write(tmp_path, reserved("a", 4, "n1"), system="leonardo"))
    assert "--system=leonardo" in experiment.jobs[0].options
    assert experiment.srun_flags == ()


def test_on_one_machine_the_nodes_of_a_plan_are_no_hosts(tmp_path: Path) -> None:
    write(tmp_path, reserved("a", 2, "slot000 slot001"), system="local", gpus_per_node=1)
    (found,) = load(tmp_path, {}).jobs
    assert (found.nodes, found.gpus) == ((), 2)
    assert {"--system=local", "--placement=intra-l1"} <= set(found.options)


@pytest.mark.parametrize(("options", "threads"), [({"compute": "gemm"}, {"OMP_NUM_THREADS": "2"}), ({}, {})])
def test_gemms_share_out_the_cores_of_the_machine_to_all_jobs(
    options: dict[str, Any], threads: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    jobs = [reserved(name, 2, f"{name}0 {name}1", options={**SMALL, **options}) for name in "ab"]
    experiment = load(write(tmp_path, *jobs, system="local", gpus_per_node=1), {})
    assert [found.environment for found in experiment.jobs] == [threads, threads]


def test_in_mode_queue_the_nodes_of_the_allocation_are_dealt_in_order_and_their_class_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_jobs, "slurm_output", lambda _: TOPOLOGY)
    write(tmp_path, job("a", 8), job("b", 3), job("c", 12), mode="queue")
    environment = {**INSIDE, "SLURM_JOB_NODELIST": "n[2-6],n1"}
    found = [(one.name, one.nodes, one.placement, one.per_node) for one in load(tmp_path, environment).jobs]
    assert found == [
        ("a", ("n2", "n3"), "intra-group", 4),
        ("b", ("n4",), "intra-l1", 3),
        ("c", ("n5", "n6", "n1"), "intra-group-same-l1-2", 4),
    ]


@pytest.mark.parametrize("topology", ["", "SwitchName=s1 Nodes=m[1-9]"])
def test_without_a_topology_of_these_nodes_there_is_no_class(
    topology: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_jobs, "slurm_output", lambda _: topology)
    (found,) = load(write(tmp_path, job("a", 8), mode="queue")).jobs
    assert found.placement == ""
    assert not any(option.startswith("--placement") for option in found.options)


def test_an_allocation_that_is_too_small_is_refused(tmp_path: Path) -> None:
    write(tmp_path, job("a", 16), job("b", 12), mode="queue")
    with pytest.raises(PreflightError, match="experiment trial needs 7 nodes, and SLURM job 77 has 6"):
        load(tmp_path)


def test_a_node_outside_of_the_allocation_is_refused(tmp_path: Path) -> None:
    write(tmp_path, reserved("a", 4, "n1"), reserved("b", 4, "n7"))
    with pytest.raises(PreflightError, match="job b: node n7 is not in SLURM job 77, which has 6 nodes; submit"):
        load(tmp_path)


@pytest.mark.parametrize("mode", ["reserved", "queue"])
def test_the_experiment_of_a_cluster_does_not_run_outside_of_an_allocation(mode: str, tmp_path: Path) -> None:
    one = reserved("a", 4, "n1") if mode == "reserved" else job("a", 4)
    write(tmp_path, one, system="leonardo", mode=mode)
    with pytest.raises(PreflightError, match="trial is for the nodes of leonardo; run it inside a SLURM allocation"):
        load(tmp_path, {})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "vit-c"}, "job a: unknown model 'vit-c'; did you mean"),
        ({"options": {"iteratoins": 3}}, "job a: unknown key iteratoins, did you mean iterations"),
        ({"options": {"iterations": 0}}, "job a: argument --iterations: expected an integer of 1 or more"),
        ({"options": {"record": "/tmp"}}, "job a: options: record is set by the pool for every run; leave it out"),
        ({"strategy": "dp_pp", "options": {"pp": 3}}, "job a: world size 4 is not a multiple of pp = 3"),
    ],
)
def test_a_job_that_no_rank_would_accept_is_refused_before_anything_starts(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=message):
        load(write(tmp_path, reserved("a", 4, "n1", **changes)))


def test_a_folder_without_an_experiment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=f"{tmp_path}/experiment.yaml"):
        load(tmp_path)


def test_a_plan_of_several_experiments_is_refused(tmp_path: Path) -> None:
    one = reserved("a", 4, "n1")
    experiments = tuple(
        Experiment(name=name, kind="baseline", timeout_seconds=240, jobs=(one,)) for name in ("first", "second")
    )
    plan = Plan(system="x", mode="reserved", seed=1, gpus=4, gpus_per_node=4, experiments=experiments)
    write_plan(plan, tmp_path / "experiment.yaml")
    with pytest.raises(SpecError, match="experiment.yaml: expected one experiment, found 2"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["a/b", "../a", "a b", "-a"])
def test_a_name_that_cannot_be_that_of_a_file_is_refused(name: str, tmp_path: Path) -> None:
    write(tmp_path, reserved(name, 4, "n1"))
    with pytest.raises(SpecError, match=r"at experiments\[0\].jobs\[0\].name: expected a name of letters, digits and"):
        load(tmp_path)
