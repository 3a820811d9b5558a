"""Campaigns for tests, and commands of SLURM that only write down how they were called."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from dlbench.allocators.experiment import Experiment, Job, Plan
from dlbench.slurm.campaign import Campaign, Request, start_campaign
from dlbench.slurm.pool_log import Event, PoolLog

REQUEST = Request(
    system="leonardo", pattern="tier", mode="reserved", seed=1, experiments=1, patterns=1, baselines=True, gpus=16
)


def make_plan(system: str = "leonardo", mode: Any = "reserved") -> Plan:
    """An experiment of two jobs on two nodes each, and the baseline of one."""

    def job(name: str, *nodes: str) -> Job:
        placed = {"placement": "intra-l1", "nodes": nodes} if mode == "reserved" else {}
        return Job(name=name, strategy="dp", model="vit-h", gpus=8, **placed)  # type: ignore[arg-type]

    both = (job("j000", "lrdn0001", "lrdn0002"), job("j001", "lrdn0003", "lrdn0004"))
    return Plan(
        system=system,
        mode=mode,
        seed=1,
        gpus=16,
        gpus_per_node=4,
        experiments=(
            Experiment(name="mix-000", kind="concurrent", timeout_seconds=60, jobs=both),
            Experiment(name="alone-000", kind="baseline", timeout_seconds=60, jobs=both[:1]),
        ),
    )


def make_campaign(folder: Path, **request: Any) -> Campaign:
    """A campaign of that plan."""
    folder.mkdir(exist_ok=True)
    return start_campaign(folder, msgspec.structs.replace(REQUEST, **request), make_plan())


def log(campaign: Campaign, experiment: str, *events: Event) -> None:
    """Append to the log of an experiment's pool."""
    folder = campaign.folder / experiment
    folder.mkdir(exist_ok=True)
    writer = PoolLog(folder / "pool.log")
    for event in events:
        writer.write(event)
    writer.close()


_COMMAND = """#!{python}
import os, pathlib, sys
folder = pathlib.Path({folder!r})
with (folder / "{name}.calls").open("a") as calls:
    print(*sys.argv[1:], file=calls)
answer = folder / "{name}.answer"
if answer.exists():
    exec(answer.read_text())
"""


class Slurm:
    """Commands of SLURM in a folder, for the PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name in ("sbatch", "squeue", "scancel", "scontrol", "sinfo"):
            file = folder / name
            file.write_text(_COMMAND.format(python=sys.executable, folder=str(folder), name=name))
            file.chmod(0o755)
        self.answers("sbatch", f"print(100 + len(open({str(folder / 'sbatch.calls')!r}).readlines()))")

    def answers(self, command: str, program: str) -> None:
        """What a command does from now on: statements of Python."""
        (self.folder / f"{command}.answer").write_text(program)

    def prints(self, command: str, *lines: str) -> None:
        """Lines that a command prints from now on."""
        self.answers(command, "".join(f"print({line!r})\n" for line in lines))

    def refuses(self, command: str, words: str) -> None:
        """Words with which a command fails from now on."""
        self.answers(command, f"sys.exit({words!r})")

    def calls(self, command: str) -> list[list[str]]:
        """Arguments of every call of a command so far."""
        file = self.folder / f"{command}.calls"
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []
