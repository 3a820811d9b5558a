"""`dlbench submit`: designs once, refuses before it writes, and submits what is missing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from campaigns import Slurm

from dlbench.allocators.experiment import read_plan
from dlbench.cli import main as command_line
from dlbench.slurm import submit as slurm_submit

TREE = ("SwitchName=l0 Nodes=n[1-8]", "SwitchName=l1 Nodes=n[9-16]", "SwitchName=g0 Switches=l[0-1]")
SINFO = ("boost_usr_prod idle n[1-12]", "boost_usr_prod down* n[13-14]")
LEONARDO = ("--system=leonardo", "--pattern=tier", "--experiments=1", "--gpus=16", "-o", "c")
SITE = ("--account=ABC", "--reservation=XYZ")

Answer = tuple[int, str, str]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """A cluster whose partition has the nodes n1 to n12 and whose reservation has n5 to n16."""
    commands = Slurm(tmp_path / "bin")
    tree, reservation = "\n".join(TREE), "ReservationName=XYZ Nodes=n[5-16] NodeCnt=12"
    commands.answers("scontrol", f"print({reservation!r} if 'reservation' in sys.argv else {tree!r})")
    commands.prints("sinfo", *SINFO)
    monkeypatch.setenv("PATH", str(commands.folder))
    return commands


@pytest.fixture
def dlbench(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    """Run `dlbench submit` in an empty folder, without settings of the site; gives exit code, stdout and stderr."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "DLBENCH_ACCOUNT", "DLBENCH_RESERVATION"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["dlbench", "submit", *arguments])
        with pytest.raises(SystemExit) as end:
            command_line.main()
        printed = capsys.readouterr()
        return int(end.value.code or 0), printed.out, printed.err

    return run


def complaint(answer: Answer) -> str:
    """The one line that says what is wrong."""
    code, _, said = answer
    assert code == 2
    assert said.startswith("dlbench: ")
    assert said.count("\n") == 1
    return said.removeprefix("dlbench: ").rstrip("\n")


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_system_of_a_cluster_is_placed_on_its_usable_nodes_and_submitted(dlbench: Any, slurm: Slurm) -> None:
    code, out, err = dlbench(*LEONARDO, *SITE)
    assert (code, err) == (0, "")
    assert "# topology   SLURM, now, reservation XYZ: 8 nodes, 32 GPUs\n" in out
    plan = read_plan(Path("c/plan.yaml"))
    used = {node for experiment in plan.experiments for job in experiment.jobs for node in job.nodes}
    assert used <= {f"n{number}" for number in range(5, 13)}
    assert len(slurm.calls("sbatch")) == len(plan.experiments)
    assert f"{len(plan.experiments)} submitted, 0 were there; see 'dlbench status c'" in out


def test_the_same_command_again_asks_for_nothing_new_and_another_one_is_refused(dlbench: Any, slurm: Slurm) -> None:
    dlbench(*LEONARDO, *SITE)
    count = len(slurm.calls("sbatch"))
    slurm.prints("squeue", *(f"{100 + number} PENDING None" for number in range(1, count + 1)))
    slurm.prints("sinfo", "boost_usr_prod down n[1-12]")  # the plan is kept whatever the nodes do
    assert f"0 submitted, {count} were there" in dlbench(*LEONARDO, *SITE)[1]
    assert len(slurm.calls("sbatch")) == count
    assert complaint(dlbench(*LEONARDO, *SITE, "--seed=1", "--iterations=3")) == (
        "c holds another campaign: seed 0 there, 1 here; iterations default there, 3 here; "
        "use another folder with -o, or the same options"
    )


def test_a_dry_run_writes_plan_and_scripts_and_submits_nothing(dlbench: Any, slurm: Slurm) -> None:
    code, out, _ = dlbench(*LEONARDO, *SITE, "--dry-run")
    assert code == 0
    assert "nothing was submitted" in out
    assert slurm.calls("sbatch") == []
    assert {path.name for path in Path("c/mix-000").iterdir()} == {"experiment.yaml", "job.sh"}
    assert not Path("c/submissions.log").exists()


def test_a_dry_run_needs_no_account_and_says_what_its_scripts_lack(dlbench: Any, slurm: Slurm) -> None:
    code, out, err = dlbench(*LEONARDO, "--dry-run")
    assert (code, err) == (0, "")
    assert (
        "# note       the scripts have no account and no reservation: "
        "to submit, add --account NAME --reservation NAME\n"
    ) in out
    assert "##SBATCH --account=NAME" in Path("c/mix-000/job.sh").read_text()
    assert (
        "# note       the scripts have no account: to submit, add --account NAME\n"
        in (dlbench(*LEONARDO, "--dry-run", "--mode=queue", "-o", "d")[1])
    )
    assert "the scripts have no" not in dlbench(*LEONARDO, *SITE, "--dry-run")[1]


