"""`dlbench doctor`: what is printed of a machine, what follows from it, and one look at this one."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dlbench.cli.doctor import doctor
from dlbench.doctor.finding import Finding
from dlbench.doctor.isolation import Ended
from dlbench.errors import OptionError

PIECES = [
    "python",
    "dlbench",
    "mpi4py",
    "mpi",
    "launcher",
    "pmi",
    "slurm",
    "driver",
    "devices",
    "cupy",
    "nccl",
    "cublas",
    "nvrtc",
    "gpu-mpi",
    "nvml",
]
DOCTOR = [sys.executable, "-m", "dlbench", "doctor"]
MPICH = Finding(
    state="ok",
    found="MPICH 5.0.2, /opt/lib/libmpi.so.12",
    facts={"family": "MPICH", "version": "5.0.2", "path": "/opt/lib/libmpi.so.12"},
)
ABSENT = Ended("", "", "is not on the PATH", absent=True)
SLURM = {
    "sinfo --version": Ended("slurm-wlm 22.05.8\n", "", ""),
    "scontrol ping": Ended("Slurmctld(primary) at head is UP\n", "", ""),
    "sinfo -h -o %P": Ended("main*\nlong\n", "", ""),
    "srun --mpi=list": Ended("MPI plugin types are...\n\tnone\n\tpmi2\n", "", ""),
}


def missing(found: str, remedy: str = "") -> Finding:
    return Finding(state="missing", found=found, remedy=remedy)


class Machine:
    """A node with four GPUs and all that runs need, but for what a test takes away."""

    def __init__(self, commands: Mapping[str, Ended] = SLURM, **findings: Finding | Exception) -> None:
        self.environment: dict[str, str] = {}
        self.asked: list[tuple[str, ...]] = []
        self._commands = commands
        names = ("launcher", "driver", "devices", "cupy", "nccl", "cublas", "nvrtc", "gpu_mpi", "nvml")
        serving = {name: Finding(state="ok", found=f"{name} 1.0") for name in names}
        self._findings: dict[str, Finding | Exception] = {"mpi": MPICH, **serving, **findings}

    async def command(self, *words: str) -> Ended:
        return self._commands.get(" ".join(words), ABSENT)

    async def probe(self, name: str, *arguments: str) -> Finding:
        self.asked.append((name, *arguments))
        found = self._findings[name]
        if isinstance(found, Exception):
            raise found
        return found


def laptop(**findings: Finding | Exception) -> Machine:
    """A machine with MPI, and neither SLURM nor a GPU."""
    driver = missing("no GPU driver on this host", "run on a node with GPUs")
    cupy = missing("CuPy is not installed", "pip install cupy")
    nvml = missing("nvidia-ml-py is not installed", "pip install nvidia-ml-py")
    return Machine({}, **{"driver": driver, "cupy": cupy, "nvml": nvml, **findings})


def told(machine: Machine, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    """Exit code and lines of the table."""
    code = doctor([], machine)
    return code, capsys.readouterr().out.splitlines()


def rows(lines: list[str]) -> dict[str, str]:
    """State and finding of each piece."""
    found = (re.fullmatch(r"  ([\w-]+) +(\w+) +(.*)", line) for line in lines[4 : lines.index("#", 4)])
    return {row[1]: f"{row[2]}: {row[3]}" for row in found if row}


def uses(lines: list[str]) -> dict[str, str]:
    """What works, and what is lacking to the rest."""
    found = (re.fullmatch(r"  (\S.*?)  +(yes|no .*)", line) for line in lines[lines.index("#", 4) :])
    return {row[1]: re.sub(r"^no +", "", row[2]) for row in found if row}


def document(machine: Machine, capsys: pytest.CaptureFixture[str]) -> Any:
    doctor(["--json"], machine)
    return json.loads(capsys.readouterr().out)


def test_where_all_is_there_everything_works(capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = told(Machine(), capsys)
    assert code == 0
    assert list(rows(lines)) == PIECES
    assert {state.partition(":")[0] for state in rows(lines).values()} == {"ok"}
    assert set(uses(lines).values()) == {"yes"}
    assert not any("remedy" in line or "needed for" in line for line in lines)
    assert lines[-1] == "OK"


def test_a_laptop_without_gpu_and_slurm_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = told(laptop(), capsys)
    assert (code, lines[-1]) == (0, "OK")
    assert uses(lines) == {
        "runs on CPUs": "yes",
        "--launcher srun": "slurm",
        "dlbench submit to a cluster": "slurm",
        "--backend nccl": "driver, cupy",
        "--backend mpi --buffers gpu": "driver, cupy",
        "--compute gemm on GPUs": "driver, cupy",
        "--compute spin": "driver, cupy",
        "energy of GPUs": "driver, nvml",
    }


def test_what_is_missing_says_what_needs_it_and_what_brings_it(capsys: pytest.CaptureFixture[str]) -> None:
    _, lines = told(Machine(nccl=missing("CuPy finds no NCCL", "module load nccl")), capsys)
    start = lines.index("  nccl      missing  CuPy finds no NCCL")
    assert lines[start + 1 : start + 3] == [
        "                     needed for --backend nccl",
        "                     remedy: module load nccl",
    ]
    assert uses(lines)["--backend nccl"] == "nccl"
    assert uses(lines)["--compute spin"] == "yes"


def test_what_depends_on_a_missing_piece_is_neither_asked_nor_blamed(capsys: pytest.CaptureFixture[str]) -> None:
    machine = laptop()
    _, lines = told(machine, capsys)
    assert rows(lines)["devices"] == "unknown: cannot be asked without driver"
    assert rows(lines)["nccl"] == "unknown: cannot be asked without cupy"
    asked = {name for name, *_ in machine.asked}
    assert not asked & {"devices", "nccl", "cublas", "nvrtc"}


@pytest.mark.parametrize(
    ("mpi", "lacking"),
    [
        (missing("mpi4py finds none: cannot load MPI library"), "mpi"),
        (Finding(state="broken", found="its probe crashes with SIGABRT"), "mpi"),
        (Finding(state="unknown", found="cannot be asked without mpi4py"), "mpi and launcher"),
    ],
)
def test_without_an_mpi_library_no_run_can_start(
    mpi: Finding, lacking: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = told(laptop(mpi=mpi), capsys)
    assert (code, lines[-1]) == (1, f"FAILED: no run can start without {lacking}")
    assert rows(lines)["launcher"] == "unknown: cannot be asked without mpi"


def test_a_launcher_of_another_mpi_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    stranger = missing("no mpiexec of MPICH (found: /usr/bin/mpiexec: mpiexec (Open MPI) 4.1.4)")
    code, lines = told(laptop(launcher=stranger), capsys)
    assert (code, lines[-1]) == (1, "FAILED: no run can start without launcher")


def test_where_srun_offers_the_pmi_of_the_library_no_other_launcher_is_needed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, lines = told(Machine(launcher=missing("no mpiexec of MPICH")), capsys)
    assert (code, lines[-1]) == (0, "OK")
    assert rows(lines)["launcher"] == "warning: no mpiexec of MPICH"
    assert "                     use --launcher srun" in lines


def test_the_launcher_is_looked_for_beside_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    machine = Machine()
    told(machine, capsys)
    assert ("launcher", "MPICH", "/opt/lib/libmpi.so.12") in machine.asked


def test_a_probe_that_fails_in_a_way_of_its_own_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = told(Machine(nvml=RuntimeError("out of\nwits\x1b[31m"), cupy=ZeroDivisionError("no")), capsys)
    assert code == 0
    assert rows(lines)["nvml"] == "broken: its probe fails with RuntimeError: out of wits\\x1b[31m"
    assert rows(lines)["cupy"] == "broken: its probe fails with ZeroDivisionError: no"
    assert rows(lines)["nvrtc"] == "unknown: cannot be asked without cupy"


def test_json_has_the_same_with_facts_under_stable_keys(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(Machine(nccl=missing("CuPy finds no NCCL", "module load nccl")), capsys)
    assert list(found) == ["dlbench", "host", "cores", "ok", "pieces", "uses"]
    assert found["ok"] is True
    pieces = {piece["name"]: piece for piece in found["pieces"]}
    assert list(pieces) == PIECES
    assert pieces["nccl"] == {
        "name": "nccl",
        "state": "missing",
        "found": "CuPy finds no NCCL",
        "note": "",
        "remedy": "module load nccl",
        "facts": {},
        "needed_for": ["--backend nccl"],
    }
    assert pieces["mpi"]["facts"] == {"family": "MPICH", "version": "5.0.2", "path": "/opt/lib/libmpi.so.12"}
    assert pieces["slurm"]["facts"]["partitions"] == ["main", "long"]
    assert {"name": "--backend nccl", "possible": False, "lacks": ["nccl"]} in found["uses"]
    assert {"name": "runs on CPUs", "possible": True, "lacks": []} in found["uses"]


def test_pieces_that_many_uses_need_name_them_in_short(capsys: pytest.CaptureFixture[str]) -> None:
    needed = {piece["name"]: piece["needed_for"] for piece in document(Machine(), capsys)["pieces"]}
    assert needed["mpi"] == needed["launcher"] == needed["mpi4py"] == ["every run"]
    assert needed["driver"] == ["every run on GPUs", "energy of GPUs"]
    assert needed["cupy"] == ["every run on GPUs"]
    assert needed["cublas"] == ["--compute gemm on GPUs"]
    assert needed["slurm"] == ["--launcher srun", "dlbench submit to a cluster"]
    assert needed["python"] == []


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--jsn"], "unknown option --jsn, did you mean --json?; see 'dlbench doctor --help'"),
        (["--timeout", "0"], "expected a number above 0, found '0'"),
        (["gpu"], "unexpected argument 'gpu'"),
    ],
)
def test_wrong_options_are_refused(argv: list[str], message: str) -> None:
    with pytest.raises(OptionError) as error:
        doctor(argv)
    assert message in str(error.value)


def printed(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DOCTOR, *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_this_machine_has_what_the_tests_run_on() -> None:
    done = printed("--json", "--timeout", "60")
    assert (done.returncode, done.stderr) == (0, "")
    pieces = {piece["name"]: piece for piece in json.loads(done.stdout)["pieces"]}
    assert list(pieces) == PIECES
    assert {pieces[name]["state"] for name in ("python", "dlbench", "mpi4py", "mpi")} == {"ok"}
    assert pieces["launcher"]["state"] in {"ok", "warning"}
    assert Path(pieces["launcher"]["facts"]["path"]).name == "mpiexec"
    assert pieces["python"]["facts"]["path"] == sys.executable


def test_a_library_that_aborts_the_process_is_a_line_and_an_exit_code(tmp_path: Path) -> None:
    (tmp_path / "mpi4py.py").write_text("import os\nos.write(2, b'Fatal: no fabric\\n')\nos.abort()\n")
    done = printed("--timeout", "60", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (1, "")
    assert rows(done.stdout.splitlines())["mpi"] == "broken: its probe crashes with SIGABRT: Fatal: no fabric"
    assert done.stdout.splitlines()[-1] == "FAILED: no run can start without mpi"


def test_a_library_that_hangs_costs_the_time_limit_and_no_more(tmp_path: Path) -> None:
    (tmp_path / "mpi4py.py").write_text("import time\ntime.sleep(600)\n")
    begin = time.monotonic()
    done = printed("--timeout", "1.5", PYTHONPATH=str(tmp_path))
    assert time.monotonic() - begin < 60
    assert rows(done.stdout.splitlines())["mpi"] == "broken: its probe gives no answer within 1.5 s"


def on_terminal(columns: int) -> list[str]:
    """Lines as a terminal of that width shows them."""
    mother, child = pty.openpty()
    with subprocess.Popen(
        [*DOCTOR, "--timeout", "60"],
        env={**os.environ, "COLUMNS": str(columns)},
        stdin=subprocess.DEVNULL,
        stdout=child,
        stderr=child,
    ):
        os.close(child)
        text = b""
        try:
            while part := os.read(mother, 65_536):
                text += part
        except OSError:  # how a terminal ends whose last writer has left
            pass
    os.close(mother)
    return text.decode().splitlines()


def test_a_terminal_gets_lines_that_fit_it() -> None:
    lines = on_terminal(80)
    assert lines[-1] == "OK"
    long = [line for line in lines if len(line) > 80]
    assert all(" " not in line.strip() for line in long), "only a word such as a path may be longer"
    assert any(line.startswith("  mpi4py    ok ") for line in lines)


def test_help_says_what_the_exit_codes_mean() -> None:
    done = printed("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "exit codes: 0 runs on CPUs work, whatever else is missing; 1 they do not" in done.stdout
    assert "--timeout S" in done.stdout
