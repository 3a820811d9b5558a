"""Settings of the site: the first place that has one wins, and a wrong one is named where it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dlbench.errors import OptionError, SpecError
from dlbench.slurm.settings import SiteSettings, load_settings, require, site_file


def home(folder: Path, text: str = "") -> dict[str, str]:
    """The environment of a user with a site file of this content."""
    if text:
        (folder / ".config/dlbench").mkdir(parents=True)
        (folder / ".config/dlbench/site.yaml").write_text(text)
    return {"HOME": str(folder)}


def test_options_win_over_the_file_over_the_site_file_over_the_environment(tmp_path: Path) -> None:
    environment = home(tmp_path, "account: site\nreservation: site\nqos: site\n")
    environment |= {f"DLBENCH_{name}": "variable" for name in ("ACCOUNT", "RESERVATION", "QOS", "PARTITION")}
    file = tmp_path / "mine.yaml"
    file.write_text("account: file\nreservation: file\n")
    settings = load_settings({"account": "option", "qos": None}, file, environment)
    assert settings == SiteSettings(account="option", reservation="file", qos="site", partition="variable")


def test_nothing_is_set_where_nobody_says_anything() -> None:
    assert load_settings({}) == SiteSettings()


def test_the_site_file_is_where_xdg_says() -> None:
    assert site_file({"XDG_CONFIG_HOME": "/x", "HOME": "/h"}) == Path("/x/dlbench/site.yaml")
    assert site_file({"HOME": "/h"}) == Path("/h/.config/dlbench/site.yaml")
    assert site_file({}) is None


def test_lines_of_shell_come_as_a_list_or_from_a_variable_with_several_lines(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("setup: [module load a, ulimit -l unlimited]\n")
    assert load_settings({"setup": []}, file).setup == ("module load a", "ulimit -l unlimited")
    assert load_settings({}, None, {"DLBENCH_SETUP": "a\nb"}).setup == ("a", "b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("acount: a\n", "at acount: unknown key 'acount'; did you mean 'account'? valid: account, reservation, qos"),
        ("account: 12\n", "at account: expected text, found 12; put it in quotes"),
        ('time: "1h"\n', "at time: expected a time as SLURM writes it"),
        ('account: "a\\nb"\n', "at account: expected one line without control characters, found 'a\\nb'"),
    ],
)
def test_a_wrong_file_is_named_with_the_key(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(SpecError) as error:
        load_settings({}, file)
    assert str(error.value).startswith(f"{file}: {message}")


@pytest.mark.parametrize(
    ("options", "environment", "message"),
    [
        ({"time": "soon"}, {}, "--time: expected a time as SLURM writes it, such as"),
        ({"account": "a\nb"}, {}, "--account: expected one line without control characters"),
        ({}, {"DLBENCH_TIME": "soon"}, "DLBENCH_TIME: at time: expected a time as SLURM writes it"),
    ],
)
def test_a_wrong_option_or_variable_is_named(options: Any, environment: dict[str, str], message: str) -> None:
    with pytest.raises((OptionError, SpecError)) as error:
        load_settings(options, None, environment)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("time", ["90", "30:00", "1:30:00", "2-12", "2-12:30", "2-12:30:15"])
def test_every_form_of_a_time_is_taken(time: str) -> None:
    assert load_settings({"time": time}).time == time


def test_what_a_system_needs_is_asked_for_with_all_places() -> None:
    require(SiteSettings(account="a"), ("account",), "leonardo")
    with pytest.raises(OptionError) as error:
        require(SiteSettings(account="a"), ("account", "reservation"), "leonardo")
    assert str(error.value) == (
        "system leonardo needs your reservation: use --reservation NAME, or 'reservation: NAME' in --config FILE or in "
        "~/.config/dlbench/site.yaml, or DLBENCH_RESERVATION in the environment; without a reservation use "
        "--mode queue; --dry-run does without"
    )


def test_all_that_a_system_needs_is_asked_for_at_once() -> None:
    with pytest.raises(OptionError) as error:
        require(SiteSettings(), ("account", "reservation"), "leonardo")
    assert str(error.value).startswith(
        "system leonardo needs your account and reservation: use --account NAME --reservation NAME, or 'account: NAME' "
        "and 'reservation: NAME' in --config FILE or in "
    )
