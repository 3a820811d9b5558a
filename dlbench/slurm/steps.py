"""The steps of a SLURM job: which of them run, signals to them, and the allocation that they run in."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from shutil import which

from dlbench.errors import PreflightError, RunError
from dlbench.slurm.hostlist import expand

_PATIENCE_SECONDS = 60.0
"""How long SLURM's commands may take; a busy controller answers late."""
_NO_CONTROLLER = re.compile(
    "configuration source|contact slurm controller|connection failure|connection refused|socket timed out| is DOWN",
    re.IGNORECASE,
)
"""In what SLURM's commands print where they are installed and no cluster is behind them."""


class NoControllerError(RunError):
    """SLURM's commands are here, and no controller answers them."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step that runs or is ending."""

    id: str
    """JOB.STEP."""
    name: str


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """The SLURM job that this process runs in."""

    id: str
    nodes: tuple[str, ...]
    """In SLURM's order, in which it numbers ranks."""
    cpus_per_task: str
    """Empty where the job does not say."""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> SlurmJob | None:
        """The job that the environment tells of; None outside of one."""
        job = environment.get("SLURM_JOB_ID", "")
        if not job:
            return None
        nodes = tuple(expand(environment.get("SLURM_JOB_NODELIST", "")))
        return cls(job, nodes, environment.get("SLURM_CPUS_PER_TASK", ""))

    def steps(self, names: Collection[str]) -> list[Step]:
        """Steps with one of these names. Raises `RunError` where SLURM does not answer."""
        lines = slurm_output(["squeue", "-h", "-s", "-j", self.id, "-o", "%i %j"]).splitlines()
        pairs = (line.split(maxsplit=1) for line in lines)
        steps = [Step(*pair) for pair in pairs if len(pair) == len(Step.__slots__)]
        return [step for step in steps if step.name in names]

    def signal(self, steps: Sequence[Step], name: str) -> None:
        """Send a signal such as TERM to all ranks of the steps; one that has just ended is no error."""
        if steps:
            _finished(["scancel", f"--signal={name}", *(step.id for step in steps)])


def slurm_output(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """What a command of SLURM prints, by default in this environment.

    Raises `RunError` with SLURM's own words where it fails, `NoControllerError` without them.
    """
    done = _finished(command, environment)
    if done.returncode:
        words = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
        if _NO_CONTROLLER.search(words):
            raise NoControllerError(f"no SLURM controller answers {command[0]}, see 'dlbench doctor'")
        raise RunError(f"{command[0]} failed: {words}")
    return done.stdout


def require_controller() -> None:
    """Raise `PreflightError` where no controller answers; it is not looked for where `scontrol` is not on the PATH."""
    if which("scontrol") is None:
        return
    try:
        slurm_output(["scontrol", "ping"])
    except NoControllerError as error:
        raise PreflightError(f"srun cannot start ranks: {error}") from None
    except RunError:  # it is busy, or a site's own command; srun has the last word
        return


def _finished(command: Sequence[str], environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_SECONDS,
            check=False,
            start_new_session=True,  # Ctrl-C must not end sbatch, which may have submitted already
        )
    except OSError as error:
        raise PreflightError(f"cannot start {command[0]}: {error.strerror}; is SLURM on the PATH?") from None
    except subprocess.TimeoutExpired:
        raise RunError(f"{command[0]} has not answered for {_PATIENCE_SECONDS:g} s") from None
