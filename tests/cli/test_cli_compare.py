"""`dlbench compare`, as a script uses it to guard an upgrade."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from builder import write_run

from dlbench.analysis.overlap import MIN_OVERLAP
from dlbench.cli.compare import compare
from dlbench.errors import OptionError, RecordError

Compared = Callable[..., tuple[int, list[str]]]

STEADY = [1.0, 1.001, 0.999, 1.0, 1.002, 0.998, 1.0, 1.001]
"""Seconds of 8 iterations that differ by a few permille."""
NOISY = [0.5, 1.5, 0.6, 1.4, 0.7, 1.3, 0.8, 1.2]


@pytest.fixture
def compared(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Compared:
    """Exit code and output lines of `dlbench compare` with the given arguments, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*argv: str) -> tuple[int, list[str]]:
        code = compare(argv)
        return code, capsys.readouterr().out.splitlines()

    return run


def record(
    folder: str, factor: float = 1.0, seconds: list[float] = STEADY, name: str = "run", **changes: object
) -> None:
    """A run of 2 ranks whose iterations take `factor` times as long."""
    write_run(Path(folder), name, [[factor * time, factor * time] for time in seconds], **changes)


@pytest.mark.parametrize(
    ("factor", "verdict", "code"),
    [(1.0, "SAME", 0), (1.01, "SAME", 0), (1.1, "SLOWER", 1), (0.9, "FASTER", 0)],
)
def test_the_exit_code_is_1_where_a_configuration_is_slower(
    factor: float, verdict: str, code: int, compared: Compared
) -> None:
    record("before")
    record("after", factor)
    found, lines = compared("before", "after")
    assert found == code
    assert any(line.split()[:1] == [verdict] for line in lines)
    assert f"1 {verdict}" in lines[-1]


def test_what_the_samples_cannot_tell_is_ambiguous_and_no_failure(compared: Compared) -> None:
    record("before", seconds=NOISY)
    record("after", 1.02, seconds=NOISY[::-1])
    code, lines = compared("before", "after")
    assert code == 0
    assert lines[-1] == "# 0 SAME, 0 FASTER, 0 SLOWER, 1 AMBIGUOUS"
    assert any(line.startswith("# [1] the interval contains") for line in lines)


def test_too_few_iterations_are_ambiguous_with_the_reason(compared: Compared) -> None:
    record("before", seconds=STEADY[:5])
    record("after", 2.0, seconds=STEADY[:5])
    code, lines = compared("before", "after")
    assert code == 0
    assert lines[-1] == "# 0 SAME, 0 FASTER, 0 SLOWER, 1 AMBIGUOUS"
    assert any("6" in line for line in lines if line.startswith("# [1]"))


@pytest.mark.parametrize(("threshold", "code"), [("0.02", 1), ("0.2", 0)])
def test_the_threshold_says_what_matters(threshold: str, code: int, compared: Compared) -> None:
    record("before")
    record("after", 1.1)
    assert compared("before", "after", "--threshold", threshold)[0] == code


def test_the_output_says_what_each_side_is(compared: Compared) -> None:
    record("before")
    record("after")
    Path("after/foreign.jsonl").write_text("hello\n")
    _, lines = compared("before", "after", "--threshold", "0.05")
    assert lines[0].endswith("compare, threshold 0.05")
    assert lines[1:4] == [
        "# A          before",
        "# read       1 file: 1 run with 8 measured iterations",
        "# excluded   0",
    ]
    assert "# B          after" in lines
    assert "#   after/foreign.jsonl: is no run record; one begins with a header line" in lines


def test_the_ratio_and_both_times_are_shown(compared: Compared) -> None:
    record("before", seconds=[1.0] * 6)
    record("after", seconds=[1.5] * 6)
    _, lines = compared("before", "after")
    (row,) = (line.split() for line in lines if line.lstrip().startswith("SLOWER"))
    assert row[:4] == ["SLOWER", "1.500", "1.500", "1.500"]
    assert row[4:10] == ["1000.0", "1000.0", "1000.0", "1500.0", "1500.0", "1500.0"]


