"""A SLURM cluster of virtual nodes on this machine: real daemons, each node with a host name of its own.

The daemons run in the foreground as children of this process, so they are ended by process id and by nothing else;
the kernel ends them should this process be killed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import dedent

DAEMONS = ("munged", "slurmctld", "slurmd")
PROGRAMS = (*DAEMONS, "srun", "sbatch", "squeue", "scancel", "scontrol", "unshare", "setpriv")
GROUPS, SWITCHES, NODES = 2, 2, 3
CPUS, GPUS = 4, 4
_SEARCH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_PATIENCE = 30.0
"""Seconds that a cluster may take to come up or a job to end: on a busy machine many times what it takes."""

_SLURM_CONF = """
    ClusterName=testbed
    SlurmctldHost={host}(127.0.0.1)
    SlurmctldPort={port}
    SlurmUser=root
    SlurmdUser=root
    AuthType=auth/munge
    CredType=cred/munge
    AuthInfo=socket={folder}/munge.socket
    StateSaveLocation={folder}/state
    SlurmdSpoolDir={folder}/spool-%n
    SlurmctldPidFile={folder}/slurmctld.pid
    SlurmdPidFile={folder}/%n.pid
    SlurmctldLogFile={folder}/slurmctld.log
    SlurmdLogFile={folder}/%n.log
    MailProg=/bin/true
    ProctrackType=proctrack/linuxproc
    TaskPlugin=task/none
    SwitchType=switch/none
    MpiDefault=pmi2
    JobAcctGatherType=jobacct_gather/none
    AccountingStorageType=accounting_storage/none
    SchedulerParameters=bf_interval=2,batch_sched_delay=0
    SelectType=select/cons_tres
    SelectTypeParameters=CR_Core
    TopologyPlugin=topology/tree
    GresTypes=gpu
    SlurmdParameters=config_overrides
    ReturnToService=2
    KillWait=3
    MinJobAge=3600
    NodeName={nodes} NodeHostname=localhost NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs={cpus} Boards=1 \
SocketsPerBoard=1 CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory=4000 Gres=gpu:{gpus} State=UNKNOWN
    PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

_NODE = """
hostname "$1" && mount --bind "$2/hosts" /etc/hosts && mount --bind "$2/shm" /dev/shm &&
exec setpriv --pdeathsig TERM slurmd -D -c -f "$2/slurm.conf" -N "$1"
"""


def missing() -> str:
    """Why no cluster can be brought up here; empty where one can."""
    if os.geteuid() != 0:
        return "a SLURM cluster of virtual nodes needs root"
    absent = [program for program in PROGRAMS if shutil.which(program, path=_SEARCH) is None]
    if absent:
        return f"no {', '.join(absent)}; apt-get install munge slurmctld slurmd slurm-client"
    trial = subprocess.run(["unshare", "--uts", "--mount", "true"], capture_output=True, text=True, check=False)
    return f"no namespaces of host names and mounts: {trial.stderr.strip()}" if trial.returncode else ""


