"""Submitting what a campaign lacks: to SLURM, or where a machine has none to its own cores, one by one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO

from dlbench.allocators.experiment import Experiment
from dlbench.errors import DlbenchError, OptionError, RunError, UserError
from dlbench.files import new_file
from dlbench.quantities import counted
from dlbench.slurm.campaign import LOCAL, POOL_ERRORS, SCRIPT_FILE, Campaign, submitter
from dlbench.slurm.pool_log import LOG_NAME, read_pool_log, unended
from dlbench.slurm.processes import MARK_VARIABLE, kill_marked, marked
from dlbench.slurm.render import Script, render
from dlbench.slurm.settings import SiteSettings
from dlbench.slurm.states import MISSING, UNDER_WAY, State, Status, survey
from dlbench.slurm.steps import slurm_output
from dlbench.specs import SystemSpec

Report = Callable[[str], object]


def missing(campaign: Campaign, *, again: bool = False) -> list[Experiment]:
    """Experiments that are still to be submitted, in the plan's order; `again` adds those that are incomplete.

    The caller has the lock. Raises `UserError`.
    """
    wanted = MISSING | {State.INCOMPLETE} if again else MISSING
    states = {status.experiment: status.state for status in survey(campaign, locked=True)}
    return [experiment for experiment in campaign.plan.experiments if states[experiment.name] in wanted]


def design_scripts(
    campaign: Campaign,
    experiments: Sequence[Experiment],
    system: SystemSpec,
    settings: SiteSettings,
    *,
    draft: bool = False,
) -> list[Script]:
    """What the scripts of the experiments depend on; a `draft` may lack what the site asks for."""
    return [
        Script(
            experiment=experiment,
            system=system,
            settings=settings,
            folder=campaign.folder_of(experiment).absolute(),
            launcher=campaign.request.launcher,
            draft=draft,
        )
        for experiment in experiments
    ]


def write_scripts(
    campaign: Campaign,
    experiments: Sequence[Experiment],
    system: SystemSpec,
    settings: SiteSettings,
    *,
    draft: bool = False,
) -> list[Path]:
    """Write what each of the experiments needs to run; gives their scripts. Raises `OptionError`, and then has none."""
    texts = [render(script) for script in design_scripts(campaign, experiments, system, settings, draft=draft)]
    scripts = [campaign.write_experiment(experiment) / SCRIPT_FILE for experiment in experiments]
    for script, text in zip(scripts, texts, strict=True):
        with new_file(script) as file:
            file.write(text.encode())
        script.chmod(0o755)
    return scripts


def submit_all(campaign: Campaign, experiments: Sequence[Experiment], scripts: Sequence[Path], report: Report) -> None:
    """Submit the scripts one after the other; each is in submissions.log before the next.

    Raises `UserError` with SLURM's own words where it refuses one, or does not say its id.
    """
    # What these variables say would win over the script without a word.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SBATCH_")}
    for experiment, script in zip(experiments, scripts, strict=True):
        with _undisturbed():
            try:
                job_id = _submit(script, environment)
            except RunError as error:
                raise UserError(f"experiment {experiment.name}: {error}") from None
            campaign.note("submitted", experiment.name, job_id)
        report(f"{experiment.name}: job {job_id}")


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C between SLURM's answer and the line in the log would leave a job that nobody knows of: it waits."""
    received: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda number, _: received.append(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for late in received:
            signal.raise_signal(late)


def _submit(script: Path, environment: Mapping[str, str]) -> str:
    """Id of the job. Raises `RunError` where SLURM refuses it, or what it prints has none."""
    printed = slurm_output(["sbatch", "--parsable", str(script.absolute())], environment).strip()
    # A site's own sbatch may print lines before it; on a cluster of clusters the name of one follows.
    job_id = printed.rpartition("\n")[2].partition(";")[0]
    if not job_id.isdecimal():
        raise RunError(f"sbatch printed {printed!r} and no id of a job; see squeue before you submit again")
    return job_id


def run_here(campaign: Campaign, experiments: Sequence[Experiment], report: Report, lock: int) -> int:
    """Run the pools one after the other on this machine; exit code.

    A signal ends the pool that runs in peace, and is the last one's exit code: 128 + its number. `lock` is what
    `locked` gives: the pools hold it too, so that one which outlives its submitter still counts as running.
    """
    failed = False
    with _forwarded(lock) as signals:
        for index, experiment in enumerate(experiments, start=1):
            if signals.received:
                break
            jobs = counted(len(experiment.jobs), "job")
            report(f"[{index}/{len(experiments)}] {experiment.name}: {experiment.kind}, {jobs}")
            folder = campaign.write_experiment(experiment)
            command = _pool(folder, campaign.request.launcher)
            with (folder / POOL_ERRORS).open("w+", encoding="utf-8", errors="replace") as errors:
                campaign.note("submitted", experiment.name, LOCAL)
                failed |= signals.run(command, mark=_mark(folder), errors=errors) != 0
                errors.seek(0)
                print(end=errors.read(), file=sys.stderr)
            # What a pool that was killed has left would run beside the next experiment.
            kill_marked(unended(read_pool_log(folder / LOG_NAME)))
        if signals.received:
            return 128 + signals.received[0]
    return int(failed)


def cancel(campaign: Campaign, names: Sequence[str], report: Report) -> None:
    """Cancel those of the experiments that are under way; none named: all.

    Those that run are told to end in peace, so that no finished iteration is lost. Raises `UserError` for an unknown
    name, or where SLURM does not answer.
    """
    known = {experiment.name for experiment in campaign.plan.experiments}
    if unknown := [name for name in names if name not in known]:
        raise OptionError(f"{campaign.folder} has no experiment {unknown[0]!r}; it has {', '.join(sorted(known))}")
    chosen = [
        status for status in survey(campaign) if status.state in UNDER_WAY and (not names or status.experiment in names)
    ]
    for status in chosen:
        _cancel(campaign, status)
        campaign.note("cancelled", status.experiment, status.job_id)
        report(f"{status.experiment}: {'ending' if status.state is State.RUNNING else 'cancelled'}")
    if not chosen and not names and _between_two(campaign):
        _end_submitter(campaign)
        report("ending 'dlbench submit', which was between two experiments")
    elif not chosen:
        report("nothing to cancel: no experiment is pending or running")


def _between_two(campaign: Campaign) -> bool:
    """Whether a `dlbench submit` is at work that runs experiments here, while none of them runs."""
    here = any(submission.job_id == LOCAL for submission in campaign.submissions().values())
    return here and submitter(campaign.folder) is not None


def _cancel(campaign: Campaign, status: Status) -> None:
    if status.job_id == LOCAL:
        _end_submitter(campaign)
        return
    # The pool is the batch script's own process: its steps must hear of the end from it, not from SLURM.
    gently = ["--batch", "--signal=TERM"] if status.state is State.RUNNING else []
    try:
        slurm_output(["scancel", *gently, status.job_id])
    except RunError as error:
        raise UserError(f"experiment {status.experiment}: {error}") from None


def _end_submitter(campaign: Campaign) -> None:
    """End the `dlbench submit` that runs experiments in its foreground, or the pool that has outlived it, in peace."""
    found = submitter(campaign.folder)
    if found is None or not found.pid:
        return
    if found.host != os.uname().nodename:
        raise UserError(f"{campaign.folder}: its experiments run under {found}; cancel them there")
    pools = marked({_mark(campaign.folder_of(experiment)) for experiment in campaign.plan.experiments})
    for pid in [found.pid] if Path(f"/proc/{found.pid}").exists() else pools:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def _pool(folder: Path, launcher: str) -> list[str]:
    return [sys.executable, "-m", "dlbench", "pool", str(folder), "--launcher", launcher]


def _mark(folder: Path) -> str:
    """By which the pool of an experiment is found among the processes of this host."""
    return f"pool of {folder.absolute()}"


class _Signals:
    """Signals that were received, each handed on to the process that runs."""

    def __init__(self, lock: int) -> None:
        self._lock = lock
        self.received: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, command: Sequence[str], mark: str, errors: IO[str]) -> int:
        """Exit code of the command, whose standard error goes to a file.

        It has a session of its own: Ctrl-C reaches it once, from here.
        """
        sys.stdout.flush()
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
                pass_fds=(self._lock,),
                env={**os.environ, MARK_VARIABLE: mark},
            )
        except OSError as error:
            raise DlbenchError(f"cannot start {command[0]}: {error.strerror}") from None
        return self._process.wait()

    def take(self, number: int, _: FrameType | None) -> None:
        """Signal handler. The pool knows nothing of terminals: where one closes, it ends as by SIGTERM."""
        self.received.append(number)
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)


@contextmanager
def _forwarded(lock: int) -> Iterator[_Signals]:
    signals = _Signals(lock)
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # which is what nohup asks for
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, signals.take) for number in numbers}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
