"""The report as a page: what it says, that it needs nothing beside it, and that no record can break out of it."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from builder import end, header, iterations, write_lines, write_run
from kineto_job import Delay, Job, Op
from kineto_writer import Collective, Group, Writing, run
from kineto_writer import write_run as write_traces
from matplotlib.figure import Figure
from ops_builder import arrivals, collective, table_of, write_taxed
from shared_data import shared_file

from dlbench import __version__
from dlbench.analysis import report
from dlbench.analysis.culprits import CulpritClasses
from dlbench.analysis.export import frames
from dlbench.analysis.load import load
from dlbench.analysis.provenance import systems
from dlbench.analysis.report import configurations, data_uri, merits, render
from dlbench.analysis.results import Results, evaluate
from dlbench.analysis.tax_sources import tax_of_traces
from dlbench.analysis.trace_results import TraceResults
from dlbench.analysis.traces.source import UnreadableTrace

HOSTILE = "<script>alert(1)</script>"
GOLDEN_TAX = (7625, 1100, 169, 126, 221, 535, 582, 883)
"""tau_range of the collectives of dlrm8, in the order of time, microseconds."""
RUN_SECTIONS = {"run", "systems", "summary", "runs", "excluded"}
TAX_SECTIONS = {"tax", "groups", "stragglers", "largest"}
PATH_SECTIONS = {"culprit_classes", "culprits", "paths"}
VOID = {"meta", "img", "br", "hr", "link", "input"}


class Page(HTMLParser):
    """Text, elements and attributes of a page; notes elements that are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.source = text
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.crossed: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.crossed.append(tag)

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        """All text, blanks as one."""
        return " ".join(" ".join(self.texts).split())

    def column(self, section: str, heading: str) -> list[str]:
        """Cells of the column with this heading, of the table of a section."""
        within = self.source.split(f'<section id="{section}">')[1].split("</section>")[0]
        for part in within.split("<table>")[1:]:
            head, body = part.split("</thead>")
            names = re.findall(r"<th [^>]*>([^<]*)", head)
            if heading in names:
                rows = [re.findall(r"<td[^>]*>([^<]*)", row) for row in body.split("<tr>")[1:]]
                return [cells[names.index(heading)] for cells in rows]
        raise AssertionError(f"no column {heading} in {section}")

    def attributes(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


def results_of(folder: Path, min_overlap: float = 0.8) -> Results:
    return evaluate(load([folder]), seed=0, min_overlap=min_overlap)


def page_of(folder: Path, **changes: str) -> Page:
    arguments = {"title": "Two machines", "command": "dlbench report records/"} | changes
    return Page(render(results_of(folder), **arguments))


def write_growing(folder: Path) -> None:
    """A run with blocks enough for a fit."""
    program = table_of(range(4), {"op": "compute", "name": "forward", "seconds": 1.0}, collective("gradient"))
    own = np.random.default_rng(1).normal(1.0, 0.1, size=(40, 4))
    arrays = [[[(0, rank), (rank, max(ranks))] for rank in ranks] for ranks in own.tolist()]
    write_taxed(folder, arrays, program, name="taxed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Baselines on 2 and 4 ranks, a pair of concurrent jobs, a failed run and a foreign file."""
    folder = tmp_path_factory.mktemp("records")
    seconds = [1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 1.0, 1.02]
    for ranks in (2, 4):
        write_run(folder, f"alone-{ranks}", [[time] * ranks for time in seconds], hosts=["n1"] * ranks)
    for job in ("x", "y"):
        together = {"experiment": "pair", "job": job, "concurrent_jobs": 2, "labels": {"mode": "queue"}}
        write_run(folder, f"beside-{job}", [[1.5 * time] * 2 for time in seconds], hosts=["n2", "n3"], **together)
    lines = iterations([[1.0, 1.0]], [[0.1, 0.1]])
    write_lines(folder / "failed.jsonl", header("failed", 2), *lines, end(1, "failed", "rank 1 on n3: no memory"))
    (folder / "foreign.jsonl").write_text("hello\n")
    return folder


@pytest.fixture(scope="module")
def page(folder: Path) -> Page:
    return page_of(folder)


def test_the_page_is_well_formed(page: Page) -> None:
    assert page.crossed == []


def test_the_page_needs_nothing_beside_it(page: Page) -> None:
    assert not page.attributes("script") + page.attributes("link") + page.attributes("iframe")
    assert page.attributes("img")
    assert all(image["src"].startswith("data:image/") for image in page.attributes("img"))
    assert all(link["href"].startswith("#") for link in page.attributes("a"))
    policies = [meta["content"] for meta in page.attributes("meta") if meta.get("http-equiv")]
    assert policies == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'"]


def test_the_contents_list_leads_to_sections_that_are_there(page: Page) -> None:
    anchors = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
    links = [link["href"].removeprefix("#") for link in page.attributes("a")]
    assert set(links) <= anchors
    assert {"key-figures", "run", "systems", "summary", "scaling", "slowdown", "runs", "excluded", "method"} <= set(
        links
    )


def test_the_page_says_what_was_run_and_what_was_left_out(page: Page) -> None:
    assert "4 runs of 3 configurations, 32 measured iterations; 6 files read, 2 excluded" in page.text
    assert "failed: rank 1 on n3: no memory" in page.text
    assert "is no run record" in page.text


def test_the_page_names_the_command_and_version_that_made_it(page: Page) -> None:
    assert f"Made by dlbench {__version__} on " in page.text
    assert "dlbench report records/" in page.text


def test_every_figure_has_a_caption_and_a_text_for_those_who_do_not_see_it(page: Page) -> None:
    images = page.attributes("img")
    assert len(page.attributes("figcaption")) == len(images)
    assert all(len(image["alt"]) > 40 for image in images)


def test_figures_are_as_wide_on_the_page_as_their_inches_whatever_image_they_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "_LARGEST_SVG", 40_000)
    images = page_of(folder).attributes("img")
    assert {image["src"].split(";")[0] for image in images} == {"data:image/svg+xml", "data:image/png"}
    # Single and double column, 3.4 and 7.0 inches of 130 pixels.
    assert {image["width"] for image in images} == {"442", "910"}


def test_numbers_stand_with_their_interval_and_unit(page: Page) -> None:
    # 1.0 s is the median of the 8 times; of 8 samples the extremes enclose it: 900 and 1100 ms.
    assert "time ms" in page.text
    assert "1000.0 900.00 – 1100.0" in page.text


def test_key_figures_name_the_configuration_and_its_samples(folder: Path) -> None:
    found = {merit.label: merit for merit in merits(results_of(folder))}
    slowest = found["Largest slowdown σ beside other jobs"]
    # Every iteration beside the other job takes 1.5 times as long.
    assert slowest.value == "1.500"
    assert slowest.where == "dp vit-h, 2 GPUs, leonardo, intra-l1; 16 iterations of 2 runs"
    # Both sizes take equally long: twice the samples on twice the GPUs.
    assert found["Lowest parallel efficiency"].value == "100.0"
    # `write_run` makes a fifth of every runtime communication.
    assert (found["Highest communication fraction"].value, found["Highest communication fraction"].unit) == (
        "20.0",
        "%",
    )


def test_a_key_figure_without_interval_says_so(tmp_path: Path) -> None:
    write_run(tmp_path, "short", [[1.0, 1.0]] * 5)
    assert {merit.interval for merit in merits(results_of(tmp_path))} == {"no 95 % interval below 6 iterations"}


def test_there_are_no_key_figures_of_what_was_not_measured(tmp_path: Path) -> None:
    write_run(tmp_path, "alone", [[1.0, 1.0]] * 6)
    assert {merit.label.split()[-2] for merit in merits(results_of(tmp_path))} == {"communication"}
    text = page_of(tmp_path).text
    assert "no concurrent run: nothing ran beside other jobs of its experiment" in text
    assert "Nothing was excluded: every file that was found counts." in text


def test_runs_are_counted_alone_and_beside_others_per_number_of_gpus(folder: Path) -> None:
    found = configurations(load([folder])).set_index("mode")[["2 GPUs", "4 GPUs"]]
    assert found.to_dict("index") == {"": {"2 GPUs": "1", "4 GPUs": "1"}, "queue": {"2 GPUs": "0 + 2", "4 GPUs": ""}}


def test_systems_list_their_hosts_and_what_only_some_runs_have(tmp_path: Path) -> None:
    write_run(tmp_path, "a", [[1.0, 1.0]], hosts=["n2", "n1"], packages={"numpy": "2.4.6"})
    write_run(tmp_path, "b", [[1.0, 1.0]], hosts=["n1", "n1"], packages={"numpy": "2.5.0"})
    write_run(tmp_path, "c", [[1.0, 1.0]], hosts=["n1", "n1"], packages={"numpy": "2.5.0"}, environment={"A": "1"})
    write_run(tmp_path, "d", [[1.0, 1.0]], system="", hosts=["m", "m"])
    unnamed, leonardo = systems(load([tmp_path]))
    facts = dict(leonardo.facts())
    assert facts["runs"] == ["3"]
    assert facts["hosts (2)"] == ["n1", "n2"]
    assert facts["packages"] == ["numpy 2.5.0 (2 runs)", "numpy 2.4.6 (1 run)"]
    assert facts["environment"] == ["A=1 (1 run)"]
    assert facts["library"] == ["MPICH 5.0.2"]
    assert unnamed.name == "system not named"


@pytest.mark.parametrize(
    ("named", "said"),
    [
        (["a", "b", "b"], ", on 2 systems."),
        (["a", "a", ""], ", on 1 system; 1 run names no system."),
        (["a", "", ""], ", on 1 system; 2 runs name no system."),
        (["", "", ""], " UTC; no run names its system."),
    ],
)
def test_only_systems_that_runs_name_are_counted(tmp_path: Path, named: list[str], said: str) -> None:
    for number, system in enumerate(named):
        write_run(tmp_path, f"run-{number}", [[1.0, 1.0]], system=system)
    section = page_of(tmp_path).source.split('<section id="run">')[1]
    span = section.split("<p>")[1].split("</p>")[0]
    assert span.startswith("3 runs from ")
    assert span.endswith(said)


def excluded_panels(folder: Path) -> list[str]:
    """Each part of the table of what was excluded, as markup."""
    section = page_of(folder).source.split('<section id="excluded">')[1].split("</section>")[0]
    return section.split("<table>")[1:]


def test_an_excluded_file_stands_beside_its_reason_and_not_beside_its_name_again(tmp_path: Path) -> None:
    folder = tmp_path / ("deep/" * 25)
    folder.mkdir(parents=True)
    write_run(tmp_path, "counts", [[1.0, 1.0]])
    lines = iterations([[1.0, 1.0]], [[0.1, 0.1]])
    write_lines(folder / "failed.jsonl", header("failed", 2), *lines, end(1, "failed", "rank 1: no memory" * 9))
    (folder / "foreign.jsonl").write_text("hello\n")
    (table,) = excluded_panels(tmp_path)
    assert re.findall(r"<th [^>]*>([^<]*)", table) == ["path", "reason"]
    assert table.count("foreign.jsonl") == 1


def test_an_excluded_file_of_another_name_than_its_run_has_both(tmp_path: Path) -> None:
    write_run(tmp_path, "counts", [[1.0, 1.0]])
    lines = iterations([[1.0, 1.0]], [[0.1, 0.1]])
    write_lines(tmp_path / "renamed.jsonl", header("failed", 2), *lines, end(1, "failed", "rank 1: no memory"))
    (table,) = excluded_panels(tmp_path)
    assert re.findall(r"<th [^>]*>([^<]*)", table) == ["path", "run", "reason"]


def test_what_a_record_says_is_text_and_never_markup(tmp_path: Path) -> None:
    hostile = header(
        HOSTILE,
        2,
        system=HOSTILE,
        placement='"><img src=x onerror=alert(2)>',
        model={"name": HOSTILE, "parameters": 1},
        backend={"name": HOSTILE, "library": HOSTILE, "carrier": HOSTILE},
        hosts=[HOSTILE, "&amp;"],
        labels={"<b>": "<i>"},
        packages={HOSTILE: HOSTILE},
        environment={HOSTILE: "'\"<&>"},
        experiment=HOSTILE,
    )
    write_lines(tmp_path / "hostile.jsonl", hostile, *iterations([[1.0, 1.0]] * 6, [[0.1, 0.1]] * 6), end(6))
    write_run(tmp_path, "plain", [[1.0, 1.0]] * 6)
    (tmp_path / "<b>bold.jsonl").write_text("hello\n")
    page = page_of(tmp_path, title=HOSTILE, command=f"dlbench report {HOSTILE}")
    assert page.crossed == []
    assert not {"script", "i"} & {tag for tag, _ in page.elements}
    assert all(image["src"].startswith("data:") for image in page.attributes("img"))
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert page.text.count(HOSTILE) > 5
    assert "<b>bold.jsonl" in page.text


def test_control_characters_of_a_record_are_shown_as_escapes(tmp_path: Path) -> None:
    write_run(tmp_path, "odd", [[1.0, 1.0]] * 6, system="a\x1b[31m\nb", hosts=["h\x00", "h"])
    text = render(results_of(tmp_path), title="t", command="c")
    assert "\x1b" not in text
    assert "\x00" not in text
    assert "a\\x1b[31m\\nb" in text


@pytest.mark.parametrize(("epoch", "begin"), [("-4.9e10", "417-04-02 08:55:00"), ("4.9e10", "3522-10-01 15:08:20")])
def test_far_times_that_count_have_a_date(tmp_path: Path, epoch: str, begin: str) -> None:
    path = write_run(tmp_path, "far", [[1.0, 1.0]] * 6)
    path.write_text(path.read_text().replace('"unix_epoch": 1700000000.0', f'"unix_epoch": {epoch}'))
    assert f"{begin} UTC" in page_of(tmp_path).text


def test_scaled_and_killed_runs_are_said_before_any_number(tmp_path: Path) -> None:
    lines = iterations([[1.0, 1.0]] * 6, [[0.1, 0.1]] * 6)
    write_lines(tmp_path / "killed.jsonl", header("killed", 2, scale=0.01), *lines)
    results = evaluate(load([tmp_path]).separate(), seed=0, min_overlap=0.8)
    text = Page(render(results, title="t", command="c")).text
    first = text.index("Read this first")
    assert first < text.index("the run was killed after 6 iterations") < text.index("Highest communication fraction")
    assert first < text.index("all runs are scaled") < text.index("Highest communication fraction")


def test_many_runs_are_cut_with_the_way_to_see_them_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RUN_LIMIT", 3)
    monkeypatch.setattr(report, "OPEN_ROWS", 2)
    for number in range(5):
        write_run(tmp_path, f"run-{number}", [[1.0, 1.0]])
        (tmp_path / f"foreign-{number}.jsonl").write_text("hello\n")
    page = page_of(tmp_path)
    assert "3 of 5 rows are shown; all are in runs.csv of dlbench analyze --csv DIR ." in page.text
    assert "3 of 5 rows are shown; all are in excluded.csv of dlbench analyze --csv DIR ." in page.text
    assert "run-2" in page.text
    assert "run-4" not in page.text
    assert len(page.attributes("details")) == 2
    assert "5 is no run record; one begins with a header line" in page.text


def test_many_notes_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "NOTE_LIMIT", 1)
    lines = iterations([[1.0, 1.0]] * 2, [[0.1, 0.1]] * 2)
    for name in ("a", "b", "c"):
        write_lines(tmp_path / f"{name}.jsonl", header(name, 2), *lines)
    for name in ("d", "e", "f"):
        write_taxed(tmp_path, [arrivals(0.0, 0.1)], table_of(range(2), collective("x")), name=name)
        (tmp_path / f"{name}.ops.npy").unlink()
    text = page_of(tmp_path).text
    assert "2 more notes: dlbench analyze prints all" in text
    # Three files are missing, and three runs recorded no ops.
    assert "3 more notes: dlbench tax --json has all" in text


