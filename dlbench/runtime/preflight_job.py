"""The ranks of a preflight: `python -m dlbench.preflight`.

The ring comes before anything collective: what hangs then hangs between two ranks, which can be named.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from dlbench.comm.library import MPI, version
from dlbench.errors import PreflightError
from dlbench.runtime.abort import Abort, Note
from dlbench.runtime.agreement import AgreedExit
from dlbench.runtime.machine.clocks import wall_offsets
from dlbench.runtime.machine.facts import find_facts
from dlbench.runtime.machine.options import PreflightOptions, mismatch, parse_preflight
from dlbench.runtime.machine.ring import Ring
from dlbench.runtime.machine.survey import Survey
from dlbench.runtime.preflight import launcher_claim
from dlbench.runtime.process import join_host, run_process
from dlbench.runtime.watchdog import Status, Watchdog, signal_exit_code


def run_preflight(argv: Sequence[str], prog: str, watchdog: Watchdog) -> int:
    """Exit code of a preflight: 1 where something is wrong with the machine.

    Raises `UserError` where the options are wrong, or the launcher does not belong to the MPI library.
    """
    options = parse_preflight(prog, argv)
    if isinstance(options, str):
        if watchdog.situation.rank == 0:
            print(options, end="")
        return 0
    return run_process(watchdog, lambda comm: _work(comm, options, watchdog))


def _work(comm: MPI.Intracomm, options: PreflightOptions, watchdog: Watchdog) -> int:
    if wrong := mismatch(comm.size, options.ranks):
        raise AgreedExit(wrong, PreflightError.exit_code)
    start, note = watchdog.limits, _note(options)
    # Before the ring has shown that ranks can talk, those of a host share nothing to agree who speaks.
    watchdog.abort = abort = Abort(comm.rank, comm.size, shared_file=-1, end=comm.Abort)
    abort.note = note
    lap = Ring(comm, os.uname().nodename, watchdog, options.hop_timeout).run()
    watchdog.enter("leaving the ring", start)
    host, abort = join_host(comm, watchdog)
    abort.note = note
    watchdog.situation.enter("looking at memory, devices and versions")
    facts = find_facts(comm, host.comm, version())
    watchdog.situation.enter("comparing the clocks")
    clocks = wall_offsets(comm)
    watchdog.situation.enter("collecting what the ranks have found")
    found = comm.gather((facts, lap))
    code = 0
    if found is not None:
        ranks, laps = zip(*found, strict=True)
        code = _report(Survey(facts=ranks, laps=laps, clocks=clocks), options)
    exit_code: int = comm.bcast(code)
    watchdog.close()
    return signal_exit_code(watchdog.stop_signal) if watchdog.stop_signal else exit_code


def _note(options: PreflightOptions) -> Note:
    """With --json, what breaks off prints its document too."""

    def note(status: Status, reason: str) -> bool:
        if options.json:
            from dlbench.runtime.machine.output import broken_off, print_document  # noqa: PLC0415

            print_document(broken_off(reason))
        return True

    return note


def _report(survey: Survey, options: PreflightOptions) -> int:
    """Print what has been found, and return the exit code. On rank 0 only, which alone loads what judges."""
    from dlbench.runtime.machine.output import document, failed, print_document, report_lines  # noqa: PLC0415
    from dlbench.runtime.machine.verdict import judge  # noqa: PLC0415

    findings = judge(survey, options.asked(os.environ))
    claim = launcher_claim(os.environ, len(survey.facts))
    launcher = claim.launcher if claim else ""
    if options.json:
        print_document(document(survey, findings, launcher))
    else:
        print("\n".join(report_lines(survey, findings, launcher)), flush=True)
    return int(failed(findings))
