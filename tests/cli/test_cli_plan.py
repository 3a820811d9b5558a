"""`dlbench plan`: the table of a plan, the file, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dlbench.allocators.experiment import read_plan
from dlbench.cli import main as command_line

CONF = """\
SwitchName=l0 Nodes=n[1-4]
SwitchName=l1 Nodes=n[5-8]
SwitchName=l2 Nodes=n[9-12]
SwitchName=l3 Nodes=n[13-16]
SwitchName=g0 Switches=l[0-1]
SwitchName=g1 Switches=l[2-3]
"""
MACHINE = ("--system", "leonardo", "--topology", "topology.conf")

Answer = tuple[int, str, str]


@pytest.fixture
def dlbench(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    """Run `dlbench plan` where topology.conf is; gives exit code, stdout and stderr."""
    (tmp_path / "topology.conf").write_text(CONF)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["dlbench", "plan", *arguments])
        with pytest.raises(SystemExit) as leave:
            command_line.main()
        printed = capsys.readouterr()
        return int(str(leave.value.code)), printed.out, printed.err

    return run


def test_the_table_has_a_line_for_every_experiment_of_the_plan(dlbench: Any, tmp_path: Path) -> None:
    code, out, _ = dlbench(*MACHINE, "--pattern", "uniform", "--sizes", "16", "--experiments", "6", "-o", "plan.yaml")
    assert code == 0
    plan = read_plan(tmp_path / "plan.yaml")
    rows = [line.split()[0] for line in out.splitlines() if not line.startswith("#")]
    assert rows == ["experiment", *(experiment.name for experiment in plan.experiments)]
    assert plan.gpus == 64
    assert "topology.conf: 16 nodes, 64 GPUs" in out
    assert out.splitlines()[-1] == "# written    plan.yaml"


def test_utilisation_nodes_and_node_hours_of_an_experiment_are_shown(dlbench: Any) -> None:
    _, out, _ = dlbench(
        *MACHINE, "--pattern", "uniform", "--sizes", "8", "--patterns", "1", "--utilisation", "0.5",
        "--experiments", "1", "--timeout", "900",
    )  # fmt: skip
    (row,) = [line for line in out.splitlines() if line.startswith("mix-000")]
    # Half of 64 GPUs are 4 jobs of 8, on 8 nodes for a quarter of an hour; 8 GPUs leave only DP, so no mix.
    assert row.startswith("mix-000     4: 4 × 8")
    assert row.split()[5:10] == ["32", "8", "50.0%", "0.00", "low"]
    assert row.split()[-2:] == ["900", "2.00"]


def test_bins_are_counted_and_those_out_of_reach_named(dlbench: Any) -> None:
    _, out, _ = dlbench(*MACHINE, "--pattern", "uniform", "--sizes", "8", "--patterns", "2", "--experiments", "6")
    lines = out.splitlines()
    assert "# entropy    6 low, 0 medium, 0 high" in lines
    assert "# locality   2 low, 2 medium, 2 high" in lines
    assert "# covered    3 of 9 pairs of entropy and locality" in lines
    assert "# note       high entropy is out of reach of 2 of 2 patterns" in lines


def test_node_hours_add_up(dlbench: Any) -> None:
    _, out, _ = dlbench(*MACHINE, "--pattern", "uniform", "--sizes", "16", "--experiments", "3")
    rows = [line.split() for line in out.splitlines() if line.startswith(("mix-", "alone-"))]
    (total,) = [line for line in out.splitlines() if line.startswith("# node-hours")]
    numbers = [float(word) for word in total.split() if word[0].isdigit()]
    assert numbers[0] == pytest.approx(sum(float(row[-1]) for row in rows), rel=0.02)
    assert numbers[0] == pytest.approx(numbers[1] + numbers[2], rel=0.01)
    assert total.endswith("baselines")


def test_one_of_a_kind_is_named_as_one_and_its_node_hours_are_not_rounded_away(dlbench: Any) -> None:
    one = ("--system", "local", "--pattern", "uniform", "--experiments", "1", "--gpus", "4", "--timeout", "9")
    _, out, _ = dlbench(*one)
    assert "1 concurrent experiment, 2 baselines; mode reserved, seed 0" in out
    # 4 places for 9 s with both jobs, and twice 2 places for 9 s with one: 36 s and 36 s.
    assert "# node-hours 0.02 = 0.01 concurrent + 0.01 baselines" in out


def test_the_same_command_writes_the_same_bytes(dlbench: Any, tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        assert dlbench(*MACHINE, "--pattern", "tier", "--seed", "3", "--experiments", "3", "-o", name)[0] == 0
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_a_reader_of_the_table_who_leaves_early_does_not_cost_the_plan(tmp_path: Path) -> None:
    (tmp_path / "topology.conf").write_text(CONF)
    command = f"{sys.executable} -m dlbench plan {' '.join(MACHINE)} --pattern tier -o plan.yaml | head -1"
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True, timeout=60, stdout=subprocess.DEVNULL)
    assert len(read_plan(tmp_path / "plan.yaml").experiments) > 12


@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_the_bytes_do_not_depend_on_the_hashes_of_the_process(dlbench: Any, tmp_path: Path, hash_seed: str) -> None:
    asked = (*MACHINE, "--pattern", "tier", "--seed", "3", "--experiments", "3", "-o")
    dlbench(*asked, "here.yaml")
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-m", "dlbench", "plan", *asked, "there.yaml"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=60, stdout=subprocess.DEVNULL)
    assert (tmp_path / "there.yaml").read_bytes() == (tmp_path / "here.yaml").read_bytes()


def test_options_of_runs_become_those_of_every_job(dlbench: Any, tmp_path: Path) -> None:
    dlbench(*MACHINE, "--pattern", "tier", "--experiments", "2", "--iterations", "3", "--scale", "0.5", "-o", "p.json")
    options = [job.options for e in read_plan(tmp_path / "p.json").experiments for job in e.jobs]
    assert all(found == {"iterations": 3, "scale": 0.5} for found in options)


def test_in_queue_mode_nothing_has_a_locality(dlbench: Any) -> None:
    code, out, _ = dlbench(*MACHINE, "--pattern", "tier", "--mode", "queue", "--experiments", "2")
    assert code == 0
    assert "# locality" not in out
    assert "mode queue" in out


def test_this_machine_has_plans_too(dlbench: Any) -> None:
    code, out, _ = dlbench("--system", "local", "--pattern", "tier", "--gpus", "8", "--experiments", "3")
    assert code == 0
    assert "# topology   this machine: 8 nodes, 8 GPUs" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--system", "leonard", "--pattern", "tier"),
            "unknown system 'leonard'; did you mean 'leonardo'? valid: alps,",
        ),
        ((*MACHINE, "--pattern", "tier", "--gpus", "65"), "65 GPUs are out of range; use 1 to 64, which topology"),
        (
            (*MACHINE, "--pattern", "tier", "-o", "plan.txt"),
            "plan.txt: a plan is a file that ends in .yaml, .yml or .json",
        ),
        (
            (*MACHINE, "--pattern", "uniform", "--sizes", "24"),
            "no strategy of catalogue paper runs on 24 GPUs at 4 GPUs per node; use 8, 16, 32",
        ),
        ((*MACHINE, "--pattern", "tier", "--nodes", "n99"), "topology {here}/topology.conf has no node 'n99'; did you"),
        (
            ("--system", "local", "--pattern", "tier", "--topology", "t"),
            "--topology is for clusters; the jobs of system",
        ),
        (
            (*MACHINE, "--pattern", "tier", "--experiments", "1001"),
            "argument --experiments: expected an integer from 1 to",
        ),
        (
            (*MACHINE, "--pattern", "tier", "--patterns", "9999"),
            "argument --patterns: expected an integer from 1 to 1000",
        ),
        ((*MACHINE, "--pattern", "tier", "--nodes", ""), "argument --nodes: expected a text, found ''"),
        (
            (*MACHINE, "--pattern", "tier", "--experimens", "3"),
            "unknown option --experimens, did you mean --experiments?",
        ),
        ((*MACHINE, "--pattern", "tier", "--utilisation", "0.8-1"), "--utilisation 0.8-1: expected LOW:HIGH such as"),
        (
            (*MACHINE, "--pattern", "tier", "--backend", "nccl", "--buffers", "host", "-o", "plan.yaml"),
            "experiment mix-000, job j000: --backend nccl: its buffers are in the memory of the GPU; leave out",
        ),
        (
            (*MACHINE, "--pattern", "tier", "--gemm-precision", "bf16"),
            "experiment mix-000, job j000: --gemm-precision has no meaning with --compute sleep; use --compute gemm",
        ),
        ((*MACHINE, "--pattern", "tier", "--record", "x"), "--record: the plan says this of every job; leave it out"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_a_line(
    dlbench: Any, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    code, _, err = dlbench(*arguments)
    assert code == 2
    assert err.startswith(f"dlbench: {message.format(here=tmp_path)}"), err
    assert err.count("\n") == 1
    assert not (tmp_path / "plan.yaml").exists()


def test_the_help_names_the_options_of_a_run_that_it_takes_and_no_other(dlbench: Any) -> None:
    _, out, _ = dlbench("--help")
    named = " ".join(out.split()).partition("these become those of every job: ")[2].partition(".")[0].split(", ")
    assert {"--gpu", "--dtype", "--pp", "--scale", "--iterations", "--until-ci", "--backend", "--check"} <= set(named)
    assert set(named) & {"--model", "--record", "--json", "--config", "--help", "--seed", "--timeout"} == set()