def test_every_table_names_the_file_that_has_all_of_its_rows(tmp_path: Path) -> None:
    write_growing(tmp_path)
    results = results_of(tmp_path)
    written = {
        "dlbench analyze --csv DIR": frames(results),
        "dlbench tax --csv DIR": results.taxes.frames(),
        "dlbench extremes --csv DIR": {"fits", "predictions"},
        "dlbench bandwidth --csv DIR": {"bandwidth"},
    }
    tables = [*results.tables(), *results.tax_tables(), *results.growth_tables()]
    layouts = [*(table.layout for table in tables), report.CONFIGURATIONS, report.RUNS, report.EXCLUDED, report.REASONS]
    assert {layout.command for layout in layouts} == {"analyze", "tax", "extremes", "bandwidth"}
    for layout in layouts:
        file, command = layout.whole
        assert file.removesuffix(".csv") in written[command]


def test_many_rows_are_cut_with_the_command_that_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "ROW_LIMIT", 1)
    program = table_of(range(4), collective("gradient"), collective("parameter", op="allgather"))
    write_taxed(tmp_path, [[[(rank / 4, 1.0), (1.0, 2.0)] for rank in range(4)]] * 22, program)
    text = page_of(tmp_path).text
    assert "1 of 2 rows are shown; all are in tax.csv of dlbench tax --csv DIR ." in text
    assert "20 of 22 rows are shown; all are in collectives.csv of dlbench tax --csv DIR" in text


