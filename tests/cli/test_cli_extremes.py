"""`dlbench extremes`, as a user sees it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builder import write_run

from dlbench.cli.main import main

Command = Callable[..., tuple[int, str, str]]
RANKS, ITERATIONS = 8, 40
OPS = [
    {"op": "compute", "name": "forward", "seconds": 1.0},
    {"op": "allreduce", "scope": "world", "name": "a", "elements": 8},
    {"op": "compute", "name": "backward", "seconds": 1.0},
    {"op": "allreduce", "scope": "world", "name": "b", "elements": 8},
]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Run the command in an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, command: str = "extremes") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dlbench", command, *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        output = capsys.readouterr()
        return int(caught.value.code or 0), output.out, output.err

    return run


def write(folder: Path, name: str = "run", ranks: int = RANKS, iterations: int = ITERATIONS, **changes: Any) -> str:
    """A run whose ranks compute for 1 ± 0.1 s before each of two collectives, which take 0.5 s."""
    own = np.random.default_rng(1).normal(1.0, 0.1, size=(iterations, 2, ranks))
    tables = [{"ranks": list(range(ranks)), "ops": OPS}]
    write_run(folder, name, [[4.0] * ranks] * iterations, op_tables=tables, **changes)
    with (folder / f"{name}.ops.npy").open("wb") as file:
        for first, second in own:
            one = first.max() + 0.5
            two = one + second.max() + 0.5
            rows = [[[0, a], [a, one], [one, one + b], [one + b, two]] for a, b in zip(first, second, strict=True)]
            np.save(file, np.array(rows))
    return str(folder)


@pytest.fixture
def results(tmp_path: Path) -> str:
    return write(tmp_path / "results")


def test_fits_and_predictions_are_printed_with_units_and_what_to_beware_of(call: Command, results: str) -> None:
    code, out, err = call(results)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("# dlbench ")
    assert "# Fits of block times" in lines
    assert "# Mean wait in groups of more ranks" in lines
    assert any("wait by ML" in line and "measured" in line and "error" in line for line in lines)
    assert "[ms]" in out
    assert any(
        line.startswith("# [1] Gumbel overestimates: the tail is light (ξ below 0), so expect") for line in lines
    )


def test_the_predicted_wait_of_all_ranks_is_that_in_the_collectives(call: Command, results: str) -> None:
    code, out, _ = call(results, "--json")
    assert code == 0
    document = json.loads(out)
    assert [row["distribution"] for row in document["fits"]] == ["Gumbel", "GEV"]
    assert document["fits"][0]["instances"] == 2 * ITERATIONS
    assert document["fits"][0]["block_seconds"] == pytest.approx(1.0, abs=0.01)
    row = next(row for row in document["predictions"] if (row["predicted_ranks"], row["distribution"]) == (8, "GEV"))
    # Eight normal ranks of 0.1 s wait 0.14236 s.
    assert row["collective_seconds"] == pytest.approx(0.14236, rel=0.05)
    assert row["collective_seconds"] == pytest.approx(row["measured_seconds"])
    assert row["tau"] == pytest.approx(row["measured_seconds"], rel=0.05)
    assert row["strategy"] == "dp"


def test_groups_centring_and_predictions_can_be_chosen(call: Command, results: str) -> None:
    _, out, _ = call(results, "--group-size", "2", "--centring", "instance", "--predict", "4,64", "--json")
    document = json.loads(out)
    assert {(row["group_size"], row["centring"]) for row in document["fits"]} == {(2, "instance")}
    assert [row["predicted_ranks"] for row in document["predictions"]] == [4, 4, 64, 64]
    assert all("extrapolation" in row["reason"] for row in document["predictions"][2:])


def test_tables_and_figures_are_written(call: Command, results: str) -> None:
    code, out, _ = call(results, "--csv", "tables", "--plots", "figures")
    assert code == 0
    assert sorted(path.name for path in Path("tables").iterdir()) == ["fits.csv", "predictions.csv"]
    names = [f"extremes.{ending}" for ending in ("pdf", "png", "svg", "txt")]
    assert sorted(path.name for path in Path("figures").iterdir()) == names
    assert "# written    figures/extremes.pdf" in out.splitlines()


def test_a_fit_is_handed_on_to_the_bandwidth_law_with_its_intervals(call: Command, results: str) -> None:
    _, out, _ = call(results, "--json", "--predict", "8,64")
    Path("fit.json").write_text(out)
    code, out, err = call("--from-fit", "fit.json", "--topology", "ring", "--json", command="bandwidth")
    assert (code, err) == (0, "")
    rows = json.loads(out)["bandwidth"]
    assert [(row["domain"], row["tax"]) for row in rows] == [
        (domain, tax) for domain in (8, 64) for tax in ("none", "Gumbel", "GEV")
    ]
    assert all(row["bandwidth_low"] < row["bandwidth"] < row["bandwidth_high"] for row in rows if row["tax"] != "none")


def test_what_allows_no_fit_is_a_note_beside_what_does(call: Command, results: str) -> None:
    write(Path(results), "short", iterations=10, strategy="fsdp")
    code, out, _ = call(results)
    assert code == 0
    assert "# note       not fitted: world: 20 blocks were measured; a tail takes 30 or more" in out.splitlines()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"iterations": 10}, "world: 20 blocks were measured; a tail takes 30 or more"),
        ({"ranks": 1}, "no block times: run: one rank waits for nobody"),
        ({"ranks": 2}, "world: groups of 4 ranks cannot be made of 2; use --group-size 2"),
    ],
)
def test_runs_that_allow_no_fit_are_one_line(call: Command, tmp_path: Path, changes: Any, said: str) -> None:
    assert call(write(tmp_path / "other", **changes)) == (2, "", f"dlbench: {said}\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--predict", "2"], "2 ranks are less than the fitted groups of 4; predict 4 or more"),
        (
            ["--predict", "a"],
            "argument --predict: expected numbers of ranks of 2 or more, such as 8,16,128, found 'a'; "
            "see 'dlbench extremes --help'",
        ),
        (["--tolerance", "5"], "--tolerance has no meaning for records; leave it out"),
        (["--grup-size", "2"], "unknown option --grup-size, did you mean --group-size?; see 'dlbench extremes --help'"),
    ],
)
def test_a_wrong_option_is_one_line(call: Command, results: str, arguments: list[str], said: str) -> None:
    assert call(results, *arguments) == (2, "", f"dlbench: {said}\n")


def test_no_inputs_are_one_line(call: Command) -> None:
    said = "no inputs were named; give records of runs with --record-ops, or traces, or folders of them"
    assert call() == (2, "", f"dlbench: {said}\n")


def test_figures_that_cannot_be_written_are_one_line(call: Command, results: str) -> None:
    Path("file").write_text("")
    code, _, err = call(results, "--plots", "file/figures")
    assert (code, err) == (2, "dlbench: file is no folder; nothing can be written into it\n")


def test_help_has_examples(call: Command) -> None:
    code, out, _ = call("--help")
    assert code == 0
    assert "dlbench extremes results/ --predict 8,64,512 --centring instance" in out
