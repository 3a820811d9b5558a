"""The report: one HTML file with what was run, on what, what was left out, the tables, and the figures."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from dlbench import __version__
from dlbench.analysis.campaign import FACTORS, KEY, Campaign
from dlbench.analysis.columns import column, counted, plain
from dlbench.analysis.plots import Drawing, encode, figures, wait_figures
from dlbench.analysis.provenance import systems
from dlbench.analysis.report_method import method
from dlbench.analysis.results import Results
from dlbench.analysis.tables import Cell, Layout, Strip, Table, build
from dlbench.analysis.taxes import Taxes
from dlbench.analysis.trace_results import SOURCES, TraceResults
from dlbench.errors import one_line
from dlbench.statistics import FEWEST_SAMPLES

ROW_LIMIT = 500
"""Rows of a table."""
RUN_LIMIT = 200
"""Rows of a table with a row per run or file."""
OPEN_ROWS = 25
"""Rows of such a table that are shown without being asked for."""
NOTE_LIMIT = 30
_TAX_NOTES = "dlbench tax --json has"
"""What has all notes on the tax."""
WIDTH = 130
"""Characters of a line of a table: what fits beside the contents on a screen of 1280 pixels, and on A4."""
_LONG = 24
"""Characters above which a text may be broken."""
_SMALL_TYPE = 0.85
"""Size of the type of an interval beside that of a number."""
_LARGEST_SVG = 500_000
"""Bytes above which a figure becomes a PNG: thousands of points are no lighter as a drawing."""
_PNG_DPI = 200
_PAGE_DPI = 130
"""Pixels of the page per inch of a figure: one for two columns fills the page."""

CONFIGURATIONS = Layout(
    name="configurations",
    title="What was run",
    about="Runs per configuration and number of GPUs; a + b: a runs alone and b beside other jobs of their experiment.",
    measures=(),
    file="runs",
)
RUNS = Layout(
    name="runs",
    title="Factors of each run",
    about="One row per run; the factors that are equal in all runs stand under What was run.",
    first=("run_id",),
    measures=("created", "experiment", "job", "concurrent_jobs", "nodes", "seed", "status", "warmups", "measured"),
)
EXCLUDED = Layout(
    name="excluded",
    title="Excluded",
    about="Files and runs that count nowhere.",
    measures=("path", "run_id", "reason_text"),
    empty="Nothing was excluded: every file that was found counts.",
    together=("path", "run_id", "reason_text"),
)
REASONS = replace(EXCLUDED, name="reasons", measures=("files", "reason_text"), file="excluded")


@dataclass(frozen=True, slots=True)
class Merit:
    """A key figure."""

    label: str
    value: str
    unit: str
    interval: str
    where: str
    """Configuration that has it, and its sample counts."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure, inside the page."""

    number: int
    title: str
    caption: str
    uri: str
    """data: URI of the image."""
    width: int
    """Pixels of the page that it takes: as many per inch for all figures, so that panels are equally large."""

    @property
    def alt(self) -> str:
        """What is there where the image is not seen."""
        return f"{self.title}: {self.caption}"


class Shown(NamedTuple):
    """A cell of the page."""

    text: str
    interval: str
    style: str
    """CSS classes."""


class Panel(NamedTuple):
    """A table of the page, or a part of one that is too wide for it."""

    head: list[Strip]
    rows: list[list[Shown]]