def test_a_figure_is_drawn_as_a_vector_image_unless_that_is_heavy(monkeypatch: pytest.MonkeyPatch) -> None:
    figure = Figure(figsize=(2, 2))
    figure.add_subplot().plot(np.arange(10))
    light = data_uri(figure)
    assert light.startswith("data:image/svg+xml;base64,")
    assert b"<svg" in base64.b64decode(light.partition(",")[2])
    monkeypatch.setattr(report, "_LARGEST_SVG", 100)
    heavy = data_uri(figure)
    assert base64.b64decode(heavy.removeprefix("data:image/png;base64,")).startswith(b"\x89PNG")


def test_the_same_campaign_gives_the_same_page_but_for_its_date(folder: Path) -> None:
    results = results_of(folder)
    dated = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC")
    first, second = (dated.sub("", render(results, title="t", command="c")) for _ in range(2))
    assert first == second


def test_runs_with_ops_show_their_tax_and_who_caused_it(tmp_path: Path) -> None:
    program = table_of(range(4), collective("gradient"))
    write_taxed(tmp_path, [arrivals(0.0, 0.0, 0.25, 0.0)] * 8, program, name="taxed")
    page = page_of(tmp_path)
    assert {"tax", "groups", "stragglers", "largest"} <= {element.get("id") for element in page.attributes("section")}
    assert "allreduce/world world 0-3 8 8 250000" in page.text
    assert "Distribution of the synchronisation tax" in page.text
    assert "a rank is a straggler only where it came later than every other" in page.text
    assert page.crossed == []