def test_another_library_is_what_is_compared(compared: Compared) -> None:
    for folder, library in (("before", "MPICH 4.3"), ("after", "MPICH 5.0")):
        record(folder, backend={"name": "mpi", "library": library, "carrier": "MPI_UINT16_T"})
    code, lines = compared("before", "after")
    assert code == 0
    assert "library of A MPICH 4.3, library of B MPICH 5.0" in " ".join(lines).replace(" #  ", " ").replace("#   ", "")


def test_configurations_of_one_side_only_are_listed(compared: Compared) -> None:
    for folder in ("before", "after"):
        record(folder)
    record("before", name="gone", dtype="fp16")
    record("after", name="new", placement="inter-group")
    code, lines = compared("before", "after")
    assert code == 0
    assert "# Only in A" in lines
    assert "# Only in B" in lines
    assert lines[-1] == "# 1 SAME, 0 FASTER, 0 SLOWER, 0 AMBIGUOUS"


def test_nothing_in_common_is_an_error_and_not_a_success(
    compared: Compared, capsys: pytest.CaptureFixture[str]
) -> None:
    record("before")
    record("after", dtype="fp16")
    with pytest.raises(OptionError) as error:
        compared("before", "after")
    assert str(error.value) == "nothing was compared: A and B have no configuration in common"
    assert "# Only in A" in capsys.readouterr().out


def test_json_is_one_document(compared: Compared) -> None:
    record("before", seconds=[1.0] * 6)
    record("after", seconds=[1.5] * 6)
    record("after", name="new", dtype="fp16", seconds=[1.0] * 5)
    code, lines = compared("before", "after", "--json", "--seed", "5")
    found = json.loads("\n".join(lines))
    assert code == 1
    assert list(found) == [
        *("dlbench", "threshold", "seed", "min_overlap", "a", "b", "verdicts", "comparison", "only_a", "only_b"),
    ]
    assert (found["threshold"], found["seed"], found["min_overlap"]) == (0.02, 5, MIN_OVERLAP)
    assert found["a"] == {"path": "before", "files": 1, "runs": 1, "notes": [], "excluded": []}
    assert found["verdicts"] == {"SAME": 0, "FASTER": 0, "SLOWER": 1, "AMBIGUOUS": 0}
    (row,) = found["comparison"]
    assert (row["verdict"], round(row["ratio"], 12)) == ("SLOWER", 1.5)
    (new,) = found["only_b"]
    assert (new["dtype"], new["seconds_low"]) == ("fp16", None)


def test_filters_apply_to_both_sides(compared: Compared) -> None:
    for folder, factor in (("before", 1.0), ("after", 2.0)):
        record(folder)
        record(folder, factor, name="slow", strategy="fsdp")
    assert compared("before", "after")[0] == 1
    assert compared("before", "after", "--strategy", "dp")[0] == 0
    assert compared("before", "after", "--where", "strategy == 'fsdp'")[0] == 1


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "the following arguments are required: A, B"),
        (["before"], "the following arguments are required: B"),
        (["before", "before", "before"], "unexpected argument 'before'"),
        (["before", "before", "--threshold", "-1"], "expected a number of 0 or more, found '-1'"),
        (["before", "before", "--threshold", "nan"], "expected a number of 0 or more, found 'nan'"),
        (["before", "before", "--treshold", "1"], "unknown option --treshold, did you mean --threshold?"),
    ],
)
def test_a_mistake_is_one_line(argv: list[str], said: str, compared: Compared) -> None:
    record("before")
    with pytest.raises(OptionError) as error:
        compared(*argv)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_side_without_runs_is_an_error(compared: Compared) -> None:
    record("before")
    Path("after").mkdir()
    with pytest.raises(RecordError):
        compared("before", "after")


def test_the_command_leaves_with_the_verdict(tmp_path: Path) -> None:
    record(str(tmp_path / "before"))
    record(str(tmp_path / "after"), 1.5)

    def exit_code(a: str, b: str) -> int:
        command = [sys.executable, "-m", "dlbench", "compare", a, b]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60, check=False).returncode

    assert exit_code("before", "after") == 1
    assert exit_code("after", "before") == 0
    assert exit_code("before", "nowhere") == 2
