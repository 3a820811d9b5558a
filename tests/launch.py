"""Real MPI jobs for the tests: the one place that knows how each MPI is launched.

A job can neither hang a test nor outlive it. It has a time limit, and its processes are found by a mark in their
environment: launchers put ranks into sessions of their own, so no process group holds them all.
"""

from __future__ import annotations

import inspect
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest

REPOSITORY = Path(__file__).parent.parent
IMPLEMENTATIONS = ("mpich", "openmpi")

SHARED_MEMORY = Path("/dev/shm")
"""Where Linux keeps files in memory."""

_MARK = "DLBENCH_TEST_JOB"
_RANK_VARIABLES = {"mpich": "PMI_RANK", "openmpi": "OMPI_COMM_WORLD_RANK"}
_LAUNCHER_NAMES = {"mpich": "HYDRA", "openmpi": "Open MPI"}
_FLAGS = {"mpich": (), "openmpi": ("--map-by", ":OVERSUBSCRIBE", "--bind-to", "none")}
_ENVIRONMENT = {
    "HYDRA_IFACE": "lo",
    # With more ranks than cores MPICH's own shared-memory collectives stall for seconds.
    "MPIR_CVAR_ALLREDUCE_POSIX_INTRA_ALGORITHM": "mpir",
    "MPIR_CVAR_BARRIER_POSIX_INTRA_ALGORITHM": "mpir",
    "MPIR_CVAR_BCAST_POSIX_INTRA_ALGORITHM": "mpir",
    "MPIR_CVAR_REDUCE_POSIX_INTRA_ALGORITHM": "mpir",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


def scratch(prefix: str) -> tempfile.TemporaryDirectory[str]:
    """A directory for what an MPI library leaves behind when its processes are killed.

    Open MPI's launcher keeps its state in a directory named by its process id, and a later one that gets the same id
    refuses to start where it is there already. Its ranks leave 16 MiB of shared memory each.
    """
    place = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    return tempfile.TemporaryDirectory(prefix=prefix, dir=place, ignore_cleanup_errors=True)


def scratch_variables(directory: str) -> dict[str, str]:
    """Variables that make Open MPI's launcher and ranks use it."""
    return {"PRTE_MCA_prte_tmpdir_base": directory, "OMPI_MCA_btl_sm_backing_directory": directory}


@dataclass(frozen=True)
class Completed:
    """A job that has ended by itself."""

    returncode: int
    stdout: str
    stderr: str


class Job:
    """A running job; leaving its `with` block ends every process of it."""

    def __init__(self, command: Sequence[str], size: int, rank_variable: str, env: Mapping[str, str], cwd: Path | None):
        self.command = list(command)
        self.size = size
        self._rank_variable = rank_variable
        self._mark = uuid.uuid4().hex
        self._directory = scratch("dlbench-job-")
        # Files, not pipes: a process that outlives the launcher cannot block the reader.
        self._stdout = os.memfd_create("stdout")
        self._stderr = os.memfd_create("stderr")
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=self._stdout,
            stderr=self._stderr,
            env={**env, **scratch_variables(self._directory.name), _MARK: self._mark},
            cwd=cwd,
            start_new_session=True,
        )

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        os.close(self._stdout)
        os.close(self._stderr)
        self._directory.cleanup()

    @property
    def stdout(self) -> str:
        """What the job has written so far."""
        return _content(self._stdout)

    @property
    def stderr(self) -> str:
        """What the job has written so far."""
        return _content(self._stderr)

    def wait(self, timeout: float = 60) -> Completed:
        """Wait for the end of the job; after `timeout` seconds the test fails and shows the output so far."""
        try:
            returncode = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            self.fail(f"was still running after {timeout} s")
        return Completed(returncode, self.stdout, self.stderr)

    def wait_for_output(self, text: str, timeout: float = 30) -> None:
        """Wait until `text` stands in the output; the test fails where it does not come."""
        _poll(lambda: text in self.stdout + self.stderr, timeout) or self.fail(f"did not write {text!r} in {timeout} s")

    def rank_pids(self, timeout: float = 30) -> list[int]:
        """Process id of every rank, in rank order, as soon as all of them run."""
        _poll(lambda: len(self._rank_pids()) == self.size, timeout) or self.fail(
            f"did not start its ranks in {timeout} s"
        )
        pids = self._rank_pids()
        return [pids[rank] for rank in range(self.size)]

    def alive(self) -> list[int]:
        """Process ids of all processes of the job: launcher, proxies, ranks and what these started."""
        return [pid for pid, _ in self._processes()]

    def kill(self) -> None:
        """End every process of the job now."""
        deadline = time.monotonic() + 10
        while (pids := self.alive()) and time.monotonic() < deadline:
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self.process.poll()
            time.sleep(0.01)
        self.process.wait(10)

    def fail(self, reason: str) -> NoReturn:
        """Fail the test: what the job did, and its output so far."""
        output = f"--- stdout ---\n{self.stdout}\n--- stderr ---\n{self.stderr}"
        pytest.fail(f"{' '.join(self.command)}\n{reason}\n{output}", pytrace=False)

    def _processes(self) -> Iterator[tuple[int, dict[str, str]]]:
        for directory in Path("/proc").glob("[0-9]*"):
            environment = _environment_of(directory)
            if environment.get(_MARK) == self._mark:
                yield int(directory.name), environment

    def _rank_pids(self) -> dict[int, int]:
        # A process that a rank started bears the rank's number too, and has a later start.
        ranks = [(int(env[self._rank_variable]), pid) for pid, env in self._processes() if self._rank_variable in env]
        return {rank: pid for rank, pid in sorted(ranks, key=lambda pair: _start_time(pair[1]), reverse=True)}


