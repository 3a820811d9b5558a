"""How a job of an experiment is started on its nodes, ended, and swept up: one small class a launcher.

Every launched run has a name, which its processes carry in `MARK_VARIABLE` and its SLURM step has as its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from dlbench.errors import OptionError, RunError
from dlbench.files import new_file
from dlbench.runtime.preflight import usable_cores
from dlbench.slurm.launchers import (
    Allocation,
    Family,
    Launch,
    Library,
    family_of,
    find_mpiexec,
    has_loopback,
    loaded_library,
    srun,
)
from dlbench.slurm.processes import MARK_VARIABLE, kill_marked, marked
from dlbench.slurm.steps import SlurmJob, slurm_output


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The ranks of one run."""

    name: str
    """Unique on this host and in the SLURM job."""
    count: int
    nodes: tuple[str, ...] = ()
    """Where they run, in their order; none: on this host."""
    per_node: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What all launchers are made from."""

    library: Library
    family: Family
    slurm_job: SlurmJob | None
    ranks: int
    """Of all jobs together."""
    srun_flags: tuple[str, ...] = ()
    """What srun needs at this site."""
    scratch: Path = Path()
    """Folder for files that a launcher reads."""


class JobLauncher(ABC):
    """Starts runs, and ends them in two ways; every method takes them by name."""

    name: str

    def __init__(self, surroundings: Surroundings) -> None:
        self._surroundings = surroundings

    @property
    def _slurm_job(self) -> SlurmJob | None:
        return self._surroundings.slurm_job

    def launch(self, ranks: Ranks) -> Launch:
        """Command line before the program, and environment variables to add."""
        launch = self._launch(ranks)
        return replace(launch, own={**launch.own, MARK_VARIABLE: ranks.name})

    @abstractmethod
    def _launch(self, ranks: Ranks) -> Launch: ...

    @abstractmethod
    def end(self, launchers: Mapping[str, int]) -> None:
        """Let runs finish their iteration and write their end line; `launchers` has the process id of each launcher.

        Raises `RunError` where SLURM does not answer.
        """

    def kill(self, names: Collection[str]) -> None:
        """End runs at once, with what is left of those that are over."""
        if self._slurm_job:
            with contextlib.suppress(RunError):  # processes on this host end all the same, and `left` says the rest
                self._slurm_job.signal(self._slurm_job.steps(names), "KILL")
        kill_marked(set(names))

    def left(self, names: Collection[str]) -> list[str]:
        """What is left of runs, in words: processes on this host, and steps.

        Raises `RunError` where SLURM does not answer.
        """
        found = [f"process {pid} of {name}" for pid, name in marked(set(names)).items()]
        if self._slurm_job:
            found += [f"step {step.id} of {step.name}" for step in self._slurm_job.steps(names)]
        return found


class Srun(JobLauncher):
    """SLURM's own launcher: a step per run."""

    name = "srun"

    def _launch(self, ranks: Ranks) -> Launch:
        site = self._surroundings
        command = [*srun(ranks.count, site.family).command, f"--job-name={ranks.name}", "--exact", "--overlap"]
        if self._slurm_job and self._slurm_job.cpus_per_task:  # a step does not inherit it
            command.append(f"--cpus-per-task={self._slurm_job.cpus_per_task}")
        own = {}
        if ranks.nodes:
            command += ["-N", str(len(ranks.nodes)), f"--ntasks-per-node={ranks.per_node}"]
            if self._in_order(ranks.nodes):
                command += ["-w", ",".join(ranks.nodes)]
            else:
                command += ["-m", "arbitrary"]
                own["SLURM_HOSTFILE"] = self._host_file(ranks)
        return Launch([*command, *site.srun_flags], own=own)

    def _in_order(self, nodes: tuple[str, ...]) -> bool:
        """Whether SLURM would number the ranks in the order of the nodes: it goes by the order of the allocation."""
        if self._slurm_job is None:
            return False
        wanted = set(nodes)
        return list(nodes) == [node for node in self._slurm_job.nodes if node in wanted]

    def _host_file(self, ranks: Ranks) -> str:
        """A file with the node of each rank."""
        path = self._surroundings.scratch / f"{ranks.name}.hosts"
        hosts = [node for node in ranks.nodes for _ in range(ranks.per_node)][: ranks.count]
        with new_file(path) as file:
            file.write("".join(f"{host}\n" for host in hosts).encode())
        return str(path.resolve())

    def end(self, launchers: Mapping[str, int]) -> None:
        """Send SIGTERM to the ranks; srun itself answers it with SIGKILL for them, and gets it only before they are."""
        steps = self._slurm_job.steps(launchers) if self._slurm_job else []
        if self._slurm_job:
            self._slurm_job.signal(steps, "TERM")
        waiting = set(launchers).difference(step.name for step in steps)
        _signal([launchers[name] for name in waiting], signal.SIGTERM)


