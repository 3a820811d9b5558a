"""One rank's run, from the agreed request to the exit code."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from dlbench.comm.library import MPI
from dlbench.comm.variants import mpi_communicator
from dlbench.compute import create
from dlbench.compute.sleep import Sleeper
from dlbench.errors import CheckError, RecordError
from dlbench.roofline import Phase
from dlbench.runtime.abort import Abort
from dlbench.runtime.agreement import AgreedExit, agree
from dlbench.runtime.clock import GlobalClock
from dlbench.runtime.collector import CONTINUE, RESYNC, Collector
from dlbench.runtime.energy import EnergyReader, agreed_source
from dlbench.runtime.executor import Executor
from dlbench.runtime.hosts import Host
from dlbench.runtime.preflight import check_gpu_memory, launcher_claim
from dlbench.runtime.request import RunRequest
from dlbench.runtime.rows import RowFormat, Rows
from dlbench.runtime.start import start_line
from dlbench.runtime.watchdog import Limits, Status, Watchdog
from dlbench.strategies.accounting import Accounting, classes_of
from dlbench.strategies.messages import memory_bytes, message_table
from dlbench.strategies.ops import Compute, Scope

if TYPE_CHECKING:
    from dlbench.accelerator.protocol import DriverLoader
    from dlbench.comm.protocol import Communicator
    from dlbench.compute.protocol import Compute as ComputeModel
    from dlbench.records.schema import Backend, ClockModel
    from dlbench.runtime.devices import Gpu, Place
    from dlbench.runtime.reporter import Reporter


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
        self._driver = driver
        self._gpu: Gpu | None = None
        self._places: list[Place] = []
        """Of all ranks, on rank 0; empty where the ranks drive no GPU."""
        self._energy = EnergyReader(None)
        self._energy_source = ""
        self._opened = ExitStack()
        self._watchdog = watchdog
        self._situation = watchdog.situation
        self._configuration = request.configuration(comm.size)
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
        if self._options.uses_gpu:
            self._open_gpu()
        self._situation.enter("checking the memory")
        self._compute = self._opened.enter_context(closing(agree(self._comm, self._make_compute)))
        agree(self._comm, self._check_memory)
        self._situation.enter("synchronising the clocks")
        self._clock = GlobalClock(self._comm)
        self._situation.enter("splitting communicators")
        self._open_communicators()
        self._remarks = agree(self._comm, self._find_remarks)
        self._situation.enter("allocating buffers")
        agree(self._comm, self._check_gpu_memory)  # now that the communicators have taken theirs
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

    def _open_gpu(self) -> None:
        from dlbench.runtime.devices import join_gpus  # noqa: PLC0415 - on GPUs only

        self._situation.enter("opening the GPU")
        nccl = self._options.backend == "nccl"
        self._gpu, self._places = join_gpus(self._comm, self._host, self._driver, nccl=nccl)
        self._situation.device = self._gpu.device.facts.label
        self._energy = EnergyReader(self._gpu.driver.meter(self._gpu.device.facts))
        self._opened.callback(self._energy.close)
        source = agreed_source(self._comm, self._energy.source)
        if source is not None:
            self._energy_source, self._rows = source, self._rows.with_energy()

    def _make_compute(self) -> ComputeModel:
        return create(
            self._options.compute,
            ranks_per_core=self._host.ranks_per_core,
            seed=self._options.seed,
            device=self._gpu.device if self._gpu else None,
            precision=self._options.gemm_precision,
            dtype=self._configuration.workload.dtype,
        )

    def _needs(self, *, on_gpu: bool) -> tuple[int, int]:
        """Bytes of the rank's messages, and of the operands of its matrix products, on the GPU or on the host."""
        messages = memory_bytes(self._configuration, self._comm.rank)
        operands = self._compute.memory_bytes(self._phases())
        return messages * (self._options.gpu_messages == on_gpu), operands * (self._compute.on_device == on_gpu)

    def _check_memory(self) -> None:
        self._host.check_memory(sum(self._needs(on_gpu=False)), self._configuration.workload.scale)

    def _check_gpu_memory(self) -> None:
        if self._gpu is None:
            return
        messages, operands = self._needs(on_gpu=True)
        name = f"{self._situation.who()}: {self._gpu.device.facts.name}"
        check_gpu_memory(name, messages, operands, self._gpu.device.free_bytes(), self._configuration.workload.scale)

    def _open_communicators(self) -> None:
        """The world and one communicator a scope; closed in the reverse order, children before parents."""
        self._world = self._opened.enter_context(
            closing(mpi_communicator(self._comm, persistent=self._options.persistent))
        )
        self._communicators = {
            scope: self._opened.enter_context(closing(self._split(scope))) for scope in self._configuration.scopes()
        }

    def _split(self, scope: Scope) -> Communicator[Any, Any]:
        group = self._configuration.layout.group(scope, self._comm.rank)
        return self._world.split(color=group.start, key=self._comm.rank)

    def _make_executor(self) -> Executor:
        return Executor(
            self._configuration.program(self._comm.rank),
            layout=self._configuration.layout,
            communicators=self._communicators,
            compute=self._compute,
            dtype=self._configuration.workload.dtype,
            progress=self._world.progress if self._options.progress == "poll" else None,
            delays=self._delays(),
        )

    def _delays(self) -> dict[int, Callable[[], None]]:
        sleeper = Sleeper(self._host.ranks_per_core) if self._options.delay else None

        def sleep(milliseconds: float) -> Callable[[], None]:
            nanoseconds = round(milliseconds * 1e6)
            return lambda: sleeper.until(perf_counter_ns() + nanoseconds) if sleeper else None

        return {delay.op: sleep(delay.milliseconds) for delay in self._options.delay if delay.rank == self._comm.rank}

    def _open_record(self, clock: ClockModel | None) -> None:
        """Rank 0 writes the header; every rank learns where the record is, to note in it why it failed."""
        hosts = self._comm.gather(self._host.name)
        devices = self._comm.gather(self._situation.device)

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
                remarks=self._remarks,
                hosts=hosts,
                devices=devices,
                places=self._places,
                energy_source=self._energy_source,
                backend=self._backend(),
                compute=self._compute.describe(),
                clock=clock,
                environment=os.environ,
                command=sys.orig_argv,
            )
            self._reporter = Reporter(header, self._options, self._rows)
            self._reporter.print_header()

        agree(self._comm, open_on_root)
        path = self._reporter.path if self._reporter else None
        self._record = self._comm.bcast(str(path) if path else "")

    def _find_remarks(self) -> list[str]:
        """What is not carried out quite as the header describes it."""
        largest = max((row.elements for row in message_table(self._configuration)), default=0)
        return [*self._world.remarks(largest), *self._compute.remarks(self._phases()), *self._place_remarks()]

    def _place_remarks(self) -> list[str]:
        if not self._places:
            return []
        from dlbench.runtime.devices import place_remarks  # noqa: PLC0415 - on GPUs only

        return place_remarks(self._places)

    def _phases(self) -> list[Phase]:
        return [op.phase for op in self._configuration.ops(self._comm.rank) if isinstance(op, Compute)]

    def _backend(self) -> Backend:
        from dlbench.records.schema import Backend  # noqa: PLC0415 - rank 0 only

        claim = launcher_claim(os.environ, self._comm.size)
        described = self._world.describe()
        return Backend(
            name=described["name"],
            library=described["library"],
            carrier=described[self._configuration.workload.dtype],
            persistent=self._options.persistent,
            launcher=claim.launcher if claim else "",
        )

    def _check(self) -> None:
        from dlbench.runtime.check import PayloadCheck  # noqa: PLC0415 - with --check only

        check = PayloadCheck(
            self._executor,
            layout=self._configuration.layout,
            rank=self._comm.rank,
            communicators=self._communicators,
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
        accounting = Accounting(self._executor.program, self._rows.classes, timed=self._compute.timed)
        start = start_line(self._options.sync, self._comm, self._clock, self._host.ranks_per_core)
        collector = Collector(self._comm, self._rows.width, self._decide, lag=1 if self._options.sync == "none" else 0)
        planned = self._options.warmup + self._options.ceiling
        decision = CONTINUE
        if self._reporter:
            self._reporter.print_table_head()
        gc.collect()
        gc.disable()  # a collection inside an iteration would count as compute or as waiting
        self._energy.begin()
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
        energy = self._energy.row()  # first: clocks and reasons are those of a GPU that has just worked
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
        self._opened.close()
        self._watchdog.close()
