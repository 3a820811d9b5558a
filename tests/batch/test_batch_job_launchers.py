"""What srun and mpiexec are told for a job of an experiment, and how its runs are ended and swept up."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from campaigns import Slurm

from dlbench.errors import OptionError, PreflightError, RunError
from dlbench.slurm import job_launchers, launchers
from dlbench.slurm.job_launchers import LAUNCHERS, JobLauncher, Mpiexec, Ranks, Srun, Surroundings, job_launcher
from dlbench.slurm.launchers import FAMILIES, Library
from dlbench.slurm.processes import MARK_VARIABLE, kill_marked, marked
from dlbench.slurm.steps import NoControllerError, SlurmJob, Step, require_controller, slurm_output

FAMILY = {family.name: family for family in FAMILIES}
JOB = SlurmJob("77", ("n1", "n2", "n3", "n4"), "8")
pytestmark = pytest.mark.xdist_group("marks")
"""In one process: runs are found on the whole host by their names, which these tests share."""

SQUEUE = "77.batch batch\n77.0 a-1-f00\n77.1 b-1-f00\n77.12 a b\n"


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the PATH, in front of all others, for commands of SLURM; what they are called with is in `calls`."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    program(tmp_path, "squeue", f"printf '{SQUEUE}'")
    program(tmp_path, "scancel", "")
    return tmp_path


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f'#!/bin/sh\necho "{name} $@" >> {folder}/calls\n{script}\n')
    path.chmod(0o755)


def calls(folder: Path, name: str) -> list[str]:
    path = folder / "calls"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line for line in lines if line.startswith(f"{name} ")]


def surroundings(
    family: str = "MPICH",
    job: SlurmJob | None = JOB,
    ranks: int = 8,
    scratch: Path = Path(),
    flags: tuple[str, ...] = (),
) -> Surroundings:
    return Surroundings(
        library=Library("", None), family=FAMILY[family], slurm_job=job, ranks=ranks, srun_flags=flags, scratch=scratch
    )


def mpiexec(monkeypatch: pytest.MonkeyPatch, given: Surroundings) -> Mpiexec:
    monkeypatch.setattr(job_launchers, "find_mpiexec", lambda *_: "/opt/bin/mpiexec")
    return Mpiexec(given)


@contextmanager
def sleeping(name: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of a run."""
    process = subprocess.Popen(["sleep", "60"], env={**os.environ, MARK_VARIABLE: name}, start_new_session=True)
    try:
        while not Path(f"/proc/{process.pid}/environ").read_bytes():  # a program that has only begun has none yet
            time.sleep(0.001)
        yield process
    finally:
        process.kill()
        process.wait()


def test_srun_places_a_step_on_its_nodes_beside_the_others() -> None:
    launch = Srun(surroundings()).launch(Ranks(name="a-1-f00", count=8, nodes=("n2", "n3"), per_node=4))
    assert launch.command == [
        *("srun", "--mpi=pmi2", "-K1", "-n", "8", "--job-name=a-1-f00", "--exact", "--overlap", "--cpus-per-task=8"),
        *("-N", "2", "--ntasks-per-node=4", "-w", "n2,n3"),
    ]
    assert launch.own == {MARK_VARIABLE: "a-1-f00"}


def test_srun_gets_a_file_where_the_ranks_go_against_the_order_of_the_allocation(tmp_path: Path) -> None:
    launch = Srun(surroundings(scratch=tmp_path)).launch(Ranks(name="a", count=5, nodes=("n3", "n1"), per_node=3))
    assert launch.command[-5:] == ["-N", "2", "--ntasks-per-node=3", "-m", "arbitrary"]
    assert "-w" not in launch.command
    hosts = Path(launch.own["SLURM_HOSTFILE"])
    assert hosts.is_absolute()
    assert hosts.read_text().split() == ["n3", "n3", "n3", "n1", "n1"]


def test_srun_without_nodes_chooses_them_itself() -> None:
    job = SlurmJob("77", ("n1",), "")
    launch = Srun(surroundings(job=job)).launch(Ranks(name="a", count=2, per_node=2))
    assert launch.command[-3:] == ["--job-name=a", "--exact", "--overlap"]


