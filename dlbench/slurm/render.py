"""The batch script of an experiment: site facts of the system, the user's settings, and the nodes.

`templates/base.sh.j2` has what every site needs; `templates/SYSTEM.sh.j2` extends it by what a site has of its own, and
a system without one has `generic.sh.j2`.
"""

from __future__ import annotations

import math
import re
import shlex
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, TemplateNotFound

from dlbench.allocators.experiment import Experiment
from dlbench.errors import OptionError, SpecError, one_line
from dlbench.slurm.hostlist import compress
from dlbench.slurm.pool import default_extension
from dlbench.slurm.settings import SiteSettings, missing, require
from dlbench.specs import SystemSpec
from dlbench.specs.system import Scheduler

START_SECONDS = 600
"""For modules, an environment on a shared file system and the preflight, before the pool starts."""
END_SECONDS = 120
"""For the pool to end its jobs: SLURM signals it so long before the limit."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBERED = re.compile(r"[0-9]+|[^0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """All that a script depends on."""

    experiment: Experiment
    system: SystemSpec
    settings: SiteSettings
    folder: Path
    """Of the experiment, absolute."""
    launcher: str = "auto"
    draft: bool = False
    """It is only to be looked at: what the site asks of its user may be missing."""

    def missing(self) -> list[str]:
        """What the system asks of its user and the settings do not have; a reservation only where nodes are chosen."""
        reserved = bool(self.experiment.jobs[0].nodes)
        names = [name for name in _scheduler(self.system).requires if reserved or name != "reservation"]
        return missing(self.settings, names)


def render(script: Script) -> str:
    """The text of the script.

    Raises `OptionError` where the system needs a setting that is missing, unless in a draft, the limit is shorter than
    the experiment, or a path cannot stand in a script.
    """
    scheduler = _scheduler(script.system)
    settings = script.settings
    absent = script.missing()
    if not script.draft:
        require(settings, absent, script.system.name)
    for name in scheduler.environment:
        if not _VARIABLE.fullmatch(name):
            raise SpecError(f"system {script.system.name}: at scheduler.environment: {name!r} is no name of a variable")
    text: str = _template(script.system.name).render(
        directives=_directives(script, scheduler),
        absent=absent,
        modules=scheduler.modules,
        # A step does not inherit the CPUs of its job since SLURM 22.05.
        variables={**scheduler.environment, "SRUN_CPUS_PER_TASK": str(scheduler.cpus_per_task)},
        setup=settings.setup,
        environment=settings.environment or sys.prefix,
        folder=_path(script.folder),
        launcher=script.launcher,
        gpus_per_node=script.system.gpus_per_node or 1,
        uenv=scheduler.uenv,
        view=scheduler.view,
    )
    return f"{text.rstrip()}\n"


def _scheduler(system: SystemSpec) -> Scheduler:
    if system.scheduler is None:
        raise OptionError(
            f"system {system.name} has no scheduler in its spec, so nothing can be submitted to it; "
            "add a section 'scheduler' to a YAML file of your own"
        )
    return system.scheduler


def _directives(script: Script, scheduler: Scheduler) -> dict[str, str | None]:
    """Options of sbatch, by their long names; None for one without a value."""
    experiment, settings = script.experiment, script.settings
    gpus_per_node = script.system.gpus_per_node or 1
    names = sorted((node for job in experiment.jobs for node in job.nodes), key=_natural)
    named = {"nodelist": compress(names)} if names else {}
    gpus = {"gpus-per-node": str(gpus_per_node)} if script.system.gpu else {}
    chosen = {name: getattr(settings, name) for name in ("account", "reservation", "qos")}
    return {
        "job-name": experiment.name,
        "partition": settings.partition or scheduler.partition,
        **{name: value for name, value in chosen.items() if value is not None},
        "nodes": str(experiment.nodes(gpus_per_node)),
        **named,
        "ntasks-per-node": str(gpus_per_node),
        "cpus-per-task": str(scheduler.cpus_per_task),
        **gpus,
        "exclusive": None,
        "time": _time(experiment, settings),
        "chdir": _path(script.folder),
        "output": "slurm-%j.out",
        "signal": f"B:TERM@{END_SECONDS}",
        # The pool goes on without the jobs on a node that fails, and a campaign decides itself what runs again.
        "no-kill": None,
        "no-requeue": None,
    }


def _time(experiment: Experiment, settings: SiteSettings) -> str:
    """Limit of the job. Raises `OptionError` for one that ends before the experiment."""
    pool = experiment.timeout_seconds + default_extension(experiment.timeout_seconds)
    needed = math.ceil(pool + START_SECONDS + END_SECONDS)
    if settings.time is None:
        minutes = math.ceil(needed / 60)
        return f"{minutes // 60:02}:{minutes % 60:02}:00"
    least = experiment.timeout_seconds + END_SECONDS
    if (given := limit_seconds(settings.time)) < least:
        raise OptionError(
            f"--time {settings.time} is {given} s; experiment {experiment.name} needs at least {least} s to run and to "
            f"end; leave --time out for {needed} s, with time to start and for a job that is late"
        )
    return settings.time


def limit_seconds(time: str) -> int:
    """Seconds of a time as SLURM writes it: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S."""
    days, dash, clock = time.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    hours_first = bool(dash) or len(parts) == 3  # noqa: PLR2004 - hours, minutes, seconds
    units = (3600, 60, 1) if hours_first else (60, 1)
    return int(days or 0) * 86400 + sum(part * unit for part, unit in zip(parts, units, strict=False))


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Key that sorts numbers within names by value, so that neighbours share a bracket."""
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in _NUMBERED.findall(name)]


def _path(folder: Path) -> str:
    r"""The folder, as a text that bash and sbatch read alike: the latter makes something of % and of \."""
    text = str(folder)
    if one_line(text) != text or "\\" in text or "%" in text:
        raise OptionError(f"-o {text}: SLURM takes no control characters, backslashes and % in a path; use another")
    return text


def _directive(value: str) -> str:
    r"""A value in an #SBATCH line, where quotes are those of bash, but \ is special within them too."""
    return shlex.quote(value).replace("\\", "\\\\")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("dlbench.slurm", "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # a shell's quoting, not that of HTML
    )
    environment.filters |= {"quote": shlex.quote, "directive": _directive}
    return environment


def _template(system: str) -> Any:
    try:
        return _environment().get_template(f"{system}.sh.j2")
    except TemplateNotFound:
        return _environment().get_template("generic.sh.j2")
