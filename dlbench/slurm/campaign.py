"""A campaign: the folder with a plan, its experiments, and what has become of them.

- `campaign.yaml`: what was asked for
- `plan.yaml`: the plan; `plan.json` where it is too large for YAML
- `submissions.log`: what was submitted and cancelled, append-only
- `NAME/experiment.yaml`: the plan of one experiment, which the pool reads
- `NAME/job.sh`: its batch script, and `slurm-ID.out` what that printed
- `NAME/results`, `NAME/logs` and `NAME/pool.log`: what the pool writes
- `NAME/pool.err`: what a pool on this machine has said on standard error
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from dlbench.allocators.experiment import LARGEST_YAML, Experiment, Option, Plan, read_plan, write_plan
from dlbench.errors import OptionError, UserError
from dlbench.files import UNFINISHED, new_file
from dlbench.slurm.journal import append, complete_lines, lock, mend
from dlbench.slurm.pool_jobs import EXPERIMENT_FILE
from dlbench.specs.check import NonNegative, Positive, Text
from dlbench.specs.reading import read

REQUEST_FILE = "campaign.yaml"
PLAN_FILES = ("plan.yaml", "plan.json")
"""The latter where the plan is too large for YAML."""
SUBMISSIONS_FILE = "submissions.log"
SCRIPT_FILE = "job.sh"
POOL_ERRORS = "pool.err"
LOCK_FILE = ".lock"
_LOCK_TRIES, _LOCK_SECONDS = 5, 0.1
"""A look at the lock holds it for a moment, which must not fail a submission."""

LOCAL = "local"
"""Id of a job that is run on this machine, in the foreground."""


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a campaign was asked for: all that decides what its plan is and how its jobs run."""

    system: Text
    pattern: Literal["tier", "uniform"]
    mode: Literal["reserved", "queue"]
    seed: NonNegative
    experiments: Positive
    patterns: Positive
    baselines: bool
    gpus: Positive | None = None
    sizes: tuple[Positive, ...] = ()
    """GPUs per job of a uniform pattern."""
    nodes: Text | None = None
    exclude: Text | None = None
    topology: Text | None = None
    sinfo: Text | None = None
    utilisation: Text | None = None
    timeout: Positive | None = None
    """Seconds of every experiment; None: as long as its jobs need."""
    launcher: Text = "auto"
    tiers: Text | None = None
    catalogue: Text | None = None
    rules: Text | None = None
    options: dict[str, Option] = {}
    """Options of every run."""


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """A line of submissions.log."""

    time: float
    """Unix time."""
    event: Literal["submitted", "cancelled"]
    experiment: str
    job_id: str


class Submitter(NamedTuple):
    """A `dlbench submit` at work."""

    pid: int
    """0 where it has not yet said."""
    host: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@dataclass(frozen=True, slots=True)
class Campaign:
    """A campaign on disk."""

    folder: Path
    request: Request
    plan: Plan

    @property
    def plan_file(self) -> Path:
        """Where the plan is."""
        return _plan_file(self.folder)

    def folder_of(self, experiment: Experiment) -> Path:
        """Folder of an experiment."""
        return self.folder / experiment.name

    def write_experiment(self, experiment: Experiment) -> Path:
        """Write what the pool reads; gives the folder."""
        folder = self.folder_of(experiment)
        folder.mkdir(exist_ok=True)
        write_plan(msgspec.structs.replace(self.plan, experiments=(experiment,)), folder / EXPERIMENT_FILE)
        return folder

    def note(self, event: Literal["submitted", "cancelled"], experiment: str, job_id: str) -> None:
        """Append to submissions.log; it is on the disk when this returns."""
        line = msgspec.json.encode(Submission(time=time.time(), event=event, experiment=experiment, job_id=job_id))
        with FileIO(self.folder / SUBMISSIONS_FILE, "a+") as file:
            mend(file)
            append(file, line)
            os.fsync(file.fileno())

    def submissions(self) -> dict[str, Submission]:
        """The last event of every experiment that has one. Raises `UserError` with the line of what is none."""
        path = self.folder / SUBMISSIONS_FILE
        last: dict[str, Submission] = {}
        for number, line in enumerate(complete_lines(path), start=1):
            try:
                submission = msgspec.json.decode(line, type=Submission)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise UserError(f"{path}: line {number}: no submission: {error}") from None
            last[submission.experiment] = submission
        return last