@dataclass(frozen=True)
class Mpi:
    """One MPI implementation: a Python with mpi4py and the launcher of the library that mpi4py loads."""

    name: str
    python: str
    mpiexec: str

    def start(
        self, n: int, args: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> Job:
        """Start `python *args` on `n` ranks. Use it in a `with` statement."""
        command = [self.mpiexec, *_FLAGS[self.name], "-n", str(n), self.python, *args]
        return Job(command, n, _RANK_VARIABLES[self.name], {**os.environ, **_ENVIRONMENT, **(env or {})}, cwd)

    def launch(
        self,
        n: int,
        args: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        timeout: float = 60,
        cwd: Path | None = None,
    ) -> Completed:
        """Run `python *args` on `n` ranks, e.g. `launch(2, ["-m", "dlbench.dp", "--model", "gpt2"])`."""
        with self.start(n, args, env=env, cwd=cwd) as job:
            return job.wait(timeout)

    def run_ranks(
        self,
        program: str | Path | Callable[..., None],
        n: int,
        *args: str,
        env: Mapping[str, str] | None = None,
        timeout: float = 60,
    ) -> Completed:
        """Run a test program on `n` ranks; where one rank raises, the test fails and shows its traceback.

        `program` is the text or the path of a program, or a function without closure that imports what it
        needs. `args` are its arguments, as strings.
        """
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "ranks.py"
            path.write_text(_program_text(program), encoding="utf-8")
            with self.start(n, ["-m", "mpi4py", str(path), *args], env=env) as job:
                completed = job.wait(timeout)
                if completed.returncode != 0:
                    job.fail(f"exited with {completed.returncode}")
                return completed


def find_mpi(name: str) -> Mpi | str:
    """The MPI implementation `name`, or the reason why it is not there.

    Its Python is the one named by `DLBENCH_MPICH_PYTHON` or `DLBENCH_OPENMPI_PYTHON`, else the running one or
    that of `.venv-NAME` in the repository, whichever has this implementation's launcher.
    """
    variable = f"DLBENCH_{name.upper()}_PYTHON"
    named = os.environ.get(variable)
    candidates = [named] if named else [sys.executable, str(REPOSITORY / f".venv-{name}" / "bin" / "python")]
    for python in candidates:
        launcher = _launcher(python)
        if launcher and _LAUNCHER_NAMES[name] in _version(launcher):
            return Mpi(name, python, launcher)
    return f"no {name} launcher beside {' or '.join(candidates)}; set {variable} to a Python that has one"


def _launcher(python: str) -> str | None:
    return shutil.which("mpiexec", path=f"{Path(python).parent}{os.pathsep}{os.environ.get('PATH', '')}")


@cache
def _version(launcher: str) -> str:
    completed = subprocess.run([launcher, "--version"], capture_output=True, text=True, timeout=30, check=False)
    return completed.stdout + completed.stderr


def _program_text(program: str | Path | Callable[..., None]) -> str:
    if isinstance(program, Path):
        return program.read_text(encoding="utf-8")
    if isinstance(program, str):
        return textwrap.dedent(program)
    source = textwrap.dedent(inspect.getsource(program))
    return f"from __future__ import annotations\n\nimport sys\n\n{source}\n{program.__name__}(*sys.argv[1:])\n"


def _poll(condition: Callable[[], bool], timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while not (reached := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return reached


def _content(file: int) -> str:
    # The processes of the job share the file's offset; a positioned read leaves it alone.
    return os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")


def _environment_of(directory: Path) -> dict[str, str]:
    try:
        entries = (directory / "environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def _start_time(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return sys.maxsize
