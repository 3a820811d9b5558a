"""Rank 0's side of a run: it writes the record, prints the rows, and decides when enough is measured."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from dlbench.errors import CheckError, RecordError, RunError
from dlbench.records.measures import Measures
from dlbench.records.schema import Clock, ClockModel, End, Header
from dlbench.records.throttling import Throttling
from dlbench.records.writer import RecordWriter
from dlbench.runtime.collector import CONTINUE, STOP
from dlbench.runtime.output import (
    Printer,
    SummaryRow,
    header_lines,
    microseconds,
    milliseconds,
    number,
    percent,
    row,
    summary_lines,
    table_head,
)
from dlbench.runtime.request import RunOptions
from dlbench.runtime.rows import SIGNAL, RowFormat
from dlbench.runtime.stopping import StoppingRule
from dlbench.runtime.watchdog import signal_exit_code
from dlbench.statistics import Summary, geometric_mean, summarise

_JSON_FACTS = (
    *("run_id", "created", "strategy", "world_size", "replicas", "degrees", "dtype", "local_batch", "microbatches"),
    *("sequence_length", "buckets", "units", "scale", "time_scale", "ideal_seconds", "compute", "backend", "notes"),
    *("system", "placement", "experiment", "job", "concurrent_jobs", "labels", "seed", "energy_source"),
)
"""Keys of the header that the document of `--json` repeats: what must be equal for runs to be compared."""

_ENERGY = {"energy_joules": "energy [J]", "samples_per_joule": "samples/J"}
"""Measures that only runs on metered GPUs have: their names in JSON, and as they are printed."""


def utc_now() -> str:
    """The present moment in ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def end_line(
    status: Literal["completed", "terminated", "failed"],
    reason: str,
    iterations: int,
    *,
    signal: str = "",
    clock: ClockModel | None = None,
) -> End:
    """The end line of a record, as of now."""
    return End(status=status, reason=reason, iterations=iterations, ended=utc_now(), signal=signal, clock=clock)


