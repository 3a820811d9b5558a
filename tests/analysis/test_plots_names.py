"""Figures of records whose names are no names: markup, control characters, letters that no font has, no end."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from builder import end, header, iterations, write_lines
from matplotlib.text import Text
from plot_reader import results_of

from dlbench.analysis.plots import encode, figures
from dlbench.analysis.plots.panels import placement_lines, shortened, wrapped

NAMES = ["$\\unknown{$", "$x^2$", "\N{UNICORN FACE}", "a\nb\x07", "x" * 5000, "<b>&amp;", "%s {0}", "nan"]


def write_named(folder: Path, run_id: str, name: str, **changes: Any) -> None:
    """Six iterations of a run, of 2 ranks or of `world_size`, in which everything that can have a name has this one."""
    ranks = changes.pop("world_size", 2)
    factors: dict[str, Any] = {"strategy": name, "system": name, "placement": name, "dtype": name, "compute": name}
    specs: dict[str, Any] = {"model": {"name": name}, "gpu": {"name": name}, "labels": {"mode": name}}
    sync = [[0.5] * ranks] * 6
    lines = iterations([[1.0] * ranks] * 6, sync, communication={f"allreduce/{name}": sync})
    head = header(f"{run_id} {name}", ranks, **factors | specs | changes)
    write_lines(folder / f"{run_id}.jsonl", head, *lines, end(6))


@pytest.mark.parametrize("name", NAMES)
def test_every_name_can_be_drawn_without_a_word_of_the_plotting_library(tmp_path: Path, name: str) -> None:
    for ranks in (2, 4):
        write_named(tmp_path, f"alone-{ranks}", name, world_size=ranks)
    for job in ("a", "b"):
        write_named(tmp_path, job, name, experiment="e", job=job, concurrent_jobs=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawing = figures(results_of(tmp_path))
        assert [plot.name for plot in drawing.plots] == [
            "communication",
            "scaling",
            "slowdown",
            "stability",
            "breakdown",
        ]
        assert all(encode(plot.figure, "svg") for plot in drawing.plots)


def test_dollars_are_drawn_as_dollars(tmp_path: Path) -> None:
    write_named(tmp_path, "run", "$x^2$")
    for plot in figures(results_of(tmp_path)).plots:
        texts = [text for text in plot.figure.findobj(Text) if "$x^2$" in text.get_text()]
        assert texts
        assert not any(text.get_parse_math() for text in texts)


def test_a_long_name_is_cut_where_the_axes_need_the_room() -> None:
    assert shortened("x" * 40) == "x" * 40
    assert shortened("x" * 41) == "x" * 40 + "…"
    assert placement_lines("intra-group-same-l1-2") == "intra-group\nsame-l1-2"
    assert placement_lines("x" * 5000) == "x" * 40 + "…"


def test_a_long_title_has_three_lines() -> None:
    assert wrapped("x" * 5000 + "\nn = 6", 3.4).split("\n") == ["x" * 50, "x" * 50, "…", "n = 6"]
