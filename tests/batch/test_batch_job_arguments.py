"""What no rank would accept is found in a plan, and the file, the experiment and the job are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dlbench.allocators.experiment import Experiment, Job, Plan
from dlbench.errors import OptionError
from dlbench.slurm import job_arguments
from dlbench.slurm.job_arguments import JobArguments, check_plan, seed_option

FOLDER = Path("campaign")


def job(name: str, **changes: Any) -> Job:
    plain: dict[str, Any] = {"strategy": "dp", "model": "vit-b", "gpus": 4}
    return Job(name=name, **(plain | changes))


def plan(*experiments: tuple[Job, ...], system: str = "leonardo") -> Plan:
    """Experiments `mix-0`, `mix-1`, … of these jobs, whose nodes SLURM chooses."""
    return Plan(
        system=system,
        mode="queue",
        seed=1,
        gpus=64,
        gpus_per_node=4,
        experiments=tuple(
            Experiment(name=f"mix-{index}", kind="concurrent", timeout_seconds=60, jobs=jobs)
            for index, jobs in enumerate(experiments)
        ),
    )


def complaint(found: Plan, source: Path | None = None) -> str:
    with pytest.raises(OptionError) as error:
        check_plan(found, FOLDER, source)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_plan_that_every_rank_accepts_is_accepted() -> None:
    check_plan(plan((job("a", options={"backend": "nccl", "iterations": 3}), job("b", strategy="fsdp"))), FOLDER)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "nccl", "buffers": "host"}, "--backend nccl: its buffers are in the memory of the GPU"),
        ({"backend": "nccl", "persistent": True}, "--persistent is for collectives of MPI; leave it out"),
        ({"gemm-precision": "bf16"}, "--gemm-precision has no meaning with --compute sleep; use --compute gemm"),
        ({"backend": "nccl", "compute": "gemm", "dtype": "fp8"}, "--compute gemm cannot multiply in fp8: gemmEx"),
        ({"iteratoins": 3}, "unknown key iteratoins, did you mean iterations?"),
        ({"iterations": 0}, "argument --iterations: expected an integer of 1 or more, found '0'"),
        ({"iterations": True}, "iterations: expected a number or a text, found true"),
        ({"gpu": "h1000"}, "unknown gpu 'h1000'; did you mean"),
        ({"units": 4}, "dp has no option --units"),
        ({"delay": "4:0:1"}, "--delay 4:0:1: ranks are 0 to 3"),
        ({"config": "site.yaml"}, "config belongs on the command line, not into a configuration file"),
    ],
)
def test_what_a_rank_would_refuse_is_refused_with_the_words_of_the_rank(options: dict[str, Any], message: str) -> None:
    assert complaint(plan((job("a", options=options),))).startswith(f"experiment mix-0, job a: {message}")


@pytest.mark.parametrize("name", ["record", "no-record", "no_record", "concurrent_jobs", "model", "seed"])
def test_what_the_pool_says_of_every_run_no_job_says_in_any_spelling(name: str) -> None:
    told = complaint(plan((job("a", options={name: True}),)))
    assert told == f"experiment mix-0, job a: options: {name} is set by the pool for every run; leave it out"


def test_what_the_number_of_gpus_does_not_allow_is_refused() -> None:
    two = (job("a", strategy="dp_pp", gpus=8, options={"pp": 4}), job("b", strategy="dp_pp", gpus=6, options={"pp": 4}))
    assert complaint(plan(two)).startswith("experiment mix-0, job b: world size 6 is not a multiple of pp = 4")


def test_a_seed_that_no_run_takes_is_refused_though_seeds_differ_from_job_to_job() -> None:
    check_plan(plan((job("a", seed=2**63 - 1),)), FOLDER)
    told = complaint(plan((job("a", seed=1), job("b", seed=2**63))))
    assert told.startswith("experiment mix-0, job b: argument --seed: expected an integer below 2^63")


def test_the_file_of_a_plan_is_named_and_the_experiment_in_it() -> None:
    wrong = plan((job("a"),), (job("a"), job("b", model="vit-c")))
    told = complaint(wrong, Path("c/plan.yaml"))
    assert told.startswith("c/plan.yaml: experiment mix-1, job b: unknown model 'vit-c'; did you mean")


def test_jobs_that_differ_only_in_name_and_seed_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[int] = []
    monkeypatch.setattr(job_arguments, "check_request", lambda _, gpus: checked.append(gpus))
    many = tuple(job(f"j{number}", seed=number, gpus=4 if number % 2 else 8) for number in range(10))
    check_plan(plan(many, many), FOLDER)
    assert sorted(checked) == [4, 8]


def test_true_is_not_the_number_that_it_equals() -> None:
    jobs = (job("a", options={"iterations": 1}), job("b", options={"iterations": True}))
    assert complaint(plan(jobs)).startswith("experiment mix-0, job b: iterations: expected a number or a text")


def test_a_run_is_told_what_the_plan_says_and_ends_before_the_grace_of_the_pool() -> None:
    made = plan((job("a", options={"scale": 0.5}), job("b")))
    arguments = JobArguments(made, made.experiments[0], FOLDER, grace_seconds=10.0)
    options, request = arguments.of(made.experiments[0].jobs[0], "intra-l1")
    told = {"--record=campaign/results", "--placement=intra-l1", "--system=leonardo", "--grace=8", "--scale=0.5"}
    assert told <= set(options)
    assert (request.run.concurrent_jobs, request.run.label) == (2, {"mode": "queue"})
    assert [seed_option(5), seed_option(5, attempt=3)] == ["--seed=5", "--seed=7"]