class Mpiexec(JobLauncher):
    """The launcher of the MPI library: on this host, or on the nodes of an allocation."""

    name = "mpiexec"

    def __init__(self, surroundings: Surroundings, executable: str = "auto") -> None:
        super().__init__(surroundings)
        self._executable = find_mpiexec(executable, surroundings.library, surroundings.family)

    def _launch(self, ranks: Ranks) -> Launch:
        site = self._surroundings
        local = not ranks.nodes
        allocation = Allocation(
            ranks=ranks.count,
            executable=self._executable,
            crowded=(site.ranks if local else ranks.per_node) > len(usable_cores()),
            loopback=local and has_loopback(),
            shared=local,
            nodes=ranks.nodes,
            per_node=ranks.per_node,
        )
        launch = site.family.launch(allocation)
        if self._slurm_job is None:
            return launch
        # MPICH's launcher starts its proxies with srun, whose step must have the name of the run.
        return replace(launch, own={"HYDRA_LAUNCHER_EXTRA_ARGS": f"--overlap --job-name={ranks.name}"})

    def end(self, launchers: Mapping[str, int]) -> None:
        """Send SIGUSR1, which every mpiexec hands to its ranks on all hosts.

        Open MPI's follows its own SIGTERM with SIGKILL for the ranks half a second later.
        """
        _signal(launchers.values(), signal.SIGUSR1)


def _signal(pids: Collection[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


LAUNCHERS: dict[str, type[JobLauncher]] = {launcher.name: launcher for launcher in (Srun, Mpiexec)}


def job_launcher(
    choice: str,
    environment: Mapping[str, str],
    *,
    ranks: int,
    srun_flags: tuple[str, ...] = (),
    scratch: Path,
) -> JobLauncher:
    """The launcher of that name; auto: srun in an allocation, if it can connect the ranks of this MPI, else mpiexec.

    `ranks` counts those of all jobs together. Raises `UserError` where there is no such launcher, or it cannot be used.
    """
    if choice not in {"auto", *LAUNCHERS}:
        raise OptionError(f"unknown launcher {choice!r}; valid: auto, {', '.join(LAUNCHERS)}")
    library = loaded_library()
    family = family_of(library)
    job = SlurmJob.of(environment)
    surroundings = Surroundings(
        library=library, family=family, slurm_job=job, ranks=ranks, srun_flags=srun_flags, scratch=scratch
    )
    if choice == "srun" and job is None:
        raise OptionError("--launcher srun needs a SLURM allocation; use --launcher mpiexec on this machine")
    if choice == "auto":
        choice = "srun" if job and (not family.launcher_mark or _srun_connects(family.pmi, srun_flags)) else "mpiexec"
    return LAUNCHERS[choice](surroundings)


def _srun_connects(pmi: str, flags: tuple[str, ...]) -> bool:
    """Whether a trial step starts: a plugin that `srun --mpi=list` shows may lack its library."""
    try:
        slurm_output(["srun", f"--mpi={pmi}", "-N1", "-n1", "--exact", "--overlap", *flags, "true"])
    except RunError:
        return False
    return True