def test_srun_gets_what_the_site_needs() -> None:
    launch = Srun(surroundings("Open MPI", flags=("--cpu-bind=cores",))).launch(Ranks(name="a", count=2))
    assert launch.command[1] == "--mpi=pmix"
    assert launch.command[-1] == "--cpu-bind=cores"


@pytest.mark.parametrize(
    ("family", "flags"),
    [("MPICH", ["-hosts", "n3,n1", "-ppn", "2"]), ("Intel MPI", ["-hosts", "n3,n1", "-ppn", "2"])],
)
def test_mpiexec_gets_the_nodes_in_their_order(family: str, flags: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    launch = mpiexec(monkeypatch, surroundings(family)).launch(
        Ranks(name="a-1", count=4, nodes=("n3", "n1"), per_node=2)
    )
    assert launch.command == ["/opt/bin/mpiexec", *flags, "-n", "4"]
    assert launch.own == {MARK_VARIABLE: "a-1", "HYDRA_LAUNCHER_EXTRA_ARGS": "--overlap --job-name=a-1"}
    assert "HYDRA_IFACE" not in launch.environment


def test_open_mpis_mpiexec_gets_the_nodes_with_their_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    launch = mpiexec(monkeypatch, surroundings("Open MPI")).launch(
        Ranks(name="a", count=8, nodes=("n1", "n2"), per_node=4)
    )
    assert launch.command == ["/opt/bin/mpiexec", "--host", "n1:4,n2:4", "-n", "8"]


def test_jobs_that_share_this_machine_are_bound_to_no_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    launch = mpiexec(monkeypatch, surroundings("Open MPI", None)).launch(Ranks(name="a", count=2))
    assert launch.command == ["/opt/bin/mpiexec", "--bind-to", "none", "-n", "2"]


@pytest.mark.parametrize(("ranks", "crowded"), [(4, False), (5, True)])
def test_the_ranks_of_all_jobs_together_crowd_this_machine(
    ranks: int, crowded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    launch = mpiexec(monkeypatch, surroundings(job=None, ranks=ranks)).launch(Ranks(name="a", count=2))
    assert ("MPIR_CVAR_BCAST_POSIX_INTRA_ALGORITHM" in launch.environment) == crowded
    assert "HYDRA_LAUNCHER_EXTRA_ARGS" not in launch.own


def test_steps_are_told_apart_by_their_whole_name(commands: Path) -> None:
    assert JOB.steps({"a-1-f00", "a b"}) == [Step("77.0", "a-1-f00"), Step("77.12", "a b")]
    assert JOB.steps({"a"}) == []
    assert calls(commands, "squeue")[0] == "squeue -h -s -j 77 -o %i %j"


def test_srun_ends_its_steps_through_slurm_and_only_what_still_waits_directly(commands: Path) -> None:
    with sleeping("a-1-f00") as with_step, sleeping("c-1-f00") as waiting:
        Srun(surroundings()).end({"a-1-f00": with_step.pid, "c-1-f00": waiting.pid})
        assert waiting.wait(5) == -signal.SIGTERM
        assert with_step.poll() is None
    assert calls(commands, "scancel") == ["scancel --signal=TERM 77.0"]


def test_mpiexec_is_told_to_end_by_a_signal_that_it_hands_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with sleeping("a") as process, sleeping("b") as other:
        mpiexec(monkeypatch, surroundings(job=None)).end({"a": process.pid})
        assert process.wait(5) == -signal.SIGUSR1
        assert other.poll() is None


def test_a_launcher_that_has_just_ended_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    mpiexec(monkeypatch, surroundings(job=None)).end({"a": process.pid})


def test_what_is_killed_are_the_steps_and_the_processes_of_the_run(commands: Path) -> None:
    launcher = Srun(surroundings())
    with sleeping("a-1-f00") as process, sleeping("b-1-f00") as other:
        assert launcher.left(["a-1-f00"]) == [f"process {process.pid} of a-1-f00", "step 77.0 of a-1-f00"]
        launcher.kill(["a-1-f00"])
        assert process.wait(5) == -signal.SIGKILL
        assert other.poll() is None
    assert calls(commands, "scancel") == ["scancel --signal=KILL 77.0"]


def test_where_slurm_does_not_answer_processes_are_killed_all_the_same(commands: Path) -> None:
    program(commands, "squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    launcher = Srun(surroundings())
    with sleeping("a") as process:
        launcher.kill(["a"])
        assert process.wait(5) == -signal.SIGKILL
    with pytest.raises(RunError, match="no SLURM controller answers squeue"):
        launcher.left(["a"])


def test_a_process_that_only_waits_for_its_parent_is_over() -> None:
    with sleeping("zombie") as process:
        assert marked({"zombie"}) == {process.pid: "zombie"}
        kill_marked({"zombie"})
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert marked({"zombie"}) == {}


def test_the_slurm_job_is_what_the_environment_says() -> None:
    environment = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "n[1-4]", "SLURM_CPUS_PER_TASK": "8"}
    assert SlurmJob.of(environment) == JOB
    assert SlurmJob.of({}) is None


def test_a_command_of_slurm_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PreflightError, match="cannot start squeue: No such file or directory; is SLURM on the PATH"):
        slurm_output(["squeue"])


@pytest.mark.parametrize(
    "words",
    [
        "squeue: error: fetch_config: DNS SRV lookup failed; squeue: fatal: Could not establish a configuration source",
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "slurm_load_jobs error: Socket timed out on send/recv operation",
        "Slurmctld(primary) at m1 is DOWN",
    ],
)
def test_silence_of_the_controller_is_one_line_that_leads_to_the_doctor(
    words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands = Slurm(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(commands.folder))
    commands.refuses("squeue", words)
    with pytest.raises(NoControllerError) as error:
        slurm_output(["squeue"])
    assert str(error.value) == "no SLURM controller answers squeue, see 'dlbench doctor'"
    commands.refuses("scontrol", words)
    with pytest.raises(PreflightError, match="^srun cannot start ranks: no SLURM controller answers scontrol, see"):
        require_controller()


def test_what_scontrol_says_otherwise_or_its_absence_does_not_keep_srun_from_starting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands = Slurm(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(commands.folder))
    commands.refuses("scontrol", "scontrol: not for you")
    require_controller()
    commands.prints("scontrol", "Slurmctld(primary) at m1 is UP")
    require_controller()
    monkeypatch.setenv("PATH", str(tmp_path))
    require_controller()


class TestChoice:
    """Which launcher is taken."""

    INSIDE = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "n[1-4]"}

    @pytest.fixture(autouse=True)
    def mpich(self, monkeypatch: pytest.MonkeyPatch) -> None:
        version = "MPICH Version: 5.0.2"
        monkeypatch.setattr(job_launchers, "loaded_library", lambda: Library(version, None))
        monkeypatch.setattr(launchers, "launcher_version", lambda path: "HYDRA build details")
        monkeypatch.setattr(job_launchers, "find_mpiexec", lambda *_: "/opt/bin/mpiexec")

    def choose(self, choice: str, environment: dict[str, str]) -> JobLauncher:
        return job_launcher(choice, environment, ranks=4, scratch=Path())

    def test_this_machine_has_mpiexec(self) -> None:
        assert isinstance(self.choose("auto", {}), Mpiexec)

    @pytest.mark.parametrize(("script", "kind"), [("true", Srun), ("echo 'Invalid MPI type' >&2; exit 1", Mpiexec)])
    def test_an_allocation_has_srun_if_a_step_of_this_mpi_starts(
        self, script: str, kind: type[JobLauncher], commands: Path
    ) -> None:
        program(commands, "srun", script)
        assert isinstance(self.choose("auto", self.INSIDE), kind)
        assert calls(commands, "srun") == ["srun --mpi=pmi2 -N1 -n1 --exact --overlap true"]

    def test_mpiexec_can_be_asked_for_in_an_allocation(self) -> None:
        assert isinstance(self.choose("mpiexec", self.INSIDE), Mpiexec)

    def test_srun_without_an_allocation_is_refused(self) -> None:
        with pytest.raises(OptionError, match="--launcher srun needs a SLURM allocation; use --launcher mpiexec"):
            self.choose("srun", {})

    def test_an_unknown_launcher_is_refused_with_the_known_ones(self) -> None:
        with pytest.raises(OptionError, match="unknown launcher 'jsrun'; valid: auto, srun, mpiexec"):
            self.choose("jsrun", {})

    def test_every_launcher_is_found_by_its_name(self) -> None:
        assert all(launcher.name == name for name, launcher in LAUNCHERS.items())
