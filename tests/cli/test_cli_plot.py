"""`dlbench plot`, as a user sees it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from builder import write_run

from dlbench.cli.main import main

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def plot(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Run the command in an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dlbench", "plot", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        output = capsys.readouterr()
        return int(caught.value.code or 0), output.out, output.err

    return call


@pytest.fixture
def results(tmp_path: Path) -> str:
    folder = tmp_path / "results"
    for strategy in ("dp", "fsdp"):
        write_run(folder, strategy, [[1.0, 1.0]] * 6, strategy=strategy)
    return str(folder)


def test_files_are_listed_and_what_is_missing_has_a_reason(plot: Command, results: str) -> None:
    code, out, err = plot(results, "--only", "communication", "--only", "scaling", "--format", "png,svg")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "# read       2 files: 2 runs with 12 measured iterations",
        "# excluded   0",
        "figures/communication.png",
        "figures/communication.svg",
        "figures/communication.txt",
        "# not drawn: scaling: no configuration ran on two counts of GPUs (leonardo · intra-l1)",
    ]
    assert Path("figures/communication.png").read_bytes().startswith(b"\x89PNG")


def test_by_default_there_are_three_formats_in_a_folder_of_choice(plot: Command, results: str) -> None:
    code, _, _ = plot(results, "-o", "a/b", "--only", "stability,breakdown")
    assert code == 0
    endings = ("pdf", "png", "svg", "txt")
    assert sorted(path.name for path in Path("a/b").iterdir()) == [
        f"{name}.{ending}" for name in ("breakdown", "stability") for ending in endings
    ]


def test_filters_choose_runs(plot: Command, results: str) -> None:
    code, out, _ = plot(results, "--only", "communication", "--format", "svg", "--strategy", "dp")
    assert code == 0
    assert "1 runs with 6 measured iterations" in out or "1 run with 6 measured iterations" in out


def test_nothing_to_draw_is_a_failure_with_the_reason(plot: Command, results: str) -> None:
    code, out, _ = plot(results, "--only", "slowdown")
    assert code == 1
    assert "# not drawn: slowdown: no concurrent run: nothing ran beside other jobs of its experiment" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "scalling"], "unknown figure 'scalling'; did you mean scaling?"),
        (["--format", "jpeg"], "unknown format 'jpeg'; there are pdf, svg, png"),
        (
            ["--format", ""],
            "argument --format: expected names with commas between them, found ''; see 'dlbench plot --help'",
        ),
        (["--ony", "scaling"], "unknown option --ony, did you mean --only?; see 'dlbench plot --help'"),
        (["--strategy", "ddp"], "no run has strategy 'ddp'; did you mean dp?"),
    ],
)
def test_a_wrong_option_is_one_line(plot: Command, results: str, arguments: list[str], message: str) -> None:
    assert plot(results, *arguments) == (2, "", f"dlbench: {message}\n")


def test_options_are_checked_before_any_record_is_read(plot: Command) -> None:
    assert plot("missing", "--only", "x")[2].startswith("dlbench: unknown figure 'x'")


def test_a_folder_that_cannot_be_made_is_one_line(plot: Command, results: str) -> None:
    Path("file").write_text("")
    code, _, err = plot(results, "-o", "file/figures", "--only", "communication")
    assert (code, err) == (2, "dlbench: file is no folder; nothing can be written into it\n")


@pytest.mark.parametrize("name", ["communication.png", "communication.txt"])
def test_a_full_disk_is_one_line_with_the_file(plot: Command, results: str, name: str) -> None:
    Path("figures").mkdir()
    Path("figures", name).symlink_to("/dev/full")
    code, out, err = plot(results, "--only", "communication", "--format", "png")
    assert (code, err) == (2, f"dlbench: figures/{name} cannot be written: No space left on device\n")
    assert "figures/" not in out


def test_help_has_examples_and_the_names_of_the_figures(plot: Command) -> None:
    code, out, _ = plot("--help")
    assert code == 0
    assert "dlbench plot results/ -o figures --only scaling --format pdf" in out
    assert "breakdown, tax, tax-map, tax-paths, extremes, bandwidth. Each has" in " ".join(out.split())