def render(results: Results | None, traced: TraceResults | None = None, *, title: str, command: str) -> str:
    """The report of runs, of traces or of both as HTML; `command` is the command line that made it."""
    both = results is not None and traced is not None
    parts: list[Part] = []
    if results is not None:
        parts.append(_of_runs(results))
    if traced is not None:
        parts.append(of_traces(traced, beside=both))
    plots = [plot for part in parts for plot in part.drawing.plots]
    pictures = [
        Picture(number, plot.title, plot.caption, data_uri(plot.figure), round(_PAGE_DPI * plot.figure.get_figwidth()))
        for number, plot in enumerate(plots, start=1)
    ]
    environment = Environment(
        loader=PackageLoader("dlbench.analysis", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("report.html.j2").render(
        title=one_line(title),
        version=__version__,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        command=one_line(command),
        leads=[part.lead for part in parts],
        notes=[note for part in parts for note in part.notes],
        merits=[merit for part in parts for merit in part.merits],
        ran=None if results is None else _ran(results),
        traces=None if traced is None else traced.source_table(),
        tables=[table for part in parts for table in part.tables],
        chapters=[list(pictures) for _, pictures in groupby(pictures, key=lambda picture: picture.title)],
        figures=pictures,
        omitted=[str(left_out) for part in parts for left_out in part.drawing.left_out],
        method=list(method(results, traced)),
        panels=_panels,
        row_limit=ROW_LIMIT,
        run_limit=RUN_LIMIT,
        open_rows=OPEN_ROWS,
    )


class Part(NamedTuple):
    """What runs or traces add to the sections that both have."""

    lead: str
    notes: list[str]
    merits: list[Merit]
    tables: list[Table]
    drawing: Drawing


def _of_runs(results: Results) -> Part:
    campaign = results.campaign
    return Part(
        lead=_lead(campaign),
        notes=[
            *_notes(campaign.notes, "dlbench analyze prints"),
            *_notes(_tax_notes(results), _TAX_NOTES),
        ],
        merits=list(merits(results)),
        tables=[*results.tables(), *results.tax_tables(), *results.growth_tables()],
        drawing=figures(results),
    )


def of_traces(traced: TraceResults, beside: bool) -> Part:
    """What traces add; `beside` runs, all of it says whose it is."""
    found, tables, drawing = list(tax_merits(traced.taxes)), list(traced.tables()), wait_figures(traced)
    if beside:
        found = [replace(merit, label=_titled(merit.label)) for merit in found]
        tables = [replace(table, layout=_traces_layout(table.layout)) for table in tables]
        drawing = Drawing(
            [replace(plot, title=_titled(plot.title)) for plot in drawing.plots],
            [replace(left_out, name=_titled(left_out.name)) for left_out in drawing.left_out],
        )
    return Part(
        lead=traced.lead(),
        notes=_notes(traced.taxes.notes, _TAX_NOTES),
        merits=found,
        tables=tables,
        drawing=drawing,
    )


def _traces_layout(layout: Layout) -> Layout:
    file, _ = layout.whole
    name = f"{SOURCES.name}-{layout.name}"
    return replace(layout, name=name, title=_titled(layout.title), file=file.removesuffix(".csv"))


def _titled(title: str) -> str:
    return f"{title} (traces)"


def _ran(results: Results) -> dict[str, Any]:
    """What only runs have: the factors, the systems, and what was excluded."""
    campaign, known = results.campaign, results.known()
    reasons = campaign.excluded.rename(columns={"reason": "reason_text"})
    return {
        "span": _span(campaign),
        "configurations": _configurations_table(campaign, known),
        "statements": [statement for statement in results.statements() if statement.values],
        "systems": systems(campaign),
        "runs": _runs_table(campaign, known),
        "excluded": _excluded_table(reasons),
        "reasons": build(REASONS, _counted_reasons(reasons)),
    }


def merits(results: Results) -> Iterator[Merit]:
    """The figures that a reader looks for first, as far as the runs have them."""
    grown = results.scaling[results.scaling["gpus"] > results.scaling["smallest"]]
    for label, frame, name, place in (
        ("Highest communication fraction", results.summary, "communication", np.argmax),
        ("Lowest communication fraction", results.summary, "communication", np.argmin),
        ("Lowest parallel efficiency", grown, "efficiency", np.argmin),
        ("Largest slowdown σ beside other jobs", results.slowdown.table, "sigma", np.argmax),
    ):
        there = frame[frame[name].notna()]
        if len(there):
            row = there.iloc[int(place(there[name]))]
            merit = _merit(label, row, name)
            equal = name == "sigma" and row["sigma_low"] <= 1 <= row["sigma_high"]
            yield replace(merit, interval=f"{merit.interval}: not distinguishable from none, 1") if equal else merit


def tax_merits(taxes: Taxes) -> Iterator[Merit]:
    """The largest taxes of a job's groups."""
    groups = taxes.by_group
    resolved = groups[groups["reason"] == ""]
    for label, name in (
        ("Largest median wait of the first rank (tau range)", "tau_range"),
        ("Largest share of waiting in collectives, first rank", "share_first"),
    ):
        if len(resolved):
            row = resolved.iloc[int(np.argmax(resolved[name]))]
            where = f"{row['name']}, {row['group']}; {counted(row['collectives'], 'collective')}"
            yield _estimate(label, row, name, where, "collectives")
    if len(taxes.stragglers):
        most = taxes.stragglers.iloc[0]
        yield Merit(
            label="Rank that others waited for most",
            value=f"rank {most['rank']}",
            unit="",
            interval=f"{column('caused').write(most['caused'])} {column('caused').unit} of all ranks together",
            where=f"last in {most['times']} of {most['known']} collectives of its groups that have a straggler",
        )
    if len(taxes.culprits):
        most = taxes.culprits.iloc[0]
        yield Merit(
            label="What made ranks late most",
            value=column("blamed").write(most["blamed"]),
            unit=column("blamed").unit,
            interval=column("culprit").write(most["culprit"]),
            where=f"{most['culprit_class']}, on rank {most['culprit_rank']} most often; culprit of {most['times']} of "
            f"{counted(most['explained'], 'collective')}",
        )


def _merit(label: str, row: pd.Series[Any], name: str) -> Merit:
    system, strategy, model, gpus, placement = (plain(row[factor]) for factor in KEY)
    place = ", ".join(text for text in (system, placement) if text != "-")
    samples = f"{counted(row['iterations'], 'iteration')} of {counted(row['runs'], 'run')}"
    where = f"{strategy} {model}, {gpus} GPUs{', ' if place else ''}{place}; {samples}"
    return _estimate(label, row, name, where, "iterations")


def _estimate(label: str, row: pd.Series[Any], name: str, where: str, samples: str) -> Merit:
    """The estimate `name` of a row with its interval, or why it has none."""
    shown = column(name)
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    ends = None if pd.isna(low) else f"95 % interval {shown.write(low)} – {shown.write(high)}"
    return Merit(
        label=label,
        value=shown.write(row[name]),
        unit=shown.unit,
        interval=ends or f"no 95 % interval below {FEWEST_SAMPLES} {samples}",
        where=where,
    )


def configurations(campaign: Campaign) -> pd.DataFrame:
    """Runs per configuration: one row per configuration without its GPUs, one column `N GPUs` per number of these.

    Cells are the numbers of runs alone and beside other jobs, e.g. `2 + 4`.
    """
    rows = [name for name in FACTORS if name != "gpus"]
    counts = campaign.runs.groupby([*rows, "gpus"])["concurrent"].agg(["size", "sum"])
    alone = counts["size"] - counts["sum"]
    cells = pd.Series(
        [f"{a} + {b}" if b else f"{a}" for a, b in zip(alone, counts["sum"], strict=True)], index=counts.index
    )
    return cells.unstack("gpus", fill_value="").rename(columns=lambda gpus: f"{gpus} GPUs").reset_index()


def data_uri(figure: Figure) -> str:
    """The figure as a data: URI, as SVG unless that is heavy; equal figures give equal URIs."""
    kind, drawn = "svg+xml", encode(figure, "svg")
    if len(drawn) > _LARGEST_SVG:
        kind, drawn = "png", encode(figure, "png", _PNG_DPI)
    return f"data:image/{kind};base64,{base64.b64encode(drawn).decode()}"


def _panels(table: Table, limit: int) -> Iterator[Panel]:
    for strips in table.panels(WIDTH, _width, limit):
        rows: list[list[Shown]] = []
        above: tuple[Cell, ...] = ()
        for row in zip(*(strip.cells for strip in strips), strict=True):
            same = _repeated(row, above, sum(strip.key for strip in strips))
            cells = enumerate(zip(row, strips, strict=True))
            rows.append([_shown(cell, strip, number < same) for number, (cell, strip) in cells])
            above = row
        yield Panel(strips, rows)


def _repeated(row: Sequence[Cell], above: Sequence[Cell], key: int) -> int:
    """How many cells of the key, from the left, are those of the row above."""
    pairs = zip(row[:key], above[:key], strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _shown(cell: Cell, strip: Strip, same: bool) -> Shown:
    styles = {"number": strip.numeric, "long": len(cell.text) > _LONG, "same": same}
    return Shown(cell.text, _interval(cell), " ".join(name for name, holds in styles.items() if holds))


def _width(strip: Strip) -> int:
    """Characters of a column, the interval standing in smaller type below the number."""
    cells = (max(len(cell.text), _SMALL_TYPE * len(_interval(cell))) for cell in strip.cells)
    return round(max(len(strip.heading), len(strip.unit), *cells))


def _interval(cell: Cell) -> str:
    """The interval of a cell, - where it is absent, nothing where there cannot be one."""
    if cell.low is None or cell.low == cell.high:
        return cell.low or ""
    return f"{cell.low} – {cell.high}"


def _configurations_table(campaign: Campaign, known: Collection[str]) -> Table:
    table = configurations(campaign)
    counts = tuple(str(name) for name in table if name not in FACTORS)
    return build(replace(CONFIGURATIONS, measures=counts), table, known)


def _runs_table(campaign: Campaign, known: Collection[str]) -> Table:
    """Labels and whatever else differs between runs beside what every run has, and why a run did not end as asked."""
    runs = campaign.runs
    labels = [name for name in map(str, runs) if name.startswith("label_")]
    always = {"created", "status", "measured"}
    differing = [name for name in (*RUNS.measures, *labels) if name in always or runs[name].nunique() > 1]
    frame = runs.assign(reason=runs["reason"].where(runs["status"] != "completed", ""))
    return build(replace(RUNS, measures=tuple(differing)), frame, known)


def _excluded_table(excluded: pd.DataFrame) -> Table:
    """Paths and reasons, and the runs where a file does not have the name of its run."""
    names = [Path(path).stem for path in excluded["path"]]
    repeated = (excluded["run_id"] == "") | (excluded["run_id"] == names)
    return build(EXCLUDED, excluded.drop(columns="run_id") if repeated.all() else excluded)


def _counted_reasons(excluded: pd.DataFrame) -> pd.DataFrame:
    counts = excluded["reason_text"].value_counts()
    return pd.DataFrame({"files": counts.to_numpy(), "reason_text": counts.index})


def _lead(campaign: Campaign) -> str:
    runs = campaign.runs
    measured = int(runs["measured"].sum())
    of = runs.groupby(list(FACTORS)).ngroups
    excluded = len(campaign.excluded)
    return (
        f"{counted(len(runs), 'run')} of {counted(of, 'configuration')}, {counted(measured, 'measured iteration')}; "
        f"{counted(campaign.files, 'file')} read, {excluded:,} excluded"
    )


def _span(campaign: Campaign) -> str:
    runs = campaign.runs
    moments = (datetime.fromtimestamp(time, UTC) for time in (runs["begin"].min(), runs["end"].max()))
    begin, end = (moment.strftime("%Y-%m-%d %H:%M:%S UTC") for moment in moments)
    named, experiments = (runs.loc[runs[name] != "", name].nunique() for name in ("system", "experiment"))
    on = f", on {counted(named, 'system')}" if named else ""
    part = f", {counted(experiments, 'experiment')}" if experiments else ""
    return f"{counted(len(runs), 'run')} from {begin} to {end}{on}{part}{_nameless(runs)}."


def _nameless(runs: pd.DataFrame) -> str:
    """How many runs say nothing of their system, which can be one or many."""
    count = int((runs["system"] == "").sum())
    if count == len(runs):
        return "; no run names its system"
    return f"; {counted(count, 'run')} name{'s' if count == 1 else ''} no system" if count else ""


def _tax_notes(results: Results) -> Sequence[str]:
    """That runs recorded no ops needs no note where none did."""
    return results.taxes.notes if len(results.taxes.runs) else ()


def _notes(notes: Sequence[str], all_of_them: str) -> list[str]:
    more = len(notes) - NOTE_LIMIT
    shown = [one_line(note) for note in notes[:NOTE_LIMIT]]
    return [*shown, f"{more:,} more notes: {all_of_them} all"] if more > 0 else shown