def test_runs_without_ops_have_no_section_on_the_tax(tmp_path: Path) -> None:
    write_run(tmp_path, "bare", [[1.0, 1.0]] * 6)
    page = page_of(tmp_path)
    assert "tax" not in {element.get("id") for element in page.attributes("section")}
    assert "recorded no ops" not in page.text


def test_damaged_ops_are_told_at_the_top(tmp_path: Path) -> None:
    program = table_of(range(4), collective("gradient"))
    write_taxed(tmp_path, [arrivals(0.0, 0.0, 0.25, 0.0)], program, name="taxed")
    (tmp_path / "taxed.ops.npy").write_bytes(b"no arrays" * 100)
    assert "taxed.ops.npy: holds no arrays of numpy.save" in page_of(tmp_path).text


def test_runs_with_enough_blocks_show_how_waits_grow_and_the_bandwidth_law(tmp_path: Path) -> None:
    write_growing(tmp_path)
    page = page_of(tmp_path)
    assert {"fits", "predictions", "bandwidth"} <= {element.get("id") for element in page.attributes("section")}
    assert "Waits of dp vit-h on 4 GPUs, world; all-reduces of 268.4 MB" in page.text
    assert "an extrapolation beyond k = 16, where no measurement supports the tail" in page.text
    assert "How waits grow with the group. " in page.text
    assert "At most 4 groups are fitted" in page.text
    assert page.crossed == []


