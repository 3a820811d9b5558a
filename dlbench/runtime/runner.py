"""One rank's run, from the agreed request to the exit code."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from dlbench.comm.library import MPI
from dlbench.compute.sleep import Sleeper
from dlbench.errors import CheckError, RecordError
from dlbench.runtime.abort import Abort
from dlbench.runtime.agreement import AgreedExit, agree
from dlbench.runtime.clock import GlobalClock
from dlbench.runtime.collector import CONTINUE, RESYNC, Collector
from dlbench.runtime.equipment import Equipment
from dlbench.runtime.executor import Executor, in_flight
from dlbench.runtime.hosts import Host, crowding
from dlbench.runtime.request import RunRequest
from dlbench.runtime.rows import RowFormat, Rows
from dlbench.runtime.start import start_line
from dlbench.runtime.watchdog import Limits, Status, Watchdog
from dlbench.strategies.accounting import Accounting, classes_of

if TYPE_CHECKING:
    from dlbench.accelerator.protocol import DriverLoader
    from dlbench.records.schema import ClockModel
    from dlbench.runtime.reporter import Reporter
    from dlbench.strategies.ops import Op


class Runner:
    """Sets up, checks, measures and finishes the run of one rank. Everything is collective but `note`.

    `driver` takes the place of CuPy as the way to the GPUs.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        request: RunRequest,
        host: Host,
        watchdog: Watchdog,
        abort: Abort,
        driver: DriverLoader | None = None,
    ) -> None:
        self._comm = comm
        self._request = request
        self._options = request.run
        self._host = host
        self._watchdog = watchdog
        self._situation = watchdog.situation
        self._configuration = request.configuration(comm.size)
        self._equipment = Equipment(
            comm, request, self._configuration, host=host, situation=self._situation, driver=driver
        )
        self._iteration = 0
        self._record = ""
        """Path of the record; empty where there is none yet, or none at all."""
        self._reporter: Reporter | None = None
        watchdog.limits = Limits(self._options.timeout, "--timeout", self._options.grace)
        abort.note = self.note

        programs = [self._configuration.program(role.rank) for role in self._configuration.roles()]
        self._rows = RowFormat(classes_of(programs), ops=max(map(len, programs)) if self._options.record_ops else 0)

    def run(self) -> int:
        """Exit code of the run, the same on every rank."""
        try:
            exit_code = self._run()
        except AgreedExit:
            self._close()
            raise
        self._close()
        return exit_code

    def _run(self) -> int:
        self._equipment.prepare()
        if self._equipment.energy_source is not None:
            self._rows = self._rows.with_energy()
        self._situation.enter("synchronising the clocks")
        self._clock = GlobalClock(self._comm)
        self._equipment.connect()
        self._remarks = agree(self._comm, self._equipment.remarks)
        self._situation.enter("allocating buffers")
        self._executor = agree(self._comm, self._make_executor)
        self._situation.enter("synchronising the clocks again, for their drift")
        self._open_record(self._clock.synchronise())
        if self._options.check:
            self._check()
        self._measure()
        return self._finish()

    def note(self, status: Status, reason: str) -> bool:
        """Put the end of a run that breaks off into its record; False where another rank has done so."""
        if not self._record:
            return True
        from pathlib import Path  # noqa: PLC0415 - for what breaks off only

        from dlbench.records.writer import append_end  # noqa: PLC0415
        from dlbench.runtime.reporter import end_line  # noqa: PLC0415

        with suppress(RecordError):
            number = self._watchdog.stop_signal if status == "terminated" else 0
            name = signal.Signals(number).name if number else ""
            return append_end(Path(self._record), end_line(status, reason, self._iteration, signal=name))
        return True

    def _make_executor(self) -> Executor:
        program = self._configuration.program(self._comm.rank)
        return Executor(
            program,
            layout=self._configuration.layout,
            communicators=self._equipment.communicators,
            compute=self._equipment.compute,
            dtype=self._configuration.workload.dtype,
            progress=self._equipment.progress(),
            delays=self._delays(program),
        )

    def _delays(self, program: Sequence[Op]) -> dict[int, Callable[[], None]]:
        """Sleeps before ops of this rank; like phases of computation, they drive what is in flight then."""
        delays = {delay.op: delay for delay in self._options.delay if delay.rank == self._comm.rank}
        if not delays:
            return {}
        sleeper, progress = Sleeper(self._host.ranks_per_core), self._equipment.progress()
        return {
            op: sleeper.lasting(round(delays[op].milliseconds * 1e6), progress if pending else None)
            for op, pending in enumerate(in_flight(program))
            if op in delays
        }

    def _open_record(self, clock: ClockModel | None) -> None:
        """Rank 0 writes the header; every rank learns where the record is, to note in it why it failed."""
        hosts = self._comm.gather(self._host.name)
        devices = self._comm.gather(self._situation.device)
        crowded = crowding(self._comm.gather(self._host.remark()) or [])

        def open_on_root() -> None:
            if hosts is None or devices is None or clock is None:
                return
            # Only rank 0 loads what writes and prints: thousands of ranks start from one file system.
            from dlbench.runtime.header import build_header  # noqa: PLC0415
            from dlbench.runtime.reporter import Reporter, utc_now  # noqa: PLC0415

            header = build_header(
                self._request,
                self._configuration,
                created=utc_now(),
                remarks=[*self._remarks, *crowded],
                hosts=hosts,
                devices=devices,
                places=self._equipment.places,
                energy_source=self._equipment.energy_source or "",
                backend=self._equipment.backend(),
                compute=self._equipment.compute.describe(),
                clock=clock,
                environment=os.environ,
                command=sys.orig_argv,
            )
            self._reporter = Reporter(header, self._options, self._rows)
            self._reporter.print_header()

        agree(self._comm, open_on_root)
        path = self._reporter.path if self._reporter else None
        self._record = self._comm.bcast(str(path) if path else "")

    def _check(self) -> None:
        from dlbench.runtime.check import PayloadCheck  # noqa: PLC0415 - with --check only

        check = PayloadCheck(
            self._executor,
            layout=self._configuration.layout,
            rank=self._comm.rank,
            communicators=self._equipment.communicators,
            dtype=self._configuration.workload.dtype,
        )
        self._situation.enter("checking the messages", check.current_op)
        check.run()
        found = self._comm.gather((check.messages, [f"{self._situation.who()} {fault}" for fault in check.faults]))
        ok = True
        if self._reporter and found:
            ok = self._reporter.report_check(
                sum(messages for messages, _ in found), [fault for _, faults in found for fault in faults]
            )
        if not self._comm.bcast(ok):
            raise AgreedExit("", CheckError.exit_code)

    def _measure(self) -> None:
        accounting = Accounting(self._executor.program, self._rows.classes, timed=self._equipment.compute.timed)
        start = start_line(self._options.sync, self._comm, self._clock, self._host.ranks_per_core)
        collector = Collector(self._comm, self._rows.width, self._decide, lag=1 if self._options.sync == "none" else 0)
        planned = self._options.warmup + self._options.ceiling
        decision = CONTINUE
        if self._reporter:
            self._reporter.print_table_head()
        gc.collect()
        gc.disable()  # a collection inside an iteration would count as compute or as waiting
        self._equipment.energy.begin()
        while decision in {CONTINUE, RESYNC} and self._iteration < planned:
            if decision == RESYNC:
                self._resynchronise()
            # One step from the start line to the collection: its time limit is that of the iteration.
            self._situation.enter(f"iteration {self._iteration}", self._executor.current_op)
            self._executor.reset()
            late = start()
            self._executor.iterate()
            decision = collector.exchange(self._row(accounting, late))
            self._iteration += 1
        collector.drain()
        gc.enable()

    def _decide(self, rows: Rows) -> int:
        """What the ranks do after an iteration. On rank 0 only, whose clock says when to compare the clocks again."""
        if self._reporter is None:
            raise AssertionError("only rank 0 decides")
        decision = self._reporter.decide(rows)
        in_step = self._options.sync != "none"  # where ranks keep their skew, a comparison would take it away
        return RESYNC if decision == CONTINUE and in_step and self._clock.due() else decision

    def _resynchronise(self) -> None:
        self._situation.enter(f"synchronising the clocks before iteration {self._iteration}")
        model = self._clock.synchronise()
        if self._reporter and model:
            self._reporter.clock(model)

    def _row(self, accounting: Accounting, late: bool) -> Rows:
        energy = self._equipment.energy.row()  # first: clocks and reasons are those of a GPU that has just worked
        executor, clock = self._executor, self._clock
        runtime = (executor.end - executor.begin) * 1e-9
        fixed = (clock.to_global(executor.begin), runtime, late, self._watchdog.stop_signal)
        readings = np.array([executor.enter, executor.leave], dtype=np.int64).T if self._options.record_ops else None
        return self._rows.pack(
            fixed,
            accounting.seconds(executor.enter, executor.leave),
            None if readings is None else clock.to_global(readings),
            energy,
        )

    def _finish(self) -> int:
        self._situation.enter("synchronising the clocks at the end")
        clock = self._clock.synchronise()
        self._situation.enter("writing the end of the record")
        exit_code = self._reporter.end(clock) if self._reporter else 0
        agreed: int = self._comm.bcast(exit_code)
        return agreed

    def _close(self) -> None:
        self._situation.enter("closing communicators")
        self._equipment.close()
        self._watchdog.close()
