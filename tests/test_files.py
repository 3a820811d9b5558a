"""Files that stand under their name once they are whole: through links, to devices, and on a disk that is full."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from full_disk import limited_files

from dlbench.errors import OptionError
from dlbench.files import new_file


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


def test_what_was_there_stays_where_the_new_one_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write(path, "old")
    with limited_files(1000), pytest.raises(OptionError, match=r"report.html cannot be written: File too large$"):
        write(path, "x" * 100_000)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
