"""The options of a workload, as the command line takes them."""

from __future__ import annotations

import pytest
from small_worlds import GPU, small_model

from dlbench.arguments import ArgumentParser
from dlbench.errors import OptionError
from dlbench.strategies import configure
from dlbench.strategies.options import WORKLOAD_OPTIONS, add_workload_arguments, workload_options


def parse(*argv: str) -> dict[str, object]:
    parser = ArgumentParser(prog="dlbench test")
    add_workload_arguments(parser)
    return vars(parser.parse_args(argv))


def test_an_option_that_was_not_given_is_left_to_the_strategy() -> None:
    assert set(parse().values()) == {None}
    assert workload_options(parse()) == {}


def test_given_options_become_arguments_of_configure() -> None:
    options = workload_options(parse("--pp", "2", "--microbatches", "4", "--scale", "0.5", "--dtype", "fp32"))
    assert options == {"pp": 2, "microbatches": 4, "scale": 0.5, "dtype": "fp32"}
    configuration = configure("dp_pp", world_size=4, model=small_model(), gpu=GPU, **options)
    assert configuration.degrees() == {"pp": 2}
    assert configuration.workload.scale == 0.5


def test_every_option_of_a_workload_is_declared() -> None:
    assert set(parse()) == {"model", "gpu", *WORKLOAD_OPTIONS}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--pp", "0"), "argument --pp: expected an integer of 1 or more, found '0'"),
        (("--tp", "two"), "argument --tp: expected an integer of 1 or more, found 'two'"),
        (("--scale", "nan"), "argument --scale: expected a number above 0, found 'nan'"),
        (("--dtype", "int8"), "argument --dtype: invalid choice: 'int8'"),
        (("--microbatch", "4"), "unknown option --microbatch, did you mean --microbatches?"),
    ],
)
def test_a_wrong_option_is_answered_in_one_line(argv: tuple[str, ...], message: str) -> None:
    with pytest.raises(OptionError) as error:
        parse(*argv)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_help_states_the_defaults_of_the_strategies(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--help")
    text = " ".join(capsys.readouterr().out.split())
    for default in (
        "(dp; default 50)",
        "(fsdp; default 16)",
        "(fsdp; default 8)",
        "(dp_pp, dp_pp_tp, dp_pp_ep; default 16)",
        "(dp_pp_tp; default 4)",
        "dp_pp_tp llama3-70b",
        "(default b200)",
    ):
        assert default in text
