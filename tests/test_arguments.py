"""The argument parser: one line for every mistake, with what was probably meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlbench.arguments import ArgumentParser, at_least, between, more_than, path, text
from dlbench.errors import OptionError


def parser() -> ArgumentParser:
    built = ArgumentParser(prog="dlbench test")
    built.add_argument("--iterations", type=at_least(1))
    built.add_argument("--patterns", type=between(1, 9))
    built.add_argument("--seconds", type=at_least(0.0))
    built.add_argument("--fraction", type=more_than(0.0))
    built.add_argument("--mode", choices=["fast", "slow"])
    built.add_argument("-m", "--model", type=text)
    built.add_argument("--label", action="append")
    built.add_argument("--record", type=path)
    return built


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--iteration", "3"], "unknown option --iteration, did you mean --iterations?; see 'dlbench test --help'"),
        (["--mode=fast", "--zzz=1"], "unknown option --zzz; see 'dlbench test --help'"),
        (["stray"], "unexpected argument 'stray'; see 'dlbench test --help'"),
        (["--iterations"], "argument --iterations: expected one argument; see 'dlbench test --help'"),
        (["--iterations", "0"], "argument --iterations: expected an integer of 1 or more, found '0'"),
        (["--iterations", "1.5"], "argument --iterations: expected an integer of 1 or more, found '1.5'"),
        (["--patterns", "0"], "argument --patterns: expected an integer from 1 to 9, found '0'"),
        (["--patterns", "10"], "argument --patterns: expected an integer from 1 to 9, found '10'"),
        (["--seconds", "-1"], "argument --seconds: expected a number of 0 or more, found '-1'"),
        (["--seconds", "inf"], "argument --seconds: expected a number of 0 or more, found 'inf'"),
        (["--seconds", "1e19"], "argument --seconds: expected a number below 2^63, found '1e19'"),
        (["--iterations", "9" * 400], "argument --iterations: expected an integer below 2^63, found '999"),
        (["--fraction=-1e400"], "argument --fraction: expected a number above 0, found '-1e400'"),
        (["--fraction", "0"], "argument --fraction: expected a number above 0, found '0'"),
        (["--fraction", "nan"], "argument --fraction: expected a number above 0, found 'nan'"),
        (["--iterations=--"], "argument --iterations: expected one argument, found '--'"),
        (["--mode=--"], "argument --mode: expected one argument, found '--'"),
        (["--label=--"], "argument --label: expected one argument, found '--'"),
        (["-m--"], "argument -m/--model: expected one argument, found '--'"),
        (["--model="], "argument -m/--model: expected a text, found ''"),
        (["--record", ""], "argument --record: expected a text, found ''"),
        (["--record=~nobody-of-this-name/x"], "argument --record: found no home folder for '~nobody-of"),
        (["--label", "a\nb"], "argument 'a\\nb': expected UTF-8 text without control characters"),
        (["--label=a\x1b[1m"], "argument '--label=a\\x1b[1m': expected UTF-8 text"),
        (["--label", "a=\udcff"], "argument 'a=\\udcff': expected UTF-8 text"),
        (["--\n"], "argument '--\\n': expected UTF-8 text"),
    ],
)
def test_a_mistake_is_one_line(argv: list[str], message: str) -> None:
    with pytest.raises(OptionError) as error:
        parser().parse_args(argv)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_a_mistake_prints_no_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OptionError):
        parser().parse_args(["--mode", "medium"])
    assert capsys.readouterr() == ("", "")


def test_options_cannot_be_abbreviated() -> None:
    with pytest.raises(OptionError, match="did you mean --iterations"):
        parser().parse_args(["--iter", "3"])


def test_a_path_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parser().parse_args(["--record", "~/results"]).record == f"{tmp_path}/results"


def test_text_beyond_ascii_is_text() -> None:
    assert parser().parse_args(["--label", "größe=1 µm"]).label == ["größe=1 µm"]


def test_good_arguments_become_numbers() -> None:
    parsed = parser().parse_args(["--iterations", "3", "--seconds", "0", "--fraction", "1e-3"])
    assert (parsed.iterations, parsed.seconds, parsed.fraction) == (3, 0.0, 0.001)
    assert isinstance(parsed.iterations, int)


def test_options_may_stand_between_the_values_of_one_argument() -> None:
    parser = ArgumentParser(prog="x")
    parser.add_argument("files", nargs="*")
    parser.add_argument("--seed", type=int)
    parsed = parser.parse_args(["a", "--seed", "3", "b"])
    assert (parsed.files, parsed.seed) == (["a", "b"], 3)


@pytest.mark.parametrize("value", ["-1", "-.5", "-1e-3", "-5us"])
def test_a_value_may_be_negative_with_exponent_and_unit(value: str) -> None:
    parser = ArgumentParser(prog="x")
    parser.add_argument("--mu")
    assert parser.parse_args(["--mu", value]).mu == value
