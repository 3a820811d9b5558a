"""Figures as files: the same for the same runs, with their fonts, and with a caption beside."""

from __future__ import annotations

import subprocess
import sys
import zlib
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.text import Text
from numpy.typing import NDArray
from ops_builder import collective, table_of, write_ops
from plot_reader import ALONE, constant_run, pair, results_of

from dlbench.analysis.plots import FAMILIES, FORMATS, Drawing, encode, figures, save
from dlbench.analysis.plots.style import styled
from dlbench.errors import OptionError


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that allow every family of figures."""
    folder = tmp_path_factory.mktemp("campaign")
    constant_run(folder, "base-2", 1.0, 8, op_tables=table_of([0, 1], collective("gradient")), **ALONE)
    write_ops(folder / "base-2.jsonl", [[[(0.0, 0.5)], [(0.25, 0.5)]]] * 8)
    program = [{"op": "compute", "name": "forward", "seconds": 0.1}, collective("gradient")] * 4
    constant_run(folder, "base-4", 1.2, 8, ranks=4, op_tables=table_of(range(4), *program), **ALONE)
    write_ops(folder / "base-4.jsonl", [blocks(own) for own in np.random.default_rng(1).uniform(0.1, 0.2, (8, 4, 4))])
    pair(folder, "e", [1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 20.0])
    return folder


def blocks(own: NDArray[np.float64]) -> list[list[tuple[float, float]]]:
    """What ranks compute before each collective, shape (ranks, collectives), which ends when the last has come."""
    end = own.max(axis=0).cumsum()
    begin = end - own.max(axis=0)
    return [
        [pair for b, x, e in zip(begin, rank, end, strict=True) for pair in ((b, b + x), (b + x, e))] for rank in own
    ]


@pytest.fixture(scope="module")
def drawing(campaign: Path) -> Drawing:
    return figures(results_of(campaign))


def test_every_family_is_drawn_where_the_runs_allow_it(drawing: Drawing) -> None:
    assert [plot.name for plot in drawing.plots] == list(FAMILIES)
    assert list(FAMILIES) == [
        "communication",
        "scaling",
        "slowdown",
        "stability",
        "breakdown",
        "tax",
        "tax-map",
        "tax-paths",
        "extremes",
        "bandwidth",
    ]


def test_every_caption_says_how_many_samples_there_are(drawing: Drawing) -> None:
    assert all("n = " in plot.caption for plot in drawing.plots)
    assert all(plot.caption.endswith(".") for plot in drawing.plots)


def test_intervals_are_explained_wherever_they_are_drawn(drawing: Drawing) -> None:
    captions = {plot.name: plot.caption for plot in drawing.plots}
    assert all("95 %" in captions[name] for name in ("communication", "scaling", "slowdown", "stability"))


def test_only_the_families_that_were_asked_for_are_drawn(campaign: Path) -> None:
    found = figures(results_of(campaign), only=["scaling", "communication"])
    assert [plot.name for plot in found.plots] == ["communication", "scaling"]


def test_every_axis_has_a_label(drawing: Drawing) -> None:
    for plot in drawing.plots:
        assert all(ax.get_ylabel() for ax in plot.figure.axes)
        assert [ax for ax in plot.figure.axes if ax.get_label() != "<colorbar>"][-1].get_xlabel()


def test_no_text_is_smaller_than_seven_points(drawing: Drawing) -> None:
    for plot in drawing.plots:
        found = plot.figure.findobj(lambda artist: isinstance(artist, Text) and bool(artist.get_text()))
        assert min(float(text.get_fontsize()) for text in found if isinstance(text, Text)) >= 7


def test_no_text_is_cut_off_by_the_edge_of_the_figure(drawing: Drawing) -> None:
    for plot in drawing.plots:
        encode(plot.figure, "png")  # lays the figure out
        page = plot.figure.bbox.padded(0.5)
        for ax in plot.figure.axes:
            with styled():  # which ticks there are follows from the size of their labels
                box = ax.get_tightbbox()
            assert box is not None
            assert page.x0 <= box.x0 < box.x1 <= page.x1
            assert page.y0 <= box.y0 < box.y1 <= page.y1


def test_two_drawings_of_the_same_runs_are_the_same_files(campaign: Path, drawing: Drawing, tmp_path: Path) -> None:
    first = save(drawing.plots, tmp_path / "first")
    second = save(figures(results_of(campaign)).plots, tmp_path / "second")
    assert [file.name for file in first] == [file.name for file in second]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_a_file_does_not_depend_on_which_formats_were_saved_before(campaign: Path, drawing: Drawing) -> None:
    fresh = figures(results_of(campaign)).plots
    for plot, again in zip(drawing.plots, fresh, strict=True):
        for name in FORMATS:
            encode(plot.figure, name)
        assert encode(plot.figure, "svg") == encode(again.figure, "svg")


def test_the_users_settings_do_not_change_a_file(campaign: Path, drawing: Drawing) -> None:
    with matplotlib.rc_context({"font.size": 20, "svg.hashsalt": "other", "axes.facecolor": "red"}):
        again = figures(results_of(campaign), only=["scaling"]).plots[0]
        assert encode(again.figure, "svg") == encode(drawing.plots[1].figure, "svg")


def test_a_pdf_embeds_a_truetype_font_and_no_date(drawing: Drawing) -> None:
    data = encode(drawing.plots[0].figure, "pdf")
    assert b"/FontFile2" in data + inflated(data)
    assert b"/CreationDate" not in data


def inflated(data: bytes) -> bytes:
    """The compressed streams of a PDF."""
    found = b""
    for part in data.split(b"stream\n")[1:]:
        try:
            found += zlib.decompressobj().decompress(part)
        except zlib.error:
            continue
    return found


def test_an_svg_has_its_letters_inside_and_no_date(drawing: Drawing) -> None:
    data = encode(drawing.plots[0].figure, "svg").decode()
    assert "<text" not in data
    assert "<dc:date>" not in data


def test_a_resolution_can_be_asked_for(drawing: Drawing) -> None:
    small, large = (encode(drawing.plots[0].figure, "png", dpi) for dpi in (100, 200))
    assert [int.from_bytes(data[16:20], "big") for data in (small, large)] == [700, 1400]


def test_files_have_the_figures_name_and_a_caption_beside(drawing: Drawing, tmp_path: Path) -> None:
    files = save(drawing.plots[:1], tmp_path / "new" / "folder", ["png", "svg", "png"])
    assert [file.name for file in files] == ["communication.png", "communication.svg", "communication.txt"]
    caption = files[-1].read_text(encoding="utf-8")
    assert caption == f"{drawing.plots[0].title}. {drawing.plots[0].caption}\n"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("stabilty", "unknown figure 'stabilty'; did you mean stability?"),
        (
            "x",
            "unknown figure 'x'; there are communication, scaling, slowdown, stability, breakdown, tax, tax-map, "
            "tax-paths, extremes, bandwidth",
        ),
    ],
)
def test_an_unknown_figure_is_answered_with_what_there_is(campaign: Path, name: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        figures(results_of(campaign), only=[name])
    assert str(caught.value) == message


def test_an_unknown_format_is_an_error_before_anything_is_written(drawing: Drawing, tmp_path: Path) -> None:
    with pytest.raises(OptionError) as caught:
        save(drawing.plots, tmp_path / "figures", ["png", "jpg"])
    assert str(caught.value) == "unknown format 'jpg'; did you mean png?"
    assert not (tmp_path / "figures").exists()


def test_drawing_loads_no_pyplot() -> None:
    program = "import sys, dlbench.analysis.plots; print('matplotlib.pyplot' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed == "False\n"
