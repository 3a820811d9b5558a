"""`dlbench report`: where the file goes, and what goes wrong; what is in it is tested with the analysis."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from builder import write_run

from dlbench.cli.report import report
from dlbench.errors import OptionError, RecordError

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
        ([], "no results were named; use dlbench report RESULTS..., with folders or records"),
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
    with pytest.raises(RecordError):
        written("empty")
    assert not Path("report.html").exists()


def test_the_command_prints_the_path(tmp_path: Path) -> None:
    write_run(tmp_path, "dp-2", SIX)
    command = [sys.executable, "-m", "dlbench", "report", "dp-2.jsonl", "-o", "x.html"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "x.html\n", "")