class Reporter:
    """Turns the rows of all ranks into record lines, printed rows and decisions.

    `row_format` says what the columns of the rows are.
    """

    def __init__(self, header: Header, options: RunOptions, row_format: RowFormat) -> None:
        self.iterations = 0
        self.reason = ""
        self.status: Literal["completed", "terminated", "failed"] = "completed"
        self.signal = ""
        self.exit_code = 0
        self._decision = CONTINUE
        self._header = header
        self._options = options
        self._rows = row_format
        self._samples = header.local_batch * header.replicas
        self._stopping = StoppingRule(options)
        self._measured: list[Measures] = []
        self._throttling = Throttling(header.hosts)
        self._printer = Printer(sys.stderr if options.json else sys.stdout)
        self._writer = self._open_record()

    @property
    def path(self) -> Path | None:
        """The record, if one is written."""
        return self._writer.path if self._writer else None

    def _open_record(self) -> RecordWriter | None:
        if self._options.record is None:
            return None
        return RecordWriter(Path(self._options.record), self._header.run_id, self._header, ops=self._options.record_ops)

    def print_header(self) -> None:
        """The header: what runs, on what, with which factors."""
        self._printer.comment(header_lines(self._header, str(self.path) if self.path else None))

    def report_check(self, messages: int, faults: Sequence[str]) -> bool:
        """Say how the payload check went; after faults the run has failed, and ends. Returns whether all was well."""
        if not faults:
            self._printer.comment([f"check      OK: {messages} messages verified on {self._header.world_size} ranks"])
            return True
        self._printer.comment(f"check      WRONG: {fault}" for fault in faults)
        self.status = "failed"
        self.exit_code = CheckError.exit_code
        self.reason = f"wrong data: {faults[0]}"
        self.end(None)
        return False

    def print_table_head(self) -> None:
        """The names of the columns."""
        self._printer.comment(["", *table_head()])

    def decide(self, rows: NDArray[np.float64]) -> int:
        """Take in one iteration, rows of shape (ranks, columns); return what the ranks do next."""
        iteration = self._rows.iteration(rows, index=self.iterations, warmup=self.iterations < self._options.warmup)
        if self._writer:
            self._writer.iteration(iteration, self._rows.borders(rows))
        self.iterations += 1
        measures = Measures(iteration, self._samples)
        self._printer.line(row(iteration, measures))
        if not iteration.warmup:
            self._measured.append(measures)
            self._stopping.add(measures.seconds)
            if iteration.energy:
                self._throttling.add(iteration.energy)
        return self._next(rows[:, SIGNAL])

    def _next(self, signals: NDArray[np.float64]) -> int:
        if self._decision != CONTINUE:  # decided earlier; this iteration was under way
            return self._decision
        if signals.any():
            rank = int(np.flatnonzero(signals)[0])
            number = int(signals[rank])
            self.status = "terminated"
            self.signal = signal.Signals(number).name
            self.reason = f"{self.signal} on rank {rank} ({self._header.hosts[rank]})"
            self.exit_code = self._decision = signal_exit_code(number)
        elif self._stopping.finished():
            self._decision = STOP
        return self._decision

    def clock(self, model: ClockModel) -> None:
        """Take in the clock model that holds from the next iteration on."""
        if self._writer:
            self._writer.clock(Clock(index=self.iterations, model=model))

    def end(self, clock: ClockModel | None) -> int:
        """Write the end line, print the summary and the verdict; return the exit code."""
        self.reason = self.reason or self._stopping.reason()
        self._end_record(clock)
        self._printer.comment(["", *summary_lines(self._summary_rows(), self._mean_throughput())])
        self._printer.comment(self._throttling.lines())
        if self._options.json:
            sys.stdout.write(msgspec.json.encode(self._json()).decode() + "\n")
            sys.stdout.flush()
        where = f"; record {self.path}" if self.path else ""
        self._printer.comment([f"{self.reason}{where}"])
        self._printer.line("OK" if self.status == "completed" else f"FAILED: {self._why()}")
        return self.exit_code

    def _end_record(self, clock: ClockModel | None) -> None:
        """Write the end line. A record that is lost fails the run, whose summary is then all that remains of it."""
        if self._writer is None:
            return
        try:
            self._writer.end(end_line(self.status, self.reason, self.iterations, signal=self.signal, clock=clock))
        except RecordError as error:
            self.status = "failed"
            self.exit_code = self.exit_code or RunError.exit_code
            self.reason = str(error)

    def _why(self) -> str:
        return f"terminated by {self.reason}" if self.status == "terminated" else self.reason

    def _summaries(self) -> dict[str, Summary]:
        """Measures of the measured iterations by their name in JSON, in SI units."""
        measured = self._measured
        if not measured:
            return {}
        samples = {
            "seconds": [measures.seconds for measures in measured],
            "throughput": [measures.throughput for measures in measured],
            "communication_fraction": [measures.communication for measures in measured],
            "hidden_fraction": [measures.hidden for measures in measured],
            "skew_seconds": [measures.skew for measures in measured],
        }
        joules = [measures.energy.joules for measures in measured if measures.energy]
        if joules:
            samples["energy_joules"] = joules
        if joules and all(joules):  # a counter that did not move in a short iteration gives no rate
            samples["samples_per_joule"] = [self._samples / used for used in joules]
        return {name: summarise(values) for name, values in samples.items()}

    def _class_summaries(self) -> dict[str, Summary]:
        """Seconds of each communication class on the rank that spent most in it."""
        classes = self._measured[0].classes if self._measured else {}
        return {name: summarise([measures.classes[name] for measures in self._measured]) for name in classes}

    def _summary_rows(self) -> list[SummaryRow]:
        """The summary as it is printed: milliseconds, percent, microseconds."""
        summaries = self._summaries()
        if not summaries:
            return []
        classes = self._class_summaries().items()
        return [
            SummaryRow("time [ms]", summaries["seconds"], milliseconds),
            SummaryRow("throughput [samples/s]", summaries["throughput"], number),
            SummaryRow("communication [%]", summaries["communication_fraction"], percent),
            *(SummaryRow(f" {name} [ms]", summary, milliseconds) for name, summary in classes),
            SummaryRow("hidden [%]", summaries["hidden_fraction"], percent),
            SummaryRow("skew [µs]", summaries["skew_seconds"], microseconds),
            *(SummaryRow(_ENERGY[name], summaries[name], number) for name in _ENERGY if name in summaries),
        ]

    def _mean_throughput(self) -> float | None:
        """Geometric mean over the measured iterations, as publications summarise throughput."""
        return geometric_mean([measures.throughput for measures in self._measured]) if self._measured else None

    def _json(self) -> dict[str, Any]:
        """The document of `--json`; docs/measurement.md lists its keys."""
        header = msgspec.to_builtins(self._header)
        names = ("seconds", "throughput", "communication_fraction", "hidden_fraction", "skew_seconds")
        summaries = self._summaries()
        return {
            "record": str(self.path) if self.path else None,
            "status": self.status,
            "reason": self.reason,
            "signal": self.signal,
            "iterations": self.iterations,
            "warmup": self.iterations - len(self._measured),
            **{name: summaries.get(name) for name in names},
            "communication_seconds": self._class_summaries(),
            "throughput_geometric_mean": self._mean_throughput(),
            **{name: summaries.get(name) for name in _ENERGY},
            "throttled": list(self._throttling.lines()),
            **{key: header[key] for key in _JSON_FACTS},
            "model": header["model"]["name"],
            "gpu": header["gpu"]["name"],
        }
