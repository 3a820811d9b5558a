"""Files of the analysis: whole or not at all, through links and to devices."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from dlbench.analysis.writing import make_folder, new_file, same_file
from dlbench.errors import OptionError


def write(path: Path, text: str) -> None:
    with new_file(path) as file:
        file.write(text.encode())


def test_a_file_is_replaced_once_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write(path, "old")
    with new_file(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_what_was_there_stays_after_an_error(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "report.html"
    write(path, "old")
    with pytest.raises(error), new_file(path) as file:
        file.write(b"half of the n")
        raise error
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_has_the_permissions_of_every_new_file(tmp_path: Path) -> None:
    write(tmp_path / "a", "")
    (tmp_path / "b").touch()
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_a_link_leads_where_it_led(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "file")
    for text in ("first", "second"):
        write(tmp_path / "link", text)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "folder" / "file").read_text() == text


def test_a_device_stays_a_device(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/full")
    with pytest.raises(OptionError, match=r"link cannot be written: No space left on device$"):
        write(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)


def test_the_longest_name_that_a_file_can_have_is_no_obstacle(tmp_path: Path) -> None:
    write(tmp_path / ("x" * 255), "text")
    with pytest.raises(OptionError, match=r"x cannot be written: File name too long$"):
        write(tmp_path / ("x" * 256), "text")


@pytest.mark.parametrize(
    ("name", "reason"),
    [("none/file", "No such file or directory"), ("file/file", "Not a directory"), ("folder", "Is a directory")],
)
def test_a_place_where_nothing_can_be_written_is_one_line(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(OptionError) as caught:
        write(tmp_path / name, "text")
    assert str(caught.value) == f"{tmp_path / name} cannot be written: {reason}"


def test_a_folder_is_made_with_those_above_it(tmp_path: Path) -> None:
    for _ in range(2):
        make_folder(tmp_path / "a" / "b")
        assert (tmp_path / "a" / "b").is_dir()


@pytest.mark.parametrize("name", ["file", "file/a", "file/a/b", "dangling", "dangling/a"])
def test_what_stands_in_the_way_of_a_folder_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nowhere/at/all")
    with pytest.raises(OptionError) as caught:
        make_folder(tmp_path / name)
    assert str(caught.value) == f"{tmp_path / Path(name).parts[0]} is no folder; nothing can be written into it"


def test_a_folder_that_the_system_refuses_is_one_line() -> None:
    with pytest.raises(OptionError, match="^/proc/dlbench cannot be made: No such file or directory$"):
        make_folder(Path("/proc/dlbench"))


def test_files_are_the_same_whatever_their_names(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "b").symlink_to("a")
    assert same_file(tmp_path / "a", tmp_path / "b")
    assert not same_file(tmp_path / "a", tmp_path / "none")
    assert not same_file(tmp_path / "none", tmp_path / "none")
