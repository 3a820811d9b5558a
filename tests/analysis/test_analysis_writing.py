"""Folders that the analysis writes into, and files that are one."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlbench.analysis.writing import make_folder, same_file
from dlbench.errors import OptionError


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