class Testbed:
    """A cluster of GROUPS × SWITCHES × NODES nodes in a folder; use it in a `with` statement.

    The path of the folder must be short: a socket in it may have a path of about 100 characters.
    """

    __test__ = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nodes = [f"vnode{number:02}" for number in range(1, GROUPS * SWITCHES * NODES + 1)]
        self.environment = {**os.environ, "PATH": _SEARCH, "SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Testbed:
        try:
            self._configure()
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def run(self, *command: str, timeout: float = 60) -> str:
        """What a command prints that runs on the login node of the cluster; it must succeed."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=timeout, check=False
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout

    def batch(self, script: str, *options: str, nodes: Sequence[str], folder: Path) -> str:
        """Id of a batch job that gets these nodes whole; its output goes to `folder`/ID.out."""
        path = folder / "job.sh"
        path.write_text(f"#!/bin/bash\n{script}\n")
        placed = (f"--nodelist={','.join(nodes)}", f"--nodes={len(nodes)}", f"--gpus-per-node={GPUS}", "--exclusive")
        command = ["sbatch", "--parsable", f"--output={folder}/%j.out", f"--chdir={folder}", *placed, *options]
        return self.run(*command, str(path)).strip()

    def state(self, job: str) -> str:
        """State of a job, such as RUNNING."""
        return self.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").strip()

    def wait(self, job: str, timeout: float = 60) -> str:
        """State in which a job ends."""
        over = wait_until(lambda: self.state(job) not in {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING"}, timeout)
        assert over, f"job {job} is still {self.state(job)} after {timeout} s"
        return self.state(job)

    def steps(self) -> list[str]:
        """Steps that run, those of batch scripts aside."""
        lines = self.run("squeue", "-h", "-s", "-o", "%i").split()
        return [step for step in lines if not step.endswith((".batch", ".extern"))]

    def tasks(self) -> list[int]:
        """Process ids of everything that jobs of this cluster have started, and of what looks after these."""
        own = {daemon.pid for daemon in self._daemons}
        found = _processes_with("SLURM_CONF", str(self.folder / "slurm.conf"))
        return [pid for pid in found if pid not in own and _is_task(pid)]

    def clear(self) -> None:
        """Cancel all jobs, and make all nodes usable again."""
        for job in self.run("squeue", "-h", "-o", "%i").split():
            self.run("scancel", job)
        # A node that was down is taken back once its slurmd has answered.
        for node in self.run("sinfo", "-h", "-N", "-t", "down,drain", "-o", "%N").split():
            self.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
        idle = wait_until(lambda: len(self._idle()) == len(self.nodes), _PATIENCE)
        assert idle, self.run("sinfo", "-N", "-l")

    def stop(self) -> None:
        """End all jobs, then the daemons, then what is left of the jobs."""
        with contextlib.suppress(OSError, AssertionError, subprocess.TimeoutExpired):
            for job in self.run("squeue", "-h", "-o", "%i", timeout=10).split():
                self.run("scancel", job, timeout=10)
            wait_until(lambda: not self.run("squeue", "-h", timeout=10), 10)
        for daemon in reversed(self._daemons):  # slurmd before slurmctld before munged
            daemon.terminate()
        for daemon in reversed(self._daemons):
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for pid in self.tasks():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _configure(self) -> None:
        self.folder.chmod(0o755)  # munged insists that all may reach its socket
        for name in ("state", "shm", "dev", *(f"spool-{node}" for node in self.nodes)):
            (self.folder / name).mkdir(parents=True)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        for index in range(GPUS):  # SLURM takes nothing but a character device for a GPU: this one is /dev/null
            os.mknod(self.folder / f"dev/gpu{index}", 0o020666, os.makedev(1, 3))
        hosts = "".join(f"127.0.0.1 {node}\n" for node in self.nodes)
        names = f"vnode[{self.nodes[0][-2:]}-{self.nodes[-1][-2:]}]"
        port = _free_ports(1 + len(self.nodes))
        configuration = dedent(_SLURM_CONF).format(
            host=socket.gethostname().partition(".")[0],
            folder=self.folder,
            port=port,
            first=port + 1,
            last=port + len(self.nodes),
            nodes=names,
            cpus=CPUS,
            gpus=GPUS,
        )
        contents = {
            "slurm.conf": configuration,
            "gres.conf": f"NodeName={names} Name=gpu File={self.folder}/dev/gpu[0-{GPUS - 1}]\n",
            "cgroup.conf": "CgroupPlugin=cgroup/v1\n",  # unused, but slurmd looks for the other kind's folder
            "topology.conf": "".join(f"{line}\n" for line in self._tree()),
            "hosts": Path("/etc/hosts").read_text() + hosts,
        }
        for name, content in contents.items():
            (self.folder / name).write_text(content)

    def _tree(self) -> Iterator[str]:
        names = iter(self.nodes)
        for group in range(GROUPS):
            for switch in range(SWITCHES):
                yield f"SwitchName=g{group}s{switch} Nodes={','.join(next(names) for _ in range(NODES))}"
            yield f"SwitchName=g{group} Switches=g{group}s[0-{SWITCHES - 1}]"
        yield f"SwitchName=core Switches=g[0-{GROUPS - 1}]"

    def _start(self) -> None:
        folder = self.folder
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "seed-file": "seed", "log-file": "log"}
        munge = [f"--{option}={folder}/munge.{ending}" for option, ending in files.items()]
        self._daemon("munge", "munged", "--foreground", *munge)
        assert wait_until((folder / "munge.socket").exists, _PATIENCE), self._log("munge")
        self._daemon("slurmctld", "slurmctld", "-D", "-c", "-f", f"{folder}/slurm.conf")
        for node in self.nodes:
            unshare = ("unshare", "--uts", "--mount", "--propagation", "private", "--")
            self._daemon(node, *unshare, "sh", "-c", _NODE, "sh", node, str(folder), wrapped=True)
        assert wait_until(lambda: len(self._idle()) == len(self.nodes), _PATIENCE), self._log("slurmctld")

    def _daemon(self, name: str, *command: str, wrapped: bool = False) -> None:
        dying = () if wrapped else ("setpriv", "--pdeathsig", "TERM")
        with (self.folder / f"{name}.said").open("wb") as said:
            self._daemons.append(
                subprocess.Popen(
                    [*dying, *command], env=self.environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said
                )
            )

    def _idle(self) -> list[str]:
        command = ["sinfo", "-h", "-N", "-t", "idle", "-o", "%N"]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
        return done.stdout.split()

    def _log(self, name: str) -> str:
        files = [self.folder / f"{name}.log", self.folder / f"{name}.said"]
        return "\n".join(file.read_text(errors="replace")[-2000:] for file in files if file.exists())


def wait_until(condition: Callable[[], bool], timeout: float) -> bool:
    """Whether the condition came true in so many seconds."""
    deadline = time.monotonic() + timeout
    while not (reached := condition()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return reached


def _free_ports(count: int) -> int:
    """The first of so many neighbouring ports that nobody listens on; other clusters begin their search elsewhere."""
    for first in range(20_000 + os.getpid() % 300 * 100, 64_000, count):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise OSError(f"no {count} free ports in a row")


def _processes_with(variable: str, value: str) -> Iterator[int]:
    for folder in Path("/proc").glob("[0-9]*"):
        if _environment(folder).get(variable) == value:
            yield int(folder.name)


def _is_task(pid: int) -> bool:
    """Whether a process belongs to a job: SLURM says on which node, and calls what looks after it slurmstepd."""
    folder = Path(f"/proc/{pid}")
    try:
        return "SLURMD_NODENAME" in _environment(folder) or (folder / "comm").read_text().strip() == "slurmstepd"
    except OSError:
        return False


def _environment(folder: Path) -> Mapping[str, str]:
    try:
        entries = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)