def find_campaign(folder: Path, request: Request) -> Campaign | None:
    """The campaign of a folder, if it was started for the same request; None for a folder that is new or empty.

    Raises `UserError` for a folder with another campaign, with what differs, or with anything else in it.
    """
    path = folder / REQUEST_FILE
    if folder.exists() and not folder.is_dir():
        raise OptionError(f"-o {folder}: is no folder; use another name")
    if not path.exists():
        entries = sorted(entry.name for entry in folder.iterdir()) if folder.exists() else []
        ours = {LOCK_FILE, *PLAN_FILES}
        if strangers := [name for name in entries if name not in ours and not name.endswith(UNFINISHED)]:
            raise OptionError(f"-o {folder}: has {strangers[0]} and no {REQUEST_FILE}; use a new or an empty folder")
        return None
    if differences := list(_differences(read(path, Request), request)):
        raise OptionError(
            f"{folder} holds another campaign: {'; '.join(differences)}; "
            "use another folder with -o, or the same options"
        )
    return open_campaign(folder)


def make_folder(folder: Path) -> None:
    """The folder of a campaign, if it is not there yet. Raises `OptionError` where it cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"-o {folder}: {(error.strerror or str(error)).lower()}; use another folder") from None


def start_campaign(folder: Path, request: Request, plan: Plan) -> Campaign:
    """Begin a campaign in a folder where `find_campaign` has found none."""
    small, large = (folder / name for name in PLAN_FILES)
    write_plan(plan, small)
    if small.stat().st_size > LARGEST_YAML:
        small.unlink()
        write_plan(plan, large)
    _write_request(folder / REQUEST_FILE, request)  # last: what has it is whole
    return Campaign(folder, request, plan)


def open_campaign(folder: Path) -> Campaign:
    """The campaign in a folder. Raises `UserError` where there is none."""
    request = folder / REQUEST_FILE
    if not request.exists():
        raise UserError(f"{folder}: is no campaign, it has no {REQUEST_FILE}; name the folder of 'dlbench submit'")
    return Campaign(folder, read(request, Request), read_plan(_plan_file(folder)))


def _plan_file(folder: Path) -> Path:
    small, large = (folder / name for name in PLAN_FILES)
    return large if large.exists() else small


def _write_request(path: Path, request: Request) -> None:
    content: dict[str, Any] = msgspec.to_builtins(request)
    text = "".join(f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in content.items())
    with new_file(path) as file:
        file.write(text.encode())


def _differences(present: Request, asked: Request) -> Iterator[str]:
    before, after = (_flat(request) for request in (present, asked))
    for name in before | after:
        if before.get(name) != after.get(name):
            yield f"{name} {_shown(before.get(name))} there, {_shown(after.get(name))} here"


def _flat(request: Request) -> dict[str, Any]:
    """The options of the runs beside those of the campaign."""
    fields: dict[str, Any] = msgspec.structs.asdict(request)
    options: dict[str, Any] = fields.pop("options")
    return fields | options


def _shown(value: object) -> str:
    return "default" if value is None else json.dumps(value, ensure_ascii=False)


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Keep others from submitting in the folder; gives a file descriptor with which a child process does so too.

    Raises `UserError` while another submits.
    """
    with (folder / LOCK_FILE).open("a+") as file:
        for attempt in range(_LOCK_TRIES):
            if lock(file.fileno()):
                break
            if attempt == _LOCK_TRIES - 1:
                raise UserError(f"{folder}: another 'dlbench submit' ({_holder(folder)}) is at work; wait for it")
            time.sleep(_LOCK_SECONDS)
        file.truncate(0)
        file.write(f"{os.getpid()} {os.uname().nodename}\n")
        file.flush()
        yield file.fileno()


def submitter(folder: Path) -> Submitter | None:
    """The `dlbench submit` that holds the folder; None if none does."""
    try:
        with (folder / LOCK_FILE).open("r+") as file:
            return None if lock(file.fileno()) else _holder(folder)
    except FileNotFoundError:
        return None


def _holder(folder: Path) -> Submitter:
    pid, _, host = (folder / LOCK_FILE).read_text().strip().partition(" ")
    return Submitter(int(pid) if pid.isdecimal() else 0, host)