def test_a_plan_made_without_the_reservation_is_not_submitted_to_it(dlbench: Any, slurm: Slurm) -> None:
    dlbench(*LEONARDO, "--nodes=n[1-6]", "--gpus=24", "--dry-run")
    told = complaint(dlbench(*LEONARDO, *SITE, "--nodes=n[1-6]", "--gpus=24"))
    assert told.startswith("the plan has ")
    assert told.endswith(
        " that --reservation XYZ has not, such as n1; "
        "use a new folder with -o, and --topology live or --nodes of the reservation"
    )
    assert slurm.calls("sbatch") == []


def test_commands_of_slurm_without_a_controller_are_no_wall_of_words(dlbench: Any, slurm: Slurm) -> None:
    slurm.refuses(
        "scontrol",
        "scontrol: error: fetch_config: DNS SRV lookup failed\nscontrol: fatal: Could not "
        "establish a configuration source",
    )
    found = "no SLURM controller answers scontrol, see 'dlbench doctor'; use --topology FILE"
    _, out, _ = dlbench(*LEONARDO, "--dry-run")
    assert f"# topology   the spec of system leonardo, as SLURM gives none ({found}): 3420 nodes" in out
    assert complaint(dlbench(*LEONARDO, "--topology=live", "-o", "d")) == found


def test_one_seed_gives_the_same_files_byte_for_byte(dlbench: Any, slurm: Slurm) -> None:
    both = []
    for _ in range(2):
        dlbench(*LEONARDO, *SITE, "--dry-run", "--seed=7", "--persistent", "--scale=0.5")
        Path("c/.lock").unlink()
        both.append(files(Path("c")))
        Path("c").rename(f"c{len(both)}")
    assert both[0] == both[1]
    (job, *_) = read_plan(Path("c1/plan.yaml")).experiments[0].jobs
    assert (job.options["persistent"], job.options["scale"]) == (True, 0.5)


REFUSED = (
    (("--backend=nccl", "--persistent"), "--persistent is for collectives of MPI; leave it out with --backend nccl"),
    (
        ("--backend=nccl", "--compute=gemm", "--dtype=fp8", "--gpu=h100"),
        "--compute gemm cannot multiply in fp8: gemmEx, which ",
    ),
)


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_what_the_ranks_would_refuse_is_not_submitted(
    dlbench: Any, slurm: Slurm, options: tuple[str, ...], message: str, dry: tuple[str, ...]
) -> None:
    told = complaint(dlbench(*LEONARDO, *SITE, *options, *dry))
    assert told.startswith(f"experiment mix-000, job j000: {message}")
    assert not Path("c").exists()
    assert slurm.calls("sbatch") == []


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_a_plan_that_was_changed_by_hand_is_checked_before_it_is_submitted(
    dlbench: Any, slurm: Slurm, dry: tuple[str, ...]
) -> None:
    dlbench(*LEONARDO, *SITE, "--dry-run")
    plan = Path("c/plan.yaml")
    plan.write_text(plan.read_text().replace('"iterations"', '"iteratoins"'))
    before = files(Path("c"))
    told = complaint(dlbench(*LEONARDO, *SITE, *dry))
    assert told == "c/plan.yaml: experiment mix-000, job j000: unknown key iteratoins, did you mean iterations?"
    assert files(Path("c")) == before
    assert slurm.calls("sbatch") == []


def test_a_refused_campaign_leaves_no_folder_behind(dlbench: Any, slurm: Slurm) -> None:
    assert complaint(dlbench(*LEONARDO)).startswith("system leonardo needs your account and reservation: use ")
    assert not Path("c").exists()


def test_the_words_of_slurm_are_passed_on(dlbench: Any, slurm: Slurm) -> None:
    refusal = "sbatch: error: Batch job submission failed: Requested reservation is invalid"
    slurm.refuses("sbatch", refusal)
    assert complaint(dlbench(*LEONARDO, *SITE)) == f"experiment mix-000: sbatch failed: {refusal}"


