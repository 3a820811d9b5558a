"""Batch scripts: what they ask of SLURM, and that no value can become code."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbench.allocators.experiment import Experiment, Job
from dlbench.errors import OptionError, SpecError
from dlbench.slurm.render import Script, limit_seconds, render
from dlbench.slurm.settings import SiteSettings
from dlbench.specs import SystemSpec, load_system, system_names

HOSTILE = ["a b", "a'b", 'a"b', "$(touch x)", "`touch x`", "a;b", "a\\b", "#a", "--x", "é", "a&b", "~", "*"]
CLUSTERS = [name for name in system_names() if load_system(name).scheduler]
SITE = SiteSettings(account="ABC", reservation="XYZ")


def job(name: str, *nodes: str, gpus: int = 8) -> Job:
    return Job(name=name, strategy="dp", model="vit-h", gpus=gpus, placement="intra-l1", nodes=nodes)


TWO_JOBS = Experiment(
    name="mix-000",
    kind="concurrent",
    timeout_seconds=240,
    jobs=(job("a", "lrdn0010", "lrdn0009"), job("b", "lrdn0011", "lrdn0100")),
)
QUEUE = Experiment(name="mix-000", kind="concurrent", timeout_seconds=240, jobs=(job("a"), job("b", gpus=5)))


def script(
    system: str | SystemSpec = "leonardo", experiment: Experiment = TWO_JOBS, site: SiteSettings = SITE, **more: str
) -> str:
    spec = load_system(system) if isinstance(system, str) else system
    folder = Path(more.pop("folder", "/campaign/mix-000"))
    return render(Script(experiment=experiment, system=spec, settings=site, folder=folder, **more))


def directives(text: str) -> dict[str, str]:
    """Options of the script as sbatch reads them, a backslash within quotes too; '' for one without a value."""
    lines = re.findall(r"^#SBATCH --([a-z-]+)(?:=(.*))?$", text, flags=re.MULTILINE)
    return {option: "".join(shlex.split(re.sub(r"\\(.)", r"\1", value))) for option, value in lines}


def code(text: str) -> list[str]:
    """Lines that bash runs."""
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_slurm_is_asked_for_the_nodes_of_the_jobs_and_what_the_site_needs() -> None:
    assert directives(script()) == {
        "job-name": "mix-000",
        "partition": "boost_usr_prod",
        "account": "ABC",
        "reservation": "XYZ",
        "nodes": "4",
        "nodelist": "lrdn[0009-0011,0100]",
        "ntasks-per-node": "4",
        "cpus-per-task": "8",
        "gpus-per-node": "4",
        "exclusive": "",
        "time": "00:20:00",  # twice 240 s for the pool, 600 s to start, 120 s to end
        "chdir": "/campaign/mix-000",
        "output": "slurm-%j.out",
        "signal": "B:TERM@120",
        "no-kill": "",
        "no-requeue": "",
        "mem": "0",
    }


def test_the_script_loads_modules_sets_the_environment_checks_the_machine_and_becomes_the_pool() -> None:
    lines = code(script(site=msgspec.structs.replace(SITE, environment="/opt/my env", setup=("ulimit -l 1",))))
    assert lines[0] == "set -euo pipefail"
    assert lines[2:8] == [
        "module purge",
        "module load gcc/12.2.0",
        "module load openmpi/4.1.6--gcc--12.2.0-cuda-12.2",
        "module load nvhpc/24.5",
        "ulimit -l 1",
        "set -u",
    ]
    assert lines[8:11] == ["export NCCL_IB_SL=1", "export UCX_IB_SL=1", "export SRUN_CPUS_PER_TASK=8"]
    assert lines[11] == "export PATH='/opt/my env'/bin:\"$PATH\""
    assert lines[12:] == [
        "dlbench preflight /campaign/mix-000 --launcher auto",
        "exec dlbench pool /campaign/mix-000 --launcher auto",
    ]


def test_slurm_chooses_the_nodes_of_a_queued_experiment() -> None:
    asked = directives(script(experiment=QUEUE))
    assert asked["nodes"] == "4"  # 8 and 5 GPUs at 4 per node, no node shared
    assert "nodelist" not in asked


def test_a_view_of_a_uenv_is_mounted_where_the_site_has_one() -> None:
    asked = directives(script("alps"))
    assert (asked["uenv"], asked["view"]) == ("prgenv-gnu/26.3:v1", "default")


def test_a_system_of_the_users_own_has_the_generic_script() -> None:
    spec = load_system("leonardo")
    assert spec.scheduler is not None
    scheduler = msgspec.structs.replace(spec.scheduler, modules=(), requires=())
    sources = {section: source for section, source in spec.sources.items() if section != "gpu"}
    mine = msgspec.structs.replace(
        spec, name="mine", scheduler=scheduler, gpu=None, gpus_per_node=None, sources=sources
    )
    text = script(mine, site=SiteSettings())
    assert text.startswith("#!/bin/bash\n#SBATCH")
    assert "module" not in text
    asked = directives(text)
    assert not {"account", "reservation", "gpus-per-node", "mem"} & asked.keys()
    assert asked["ntasks-per-node"] == "1"


def test_the_users_partition_qos_and_limit_count() -> None:
    asked = directives(script(site=msgspec.structs.replace(SITE, partition="debug", qos="low", time="30")))
    assert (asked["partition"], asked["qos"], asked["time"]) == ("debug", "low", "30")


@pytest.mark.parametrize("system", CLUSTERS)
@pytest.mark.parametrize("value", HOSTILE)
def test_bash_accepts_the_script_of_every_system_and_no_value_becomes_code(
    system: str, value: str, tmp_path: Path
) -> None:
    site = SiteSettings(account=value, reservation=value, qos=value, partition=value, environment=value)
    text = script(system, site=site, launcher=value, folder="/campaign/mix-000")
    file = tmp_path / "job.sh"
    file.write_text(text)
    assert subprocess.run(["bash", "-n", file], capture_output=True, check=False, timeout=10).stderr == b""
    for option in ("account", "reservation", "qos", "partition"):
        assert directives(text)[option] == value
    pool = text.splitlines()[-1]
    heard = subprocess.run(
        ["bash", "-c", pool.replace("exec dlbench", "printf '%s\\n'")], capture_output=True, text=True, check=True
    ).stdout
    assert heard.splitlines() == ["pool", "/campaign/mix-000", "--launcher", value]


@given(st.text(st.characters(exclude_categories=("C", "Zl", "Zp")), min_size=1))
def test_any_line_of_text_is_one_directive(value: str) -> None:
    assert directives(script(site=msgspec.structs.replace(SITE, account=value)))["account"] == value


@pytest.mark.parametrize("folder", ["/a\nb", "/a%jb", "/a\\b"])
def test_a_folder_that_slurm_would_read_otherwise_is_refused(folder: str) -> None:
    with pytest.raises(OptionError, match="SLURM takes no control characters, backslashes and % in a path"):
        script(folder=folder)


def test_a_variable_that_is_none_is_refused() -> None:
    spec = load_system("leonardo")
    assert spec.scheduler is not None
    scheduler = msgspec.structs.replace(spec.scheduler, environment={"A;B": "1"})
    with pytest.raises(SpecError, match="at scheduler.environment: 'A;B' is no name of a variable"):
        script(msgspec.structs.replace(spec, scheduler=scheduler))


def test_a_reservation_is_needed_for_chosen_nodes_only() -> None:
    account = SiteSettings(account="ABC")
    assert "reservation" not in directives(script(experiment=QUEUE, site=account))
    with pytest.raises(
        OptionError, match="leonardo needs your reservation: .*; without a reservation use --mode queue"
    ):
        script(site=account)
    with pytest.raises(OptionError, match="system lumi needs your account and reservation: use --account NAME"):
        script("lumi", site=SiteSettings())


def test_a_draft_says_in_comments_what_it_lacks_and_is_otherwise_the_script() -> None:
    draft = Script(
        experiment=TWO_JOBS,
        system=load_system("leonardo"),
        settings=SiteSettings(account="ABC"),
        folder=Path("/campaign/mix-000"),
        draft=True,
    )
    text = render(draft)
    assert draft.missing() == ["reservation"]
    assert "##SBATCH --reservation=NAME, which the system needs\n" in text
    whole = directives(script())
    assert whole.pop("reservation") == "XYZ"
    assert directives(text) == whole
    assert code(text) == code(script())


def test_a_system_without_a_scheduler_has_no_script() -> None:
    with pytest.raises(OptionError, match="system nvl72 has no scheduler in its spec"):
        script("nvl72")


@pytest.mark.parametrize(("timeout", "limit"), [(10, "00:14:00"), (61, "00:15:00"), (3600, "02:12:00")])
def test_the_limit_has_room_for_an_extension_of_a_minute_or_as_long_again(timeout: int, limit: str) -> None:
    # 10 + 60, 61 + 61 and 3600 + 3600 s, each with 600 s to start and 120 s to end: 790, 842 and 7920 s.
    experiment = msgspec.structs.replace(TWO_JOBS, timeout_seconds=timeout)
    assert directives(script(experiment=experiment))["time"] == limit


def test_a_limit_that_ends_before_the_experiment_is_refused() -> None:
    with pytest.raises(OptionError) as error:
        script(site=msgspec.structs.replace(SITE, time="5:00"))
    assert str(error.value) == (
        "--time 5:00 is 300 s; experiment mix-000 needs at least 360 s to run and to end; "
        "leave --time out for 1200 s, with time to start and for a job that is late"
    )


@pytest.mark.parametrize(
    ("time", "seconds"),
    [("90", 5400), ("1:30", 90), ("1:02:03", 3723), ("2-1", 176400), ("1-0:30", 88200), ("1-1:1:1", 90061)],
)
def test_times_are_read_as_slurm_reads_them(time: str, seconds: int) -> None:
    assert limit_seconds(time) == seconds