def test_too_few_blocks_are_a_line_under_what_is_not_drawn(tmp_path: Path) -> None:
    program = table_of(range(4), {"op": "compute", "name": "forward", "seconds": 1.0}, collective("gradient"))
    write_taxed(tmp_path, [[[(0, 1), (1, 2)]] * 4] * 6, program, name="taxed")
    page = page_of(tmp_path)
    assert "extremes: dp vit-h on 4 GPUs: world: 6 blocks were measured; a tail takes 30 or more" in page.text
    assert "bandwidth: no group of ranks has a fit of its block times" in page.text
    assert "fits" not in {element.get("id") for element in page.attributes("section")}
    assert "At most 4 groups are fitted" not in page.text


def traced(paths: Sequence[Path], *, critical_path: bool = True) -> TraceResults:
    return TraceResults(taxes=tax_of_traces(paths, seed=3, explain=CulpritClasses() if critical_path else None))


def trace_page(found: TraceResults, **changes: str) -> Page:
    arguments = {"title": "Traces", "command": "dlbench report traces/"} | changes
    return Page(render(None, found, **arguments))


def sections(page: Page) -> set[str]:
    return {element["id"] for element in page.attributes("section") if "id" in element}


def twin(folder: Path, waits: Sequence[int] = GOLDEN_TAX, ranks: int = 8) -> list[Path]:
    """Traces of all-reduces for which rank 0 comes later than all others, by these microseconds."""
    folder.mkdir(exist_ok=True)
    program = [Collective("allreduce", Group("0", tuple(range(ranks)), "dp"))] * len(waits)
    compute = [{rank: 10_000_000 + (1000 * wait if rank == 0 else 0) for rank in range(ranks)} for wait in waits]
    return write_traces(folder, run(program, compute), Writing(form="old"))


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Traces of a job in which a kernel of rank 2 takes 0.7 ms longer before four of eight collectives."""
    segment = [Op("gemm_kernel", 200_000), Op("layer_norm_kernel", 40_000)]
    delays = {(2, number, 0): Delay(gpu=700_000) for number in (1, 3, 5, 7)}
    return Job(segments=[segment] * 8, delays=delays).write(tmp_path_factory.mktemp("job"))


def test_a_report_of_traces_has_the_tax_and_its_reasons_and_nothing_of_runs(job: list[Path]) -> None:
    page = trace_page(traced(job))
    assert page.crossed == []
    assert {"key-figures", "traces", "tables", "figures", "method"} | TAX_SECTIONS | PATH_SECTIONS <= sections(page)
    assert not RUN_SECTIONS & sections(page)
    anchors = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
    links = [link["href"].removeprefix("#") for link in page.attributes("a")]
    assert set(links) <= anchors
    assert not RUN_SECTIONS & set(links)
    assert "Traces of 4 ranks, 8 collectives of 1 group; waits are known to" in page.text
    assert len(page.attributes("img")) == 3  # distribution, map, and predicted against measured


def test_key_figures_of_traces_name_the_straggler_and_the_delayed_kernel(job: list[Path]) -> None:
    found = {merit.label: merit for merit in report.tax_merits(traced(job).taxes)}
    assert found["Rank that others waited for most"].value == "rank 2"
    culprit = found["What made ranks late most"]
    assert culprit.interval == "gemm_kernel"
    # Four times 0.7 ms; the first collective is none of these.
    assert culprit.unit == "ms"
    assert float(culprit.value) == pytest.approx(2.8, rel=0.01)
    assert culprit.where == "GEMM, on rank 2 most often; culprit of 4 of 4 collectives"


def test_the_method_of_traces_is_that_of_what_the_page_shows(job: list[Path]) -> None:
    text = trace_page(traced(job)).text
    assert "a rank waits by as much as its kernel takes longer than the shortest of the group" in text
    assert "percentiles of a bootstrap (seed 3)" in text
    assert "from the collective's kernel back in time" in text
    assert "Warm-up iterations are never counted" not in text
    assert "iterations; " not in text
    assert "At most 4 groups are fitted" not in text


def test_without_critical_paths_nothing_is_said_of_reasons(job: list[Path]) -> None:
    page = trace_page(traced(job, critical_path=False))
    assert sections(page) >= TAX_SECTIONS
    assert not PATH_SECTIONS & sections(page)
    assert "from the collective's kernel back in time" not in page.text
    assert "What made ranks late" not in page.text
    assert "tax-paths: no collective has critical paths" in page.text


def test_every_trace_stands_with_its_rank_size_and_hash(tmp_path: Path) -> None:
    found = traced(twin(tmp_path / "traces"))
    content = (tmp_path / "traces" / "rank5.pt.trace.json").read_bytes()
    row = found.sources.set_index("rank").loc[5]
    assert row.to_dict() == {
        "path": str(tmp_path / "traces" / "rank5.pt.trace.json"),
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    text = trace_page(found).text
    assert f"All lie in {tmp_path / 'traces'}." in text
    assert f"5 rank5.pt.trace.json {hashlib.sha256(content).hexdigest()} " in text


def test_traces_of_several_folders_have_their_paths_in_full(tmp_path: Path) -> None:
    paths = twin(tmp_path / "traces")
    moved = paths[3].rename(tmp_path / paths[3].name)
    text = trace_page(traced([*paths[:3], moved, *paths[4:]])).text
    assert "All lie in" not in text
    assert f"3 {moved} " in text


def test_a_trace_that_has_gone_is_told(tmp_path: Path) -> None:
    paths = twin(tmp_path / "traces")
    found = traced(paths)
    paths[0].unlink()
    said = f"^{re.escape(str(paths[0]))}: cannot be read again for its SHA-256: No such file or directory$"
    with pytest.raises(UnreadableTrace, match=said):
        trace_page(found)


def test_many_traces_are_folded_but_all_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "OPEN_ROWS", 3)
    monkeypatch.setattr(report, "RUN_LIMIT", 2)
    page = trace_page(traced(twin(tmp_path / "traces")))
    assert len(page.attributes("details")) == 1
    assert "8 files One file per rank" in page.text
    assert "rank7.pt.trace.json" in page.text


def test_the_report_of_a_synthetic_twin_has_its_waits(tmp_path: Path) -> None:
    """The eight waits of the real traces, whose clocks tell whole microseconds, on ranks 1 to 7."""
    page = trace_page(traced(twin(tmp_path / "traces")))
    assert [float(tau) for tau in page.column("largest", "tau range")] == sorted(GOLDEN_TAX, reverse=True)
    # The median rank waits as long as the first: all but rank 0 come together.
    assert [float(tau) for tau in page.column("largest", "tau med")] == sorted(GOLDEN_TAX, reverse=True)
    assert page.column("largest", "straggler") == ["0"] * 8
    assert "rank 0" in page.text.split("Rank that others waited for most")[1][:20]


def test_the_report_of_the_real_trace_set_has_its_waits() -> None:
    paths = sorted(shared_file("traces/dlrm8").iterdir())
    page = trace_page(traced(paths))
    assert page.crossed == []
    assert "Traces of 8 ranks, 8 collectives of 2 groups" in page.text
    assert [float(tau) for tau in page.column("largest", "tau range")] == sorted(GOLDEN_TAX, reverse=True)
    assert page.column("largest", "straggler") == ["7", "7", "4", "5", "5", "7", "7", "7"]
    assert "rank 7" in page.text.split("Rank that others waited for most")[1][:20]


def test_what_was_dropped_of_traces_stands_at_the_top(tmp_path: Path) -> None:
    paths = twin(tmp_path / "traces")
    whole = paths[4].read_text()
    paths[4].write_text(whole[: whole.rindex("ncclKernel")])
    text = trace_page(traced(paths)).text
    notes = text.split("Read this first")[1].split("Largest median wait")[0]
    assert f"{paths[4]}: " in notes
    assert "allreduce (all ranks): rank 4 has 7 collectives, others up to 8; those beyond were left out" in notes


def test_the_notes_of_many_traces_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "NOTE_LIMIT", 2)
    paths = twin(tmp_path / "traces")
    for path in paths:
        path.write_text(path.read_text()[:-20])
    assert "more notes: dlbench tax --json has all" in trace_page(traced(paths)).text


def test_traces_with_enough_collectives_show_how_waits_grow_and_the_bandwidth_law(tmp_path: Path) -> None:
    tmp_path.joinpath("traces").mkdir()
    own = np.random.default_rng(2).normal(10e6, 1e6, size=(41, 8)).astype(int)
    program = [Collective("allreduce", Group("0", tuple(range(8)), "dp"))] * 41
    paths = write_traces(tmp_path / "traces", run(program, [dict(enumerate(row)) for row in own.tolist()]))
    page = trace_page(traced(paths, critical_path=False))
    assert {"fits", "predictions", "bandwidth"} <= sections(page)
    assert "Waits of traces, dp (0-7); all-reduces of 268.4 MB" in page.text
    assert "At most 4 groups are fitted, those of most ranks" in page.text
    assert page.crossed == []


def test_too_few_collectives_of_traces_are_a_line_under_what_is_not_drawn(job: list[Path]) -> None:
    page = trace_page(traced(job))
    assert re.search(r"extremes: \S+ \(all ranks\): 7 blocks were measured; a tail takes 30 or more", page.text)
    assert "fits" not in sections(page)


def test_runs_and_traces_together_keep_their_tables_apart(tmp_path: Path, job: list[Path]) -> None:
    program = table_of(range(4), collective("gradient"))
    write_taxed(tmp_path, [arrivals(0.0, 0.0, 0.25, 0.0)] * 8, program, name="taxed")
    page = Page(render(results_of(tmp_path), traced(job), title="t", command="c"))
    assert page.crossed == []
    of_traces = {f"traces-{name}" for name in TAX_SECTIONS | PATH_SECTIONS}
    assert RUN_SECTIONS | TAX_SECTIONS | of_traces | {"traces"} <= sections(page)
    ids = [element["id"] for _, element in page.elements if "id" in element]
    assert len(ids) == len(set(ids))
    assert "1 run of 1 configuration" in page.text
    assert "Traces of 4 ranks, 8 collectives" in page.text
    assert "Synchronisation tax (traces)" in page.text
    assert "Rank that others waited for most (traces) rank 2" in page.text
    assert "Distribution of the synchronisation tax (traces). Share" in page.text
    assert "extremes (traces): " in page.text
    assert "its own entry to the last entry of its group" in page.text
    assert "takes longer than the shortest of the group" in page.text


def test_cut_tables_of_traces_name_the_file_that_has_all_of_their_rows(tmp_path: Path, job: list[Path]) -> None:
    write_run(tmp_path, "bare", [[1.0, 1.0]] * 6)
    found = traced(job)
    results = results_of(tmp_path)
    written = found.taxes.frames()
    layouts = [table.layout for table in report.of_traces(found, beside=True).tables]
    assert {layout.whole[0].removesuffix(".csv") for layout in layouts} <= set(written)
    assert Page(render(results, found, title="t", command="c")).crossed == []


def test_what_a_trace_says_is_text_and_never_markup(tmp_path: Path) -> None:
    folder = tmp_path / "<b>bold"
    paths = twin(folder)
    for path in paths:
        path.write_text(path.read_text().replace("ncclKernel_AllReduce_RING_LL", f"ncclKernel_AllReduce_{HOSTILE}"))
    page = trace_page(traced(paths))
    assert page.crossed == []
    assert not {"script", "i"} & {tag for tag, _ in page.elements}
    assert "All lie in " in page.text
    assert "<b>bold" in page.text
    assert "ncclKernel_AllReduce_<script>" in page.text