def test_a_partition_that_the_cluster_does_not_have_is_named_where_names_are_made_up(
    dlbench: Any, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, out, _ = dlbench(*LEONARDO, *SITE, "--partition=boost", "--dry-run")
    assert (
        "# topology   the spec of system leonardo, as SLURM gives none "
        "(sinfo: has no partition 'boost'; it has boost_usr_prod): 3420 nodes, 13680 GPUs\n"
    ) in out


def test_without_a_cluster_names_are_made_up_and_good_for_a_dry_run_only(
    dlbench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    told = complaint(dlbench(*LEONARDO, *SITE))
    assert told.startswith("the plan has made-up names of nodes, such as g")
    assert "use --topology FILE or --topology live in another folder, --mode queue, or --dry-run" in told
    assert dlbench(*LEONARDO, *SITE, "--dry-run")[0] == 0


def test_a_file_with_the_topology_is_restricted_by_one_with_the_states(dlbench: Any) -> None:
    Path("topology.conf").write_text("\n".join(TREE))
    Path("sinfo.txt").write_text("\n".join(SINFO))
    files = ("--topology=topology.conf", "--sinfo=sinfo.txt")
    code, out, _ = dlbench(*LEONARDO, *SITE, *files, "--exclude=n1", "--dry-run")
    assert code == 0
    assert out.startswith(f"# topology   {Path().absolute()}/topology.conf: 11 nodes, 44 GPUs\n")


def test_in_mode_queue_slurm_chooses_the_nodes_and_no_reservation_is_needed(dlbench: Any, slurm: Slurm) -> None:
    assert dlbench(*LEONARDO, "--account=ABC", "--mode=queue")[0] == 0
    text = Path("c/mix-000/job.sh").read_text()
    assert "#SBATCH --nodes=4" in text
    assert "--nodelist" not in text


def test_account_and_reservation_may_stand_in_a_file(dlbench: Any, slurm: Slurm) -> None:
    Path("site.yaml").write_text("account: ABC\nreservation: XYZ\n")
    assert dlbench(*LEONARDO, "--config=site.yaml", "--dry-run")[0] == 0
    assert "#SBATCH --account=ABC\n#SBATCH --reservation=XYZ\n" in Path("c/mix-000/job.sh").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--system=leonrdo", "--pattern=tier"), "unknown system 'leonrdo'; did you mean 'leonardo'? valid: alps, "),
        (("--system=local", "--pattern=tier", "--sclae=1"), "unknown option --sclae, did you mean --scale?"),
        (("--system=local", "--pattern=tier", "--pattrens=1"), "unknown option --pattrens, did you mean --patterns?"),
        (("--system=local", "--pattern=tier", "--model=vit-b"), "--model: the plan says this of every job"),
        (("--system=local", "--pattern=tier", "--sizes=2"), "--sizes is for --pattern uniform"),
        (("--system=local", "--pattern=tier", "--utilisation=much"), "--utilisation much: expected LOW:HIGH"),
        (("--system=local", "--pattern=uniform", "--sizes=16"), "no job of 16 GPUs fits"),
        (("--system=leonardo", "--pattern=tier", "--gpus=99999"), "99999 GPUs are out of range; use 1 to 48"),
        (("--system=leonardo", "--pattern=tier", "--nodes=n[1,1]"), "topology scontrol show topology: a list of nodes"),
        (("--system=leonardo", "--pattern=tier", "--topology=none"), ": no such file or directory"),
        (("--system=leonardo", "--pattern=tier", "--partition=lost", "--topology=live"), "sinfo: has no partition"),
        (("--system=local", "--pattern=tier", "--sinfo=x"), "--sinfo is for --topology FILE"),
        (("--system=nvl72", "--pattern=tier"), "system nvl72 has no scheduler in its spec"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    dlbench: Any, slurm: Slurm, arguments: tuple[str, ...], message: str
) -> None:
    assert message in complaint(dlbench(*arguments))
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("folder", "message"),
    [("file", "-o file: is no folder; use another name"), ("/proc/none/c", "-o /proc/none/c: no such file or dir")],
)
def test_a_folder_that_cannot_be_one_is_refused(dlbench: Any, folder: str, message: str) -> None:
    Path("file").touch()
    assert message in complaint(dlbench("--system=local", "--pattern=tier", "-o", folder))


def test_a_machine_without_slurm_runs_its_experiments_here_and_goes_on_where_it_stopped(
    dlbench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = {"event": "pool_ended", "time": 1.0, "reason": "timeout", "exit_code": 0, "left": []}
    tally = {"job": "j", "starts": 1, "completed": 1, "failed": 0, "iterations": 3, "given_up": ""}
    start = {"event": "pool_started", "time": 9e9, "experiment": "e", "launcher": "mpiexec", "slurm_job": ""}
    start |= {"timeout_seconds": 1, "extension_seconds": 1, "grace_seconds": 1, "respawns": 0, "jobs": []}
    lines = "".join(f"{json.dumps(event)}\n" for event in (start, {**end, "jobs": [tally]}))
    program = "import sys; open(sys.argv[1] + '/pool.log', 'a').write(sys.argv[2])"
    monkeypatch.setattr(slurm_submit, "_pool", lambda folder, _: [sys.executable, "-c", program, str(folder), lines])
    options = ("--system=local", "--pattern=tier", "--experiments=2", "--no-baselines", "-o", "c")
    code, out, err = dlbench(*options)
    assert (code, err) == (0, "")
    assert "# options    scale 0.0001, time-scale 0.001, iterations 3, min-seconds 6\n" in out
    assert out.count("concurrent, ") == 2
    assert "2 completed\n" in out
    kept = Path("c/submissions.log").read_text()
    with Path("c/submissions.log").open("w") as file:
        file.write(kept.splitlines(keepends=True)[0])
    code, out, _ = dlbench(*options)
    assert (code, out.count("[1/1] mix-001: concurrent, ")) == (0, 1)
