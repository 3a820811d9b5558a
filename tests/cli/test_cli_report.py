"""`dlbench report`: where the file goes, and what goes wrong; what is in it is tested with the analysis."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from builder import write_run
from shared_data import shared_file
from small_traces import write_trace

from dlbench.cli.report import report
from dlbench.errors import OptionError, RecordError, UserError

Written = Callable[..., list[str]]

SIX = [[1.0, 1.0]] * 6


@pytest.fixture
def written(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Written:
    """Output lines of `dlbench report` with the given arguments, in a folder with a folder of records."""
    monkeypatch.chdir(tmp_path)
    record = write_run(Path("records"), "dp-2", SIX)
    Path("dp-2.record").write_bytes(record.read_bytes())
    Path("link").symlink_to(record)

    def run(*argv: str) -> list[str]:
        report(argv)
        return capsys.readouterr().out.splitlines()

    return run


def test_the_report_is_one_file_whose_path_is_printed(written: Written) -> None:
    assert written("records", "-o", "out/of/the/way.html") == ["out/of/the/way.html"]
    assert [path.name for path in Path("out/of/the").iterdir()] == ["way.html"]
    assert Path("out/of/the/way.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_without_a_name_it_is_report_html(written: Written) -> None:
    assert written("records") == ["report.html"]
    assert Path("report.html").exists()


def test_a_second_report_replaces_the_first(written: Written) -> None:
    Path("report.html").write_text("old")
    written("records")
    assert "old" not in Path("report.html").read_text(encoding="utf-8")[:10]


def test_the_report_has_the_title_and_the_command_that_were_given(written: Written) -> None:
    written("records", "--title", "A & B", "--where", "gpus >= 2")
    page = Path("report.html").read_text(encoding="utf-8")
    assert "<title>A &amp; B</title>" in page
    assert "dlbench report records --title &#39;A &amp; B&#39; --where &#39;gpus &gt;= 2&#39;" in page


def test_options_choose_the_runs(written: Written) -> None:
    write_run(Path("records"), "other", SIX, system="jupiter")
    written("records", "--system", "jupiter")
    page = Path("report.html").read_text(encoding="utf-8")
    assert "1 run of 1 configuration" in page
    assert "leonardo" not in page


def test_the_seed_and_the_overlap_are_said(written: Written) -> None:
    written("records", "--seed", "11", "--min-overlap", "0.55")
    page = Path("report.html").read_text(encoding="utf-8")
    assert "(seed 11)" in page
    assert "at least 55 % of the experiment" in page


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "no results were named; use dlbench report RESULTS..., with folders, records or traces"),
        (["records", "-o", "records"], "records is a folder; name the file, e.g. -o records/report.html"),
        (["records", "-o", "records/dp-2.jsonl/x"], "records/dp-2.jsonl is no folder; nothing can be written into it"),
        (["records", "-o", "x" * 300], "x cannot be written: File name too long"),
        (["records", "-o", "records/dp-2.jsonl"], "records/dp-2.jsonl has the name of a record; name another file"),
        (["records", "-o", "link"], "link has the name of a record; name another file, e.g. -o report.html"),
        (["dp-2.record", "-o", "dp-2.record"], "dp-2.record is one of the records; name another file"),
        (["records", "-o", ""], "expected a text, found ''"),
        (["records", "--title", ""], "expected a text, found ''"),
        (["records", "--ouput", "x"], "unknown option --ouput, did you mean --output?"),
    ],
)
def test_a_mistake_is_one_line(argv: list[str], said: str, written: Written) -> None:
    with pytest.raises(OptionError) as error:
        written(*argv)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["records/dp-2.jsonl", "records/bad.jsonl"])
def test_a_record_is_never_overwritten(name: str, written: Written) -> None:
    Path("records/bad.jsonl").write_text("not a record\n")
    Path("link.html").symlink_to(name)
    before = Path(name).read_bytes()
    for output in (name, "link.html"):
        with pytest.raises(OptionError, match="has the name of a record"):
            written("records", "-o", output)
    assert Path(name).read_bytes() == before


def test_a_report_goes_where_a_device_is(written: Written) -> None:
    assert written("records", "-o", "/dev/null") == ["/dev/null"]
    with pytest.raises(OptionError, match="^/dev/full cannot be written: No space left on device$"):
        written("records", "-o", "/dev/full")
    assert Path("/dev/null").is_char_device()


def test_no_report_is_written_of_nothing(written: Written) -> None:
    Path("empty").mkdir()
    said = "^empty holds neither records nor traces; name records of runs, or traces, or folders of them$"
    with pytest.raises(OptionError, match=said):
        written("empty")
    with pytest.raises(RecordError, match="^gone does not exist; name records of runs, or traces, or folders of them$"):
        written("gone")
    assert not Path("report.html").exists()


def test_the_command_prints_the_path(tmp_path: Path) -> None:
    write_run(tmp_path, "dp-2", SIX)
    command = [sys.executable, "-m", "dlbench", "report", "dp-2.jsonl", "-o", "x.html"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "x.html\n", "")


def write_traces(folder: str) -> list[Path]:
    """Traces of a job of two ranks, of which the second comes to the last of three collectives 200 µs late."""
    Path(folder).parent.mkdir(parents=True, exist_ok=True)
    paths = [Path(folder) / f"rank{rank}.json" for rank in range(2)]
    for rank, path in enumerate(paths):
        write_trace(path, rank, 500, 1500, 2500 + 200 * rank)
    return paths


def page() -> str:
    return Path("report.html").read_text(encoding="utf-8")


def test_traces_are_written_up_by_their_names_and_by_their_folder(written: Written) -> None:
    paths = write_traces("traces")
    for named in (["traces"], list(map(str, paths))):
        assert written(*named) == ["report.html"]
        assert "Traces of 2 ranks, 3 collectives of 1 group" in page()
        assert 'id="culprits"' in page()
        assert 'id="summary"' not in page()


def test_records_and_traces_are_written_up_together(written: Written) -> None:
    write_traces("traces")
    written("traces", "records", "--strategy", "dp", "--tolerance", "50", "--seed", "4")
    assert "1 run of 1 configuration" in page()
    assert "Traces of 2 ranks" in page()
    assert page().count("(seed 4)") == 2


def test_a_tolerance_refuses_what_is_too_far_apart(written: Written) -> None:
    paths = write_traces("traces")
    paths[1].write_text(paths[1].read_text().replace('"dur": 300', '"dur": 900'))
    with pytest.raises(UserError, match=r"mesh_dp \(0-1\): collective 2 of 3 disagrees: its ends lie 600\.0 µs apart"):
        written("traces")
    assert written("traces", "--tolerance", "700") == ["report.html"]


def test_without_critical_paths_neither_kind_has_reasons(written: Written) -> None:
    write_traces("traces")
    written("traces", "records", "--no-critical-path")
    assert "traces-tax" in page()
    assert "traces-culprits" not in page()


def test_a_folder_with_both_is_read_as_records_and_says_so(written: Written) -> None:
    paths = write_traces("records/traces")
    written("records")
    assert f"records: records were read, but not 2 traces; name them: {paths[0]} …" in page()
    assert "Traces of" not in page()
    written("records", "records/traces")
    assert "records were read, but not" not in page()
    assert "Traces of 2 ranks" in page()


def test_beside_records_what_is_no_trace_is_excluded(written: Written) -> None:
    Path("plan.json").write_text('{"experiments": []}')
    Path("empty").mkdir()
    written("records", "plan.json", "empty")
    assert "is no run record" in page()
    assert "holds no record; records are files NAME.jsonl" in page()


def test_traces_of_one_folder_are_read_though_the_first_is_damaged(written: Written) -> None:
    paths = write_traces("traces")
    paths[0].write_text("{")
    with pytest.raises(UserError, match=r"^traces/rank0\.json: "):
        written("records", "traces")
    with pytest.raises(UserError, match=r"^traces/rank0\.json: "):
        written("traces")
    assert not Path("report.html").exists()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["traces", "--strategy", "dp"], "--strategy has no meaning for traces; leave it out"),
        (["traces", "--where", "gpus > 2"], "--where has no meaning for traces; leave it out"),
        (["records", "--tolerance", "50"], "--tolerance has no meaning for records; leave it out"),
        (["records", "--kernel", "x"], "--kernel has no meaning for records; leave it out"),
        (["traces", "-o", "traces/rank1.json"], "traces/rank1.json is one of the traces; name another file"),
        (["records", "traces", "-o", "traces/rank1.json"], "traces/rank1.json is one of the traces; name another"),
        (["traces", "--kernel", "("], "kernel pattern '(' is no regular expression"),
        (["traces/rank0.json"], "only rank 0 has kernels of it here; two at least are needed"),
        (["traces", "traces/rank0.json"], "are both traces of rank 0; give one file per rank"),
        (["elsewhere"], "there are some below it; name their folder: elsewhere/node"),
    ],
)
def test_a_mistake_with_traces_is_one_line(argv: list[str], said: str, written: Written) -> None:
    before = [path.read_bytes() for path in write_traces("traces")]
    write_traces("elsewhere/node")
    with pytest.raises(UserError) as error:
        written(*argv)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert [path.read_bytes() for path in sorted(Path("traces").iterdir())] == before


def test_the_real_trace_set_goes_through_the_command(written: Written) -> None:
    folder = shared_file("traces/dlrm8")
    written(str(folder), "--no-critical-path")
    largest = page().split('<section id="largest">')[1].split("</section>")[0]
    for tau in ("7625.0", "1100.0", "883.00", "582.00", "535.00", "221.00", "169.00", "126.00"):
        assert f'<td class="number">{tau}</td>' in largest
    assert str(folder) in page()


def test_help_says_what_traces_cost_and_needs_no_analysis() -> None:
    program = (
        "import sys; from dlbench.cli.report import report\n"
        "try: report(['--help'])\n"
        "except SystemExit: print({'pandas', 'numpy', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert "dlbench report traces/rank*.json.gz" in done.stdout
    assert "only collectives are kept" in " ".join(done.stdout.split())
    assert done.stdout.endswith("set()\n")
