"""Figures of extreme value fits and of the bandwidth law."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from plot_reader import legend_of, title, x_data, y_data

from dlbench.analysis.bandwidth import TOPOLOGIES, Collective, Computation, Tax, bandwidths, end_to_end, given_topology
from dlbench.analysis.block_times import BlockTimes
from dlbench.analysis.extremes import GEV, Extremes, extremes
from dlbench.analysis.growth import Growth
from dlbench.analysis.plots import Plot, bandwidth, encode, save, style
from dlbench.analysis.plots import extremes as drawn
from dlbench.analysis.samples import Estimate
from dlbench.analysis.tails import Tail

COLLECTIVE = Collective(alpha=5e-6, message=2.0**28, elasticity=0.5)
TAX = Tax(name="Gumbel", tail=Tail.of(225.714e-6, 130.736e-6))


@pytest.fixture(scope="module")
def found() -> Extremes:
    cube = np.random.default_rng(1).normal(1.0, 0.1, size=(2, 30, 16))
    return extremes(BlockTimes.of_array(cube, "tensor $x$"), predict=[4, 8, 16, 64, 128])


@pytest.fixture(scope="module")
def plot(found: Extremes) -> Plot:
    (only,) = drawn.draw([found]).plots
    return only


def test_the_density_of_the_maxima_is_drawn_with_both_fits(found: Extremes, plot: Plot) -> None:
    density = plot.figure.axes[0]
    bars: list[Any] = list(density.patches)
    assert sum(bar.get_width() * bar.get_height() for bar in bars) == pytest.approx(1)
    assert len(density.lines) == 2
    gev = density.lines[1]
    peak = float(np.argmax(y_data(gev)))
    assert 0.5 < x_data(gev)[int(peak)] < 1.1  # the mode of the largest of 4 normal draws
    shape = found.fits[GEV].shape
    expected = f"ξ = {shape.value:.3f} ({shape.low:.3f} to {shape.high:.3f})"
    assert title(density) == [expected.replace("-", "−")]
    assert density.get_xlabel() == "group maximum [z-score]"


def test_a_heavy_tail_leaves_the_density_readable_and_what_is_beyond_is_counted() -> None:
    """Their quartiles are so close that bins of the usual width would be millions."""
    heavy = extremes(BlockTimes.of_array(1e-3 * np.random.default_rng(1).pareto(0.8, (1, 1000, 16))))
    (plot,) = drawn.draw([heavy]).plots
    density = plot.figure.axes[0]
    bars: list[Any] = list(density.patches)
    assert 20 < len(bars) < 200
    count, largest = re.search(r"; (\d+) beyond, up to ([\d.]+)$", " ".join(title(density))).groups()  # type: ignore[union-attr]
    inside = 1 - int(count) / len(heavy.maxima)
    assert sum(bar.get_width() * bar.get_height() for bar in bars) == pytest.approx(inside)
    assert float(largest) == pytest.approx(heavy.maxima[-1], abs=0.05)
    assert legend_of(plot) == ["Gumbel", "GEV", "measured", "beyond the axes"]  # nothing is extrapolated


def test_a_distribution_has_one_colour_in_fits_and_law(plot: Plot) -> None:
    frame = bandwidths(COLLECTIVE, [TOPOLOGIES["ring"]], [8, 128], [TAX, replace(TAX, name="GEV")])
    (ax,) = bandwidth.draw({"bandwidth": frame}, COLLECTIVE).plots[0].figure.axes
    none, *taxed = ax.lines
    assert [line.get_color() for line in taxed] == [line.get_color() for line in plot.figure.axes[3].lines[:2]]
    assert none.get_color() == style.GREY
    assert plot.figure.axes[3].lines[2].get_color() == style.MEASURED.color


def test_quantiles_of_a_fit_that_holds_lie_on_the_diagonal(found: Extremes, plot: Plot) -> None:
    quantiles = plot.figure.axes[1]
    gev = quantiles.lines[2]
    assert np.corrcoef(x_data(gev), y_data(gev))[0, 1] > 0.99
    assert y_data(gev)[-1] == pytest.approx(found.maxima[-1])


def test_quantiles_far_out_stand_as_arrows_at_the_end_of_the_axes_and_are_counted() -> None:
    heavy = extremes(BlockTimes.of_array(1e-3 * np.random.default_rng(1).pareto(1.3, (1, 300, 16))))
    (plot,) = drawn.draw([heavy]).plots
    quantiles = plot.figure.axes[1]
    arrows = [line for line in quantiles.lines if line.get_markeredgecolor() == "black"]
    points = [line for line in quantiles.lines[:-1] if line not in arrows]
    limit = max(max(x_data(line) + y_data(line)) for line in arrows)
    assert quantiles.get_xlim()[1] < 1.1 * limit < 0.1 * heavy.maxima[-1]
    assert max(max(x_data(line) + y_data(line)) for line in points) <= limit
    assert all(limit in pair for line in arrows for pair in zip(x_data(line), y_data(line), strict=True))
    (said,) = (text.get_text() for text in quantiles.texts)
    beyond = sum(len(x_data(line)) for line in arrows)
    assert re.fullmatch(rf"◆ {beyond} beyond, up to [\d.]+", said)
    largest = max(heavy.maxima[-1], float(heavy.fits[GEV].tail.quantile(np.array([1 - 0.35 / len(heavy.maxima)]))[0]))
    assert float(said.split()[-1]) == pytest.approx(largest, abs=0.05)
    assert sum(len(x_data(line)) for line in points) + beyond == 2 * 500
    assert "◆ stands at the end of the axes" in plot.caption
    assert "beyond the axes" in legend_of(plot)
    # A diamond is that of no distribution.
    assert {line.get_marker() for line in arrows} == {"D"}
    assert "D" not in {line.get_marker() for line in points}


def test_the_smallest_p_value_is_shown_as_a_bound(found: Extremes, plot: Plot) -> None:
    def shown(p_value: float) -> str:
        fits = {name: replace(fit, goodness=fit.goodness._replace(p_value=p_value)) for name, fit in found.fits.items()}
        (changed,) = drawn.draw([replace(found, fits=fits)]).plots
        return " ".join(title(changed.figure.axes[1]))

    assert shown(1 / 201) == "Gumbel p ≤ 0.005, GEV p ≤ 0.005"
    assert shown(0.25) == "Gumbel p = 0.250, GEV p = 0.250"
    assert not [text for text in plot.figure.axes[1].texts if "◆" in text.get_text()]


def errorbars(ax: Axes) -> list[ErrorbarContainer]:
    return [each for each in ax.containers if isinstance(each, ErrorbarContainer)]


def test_predicted_stands_against_measured_where_there_is_a_measurement(found: Extremes, plot: Plot) -> None:
    against = plot.figure.axes[2]
    checked = [each for each in found.predictions if each.ranks <= 16]
    bars = errorbars(against)
    assert [x_data(bar.lines[0])[0] for bar in bars] == pytest.approx([1e3 * each.measured.value for each in checked])
    assert [y_data(bar.lines[0])[0] for bar in bars] == pytest.approx([1e3 * each.tau.value for each in checked])
    assert against.get_xlabel() == "measured mean wait [ms]"
    assert title(against)[0].startswith("largest error: Gumbel ")


def test_waits_grow_with_the_ranks_and_the_extrapolation_is_shaded(found: Extremes, plot: Plot) -> None:
    growth = plot.figure.axes[3]
    gumbel, gev, measured = growth.lines
    assert x_data(gumbel) == x_data(gev) == [4, 8, 16, 64, 128]
    assert y_data(gev) == pytest.approx(
        [1e3 * each.tau.value for each in found.predictions if each.distribution == GEV]
    )
    assert x_data(measured) == [4, 8, 16]
    assert growth.get_xscale() == "log"
    (span,) = growth.patches
    assert (span.get_x(), span.get_x() + span.get_width()) == (64, 128)
    assert len(growth.collections) == 2  # the intervals


def test_the_legend_and_the_caption_say_what_is_seen(plot: Plot) -> None:
    assert legend_of(plot) == ["Gumbel", "GEV", "measured", "extrapolated"]
    assert "tensor $x$: maxima of groups of 4 ranks" in plot.caption
    assert "n = 240 of 60 blocks on 16 ranks" in plot.caption


def test_a_figure_of_runs_names_their_configuration(found: Extremes) -> None:
    factors = {"system": "leonardo", "strategy": "dp", "model": "vit-h", "gpus": 16, "placement": "", "dtype": "bf16"}
    (plot,) = drawn.draw([replace(found, times=replace(found.times, factors=factors))]).plots
    assert plot.figure.get_suptitle() == "leonardo · dp · vit-h · 16 GPUs · tensor $x$"
    assert plot.caption.startswith("leonardo · dp · vit-h · 16 GPUs · tensor $x$: maxima")


def test_a_figure_of_scaled_runs_says_so(found: Extremes) -> None:
    factors = {"strategy": "dp", "gpus": 16, "scale": 0.001, "time_scale": 0.1}
    (plot,) = drawn.draw([replace(found, times=replace(found.times, factors=factors))]).plots
    assert plot.figure.get_suptitle() == "dp · 16 GPUs · scale 0.001 · time scale 0.1 · tensor $x$"
    assert plot.caption.startswith(f"{plot.figure.get_suptitle()}: maxima")


def test_four_groups_are_drawn_and_the_others_counted(found: Extremes) -> None:
    drawing = drawn.draw([found] * 6)
    assert [each.name for each in drawing.plots] == ["extremes", "extremes-2", "extremes-3", "extremes-4"]
    assert [str(each) for each in drawing.left_out] == ["extremes: 4 of 6 groups are drawn"]


def test_the_same_fit_gives_the_same_file(found: Extremes, plot: Plot) -> None:
    again = drawn.draw([found]).plots[0]
    assert encode(again.figure, "svg") == encode(plot.figure, "svg")


def law() -> Plot:
    topologies = [*TOPOLOGIES.values(), given_topology(10, 2)]
    return bandwidth.draw({"bandwidth": bandwidths(COLLECTIVE, topologies, [8, 128, 512], [TAX])}, COLLECTIVE).plots[0]


def test_the_law_has_a_panel_per_topology_with_and_without_the_tax() -> None:
    plot = law()
    axes = plot.figure.axes
    assert [title(ax) for ax in axes] == [["ring"], ["torus"], ["connected"], ["p=10, q=2"]]
    without, taxed = axes[0].lines
    assert x_data(taxed) == [8, 128, 512]
    assert y_data(taxed) == pytest.approx([1017.2, 263.1, 88.6], abs=0.051)
    assert y_data(without)[1] == pytest.approx(263.14 / (1 - 0.372614), rel=1e-4)
    assert (axes[2].get_xscale(), axes[2].get_yscale()) == ("log", "log")
    assert (axes[2].get_xlabel(), axes[2].get_ylabel()) == ("ranks of the domain", "B* [GB/s]")
    assert legend_of(plot) == ["tax: none", "tax: Gumbel"]


def test_the_law_says_for_which_collective_it_is_made() -> None:
    said = "message size S = 268.4 MB, latency α = 5.000 µs, elasticity |ε| = 0.5"  # 2^28 = 268 435 456
    assert law().figure.get_suptitle() == said
    assert f"All-reduces of {said}. " in law().caption


@pytest.mark.parametrize(
    ("scales", "said"),
    [
        ({"scale": 1, "time_scale": 1}, ""),
        (
            {"scale": 0.001, "time_scale": 0.1},
            " Times are those of scaled runs (scale 0.001, time scale 0.1), and so are waits and B*.",
        ),
    ],
)
def test_the_law_of_scaled_runs_says_so(found: Extremes, scales: dict[str, float], said: str) -> None:
    times = replace(found.times, factors={"strategy": "dp", "model": "vit-h", "gpus": 16, **scales})
    frame = bandwidths(COLLECTIVE, [TOPOLOGIES["ring"]], [8], [TAX])
    (plot,) = bandwidth.draw_growth(Growth(found=[replace(found, times=times)], law=frame)).plots
    assert plot.caption.endswith(f" Waits of dp vit-h on 16 GPUs, tensor $x$, n = 60 blocks.{said}")


def test_an_interval_of_the_wait_is_a_band() -> None:
    tax = Tax(name="GEV", tail=TAX.tail, intervals={8: Estimate(4e-4, 3e-4, 6e-4), 16: Estimate(5e-4, 4e-4, 7e-4)})
    frame = bandwidths(COLLECTIVE, [given_topology(20, 2)], [8, 16], [tax])
    (ax,) = bandwidth.draw({"bandwidth": frame}, COLLECTIVE).plots[0].figure.axes
    _, band = ax.collections
    heights = np.asarray(band.get_paths()[0].vertices)[:, 1]
    volume = 2 * 2.0**28 / 1e9
    assert (heights.min(), heights.max()) == pytest.approx((volume / 800e-6, volume / 400e-6))


def test_against_flops_the_largest_domain_is_drawn() -> None:
    computation = Computation(block=10.38e-3, bandwidth=450e9, factors=[1, 2250 / 989])
    frame = end_to_end(COLLECTIVE, [TOPOLOGIES["connected"]], [8, 4096], [TAX], computation)
    (plot,) = bandwidth.draw({"flops": frame}, COLLECTIVE).plots
    (ax,) = plot.figure.axes
    # The elasticity is that of today, not the one that B* is asked for.
    assert "All-reduces of message size S = 268.4 MB, latency α = 5.000 µs. " in plot.caption
    assert (plot.name, title(ax)) == ("bandwidth-flops", ["connected, 4096 ranks"])
    assert [y_data(line) for line in ax.lines] == [
        pytest.approx([450, 1022.5], abs=0.05),
        pytest.approx([450, 902.9], abs=0.05),
    ]


@pytest.mark.parametrize("make", [lambda found: drawn.draw([found]).plots, lambda _: [law()]])
def test_figures_can_be_saved(found: Extremes, tmp_path: Path, make: Callable[[Extremes], list[Plot]]) -> None:
    files = save(make(found), tmp_path)
    assert [file.suffix for file in files] == [".pdf", ".svg", ".png", ".txt"]
    assert all(file.stat().st_size > 100 for file in files)
