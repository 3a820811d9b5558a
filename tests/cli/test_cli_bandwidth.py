"""`dlbench bandwidth`, as a user sees it."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlbench.cli.main import main

Command = Callable[..., tuple[int, str, str]]
PAPER = ["--mu", "225.714us", "--sigma", "130.736us"]
SEE = "; see 'dlbench bandwidth --help'"


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Run the command in an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dlbench", "bandwidth", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        output = capsys.readouterr()
        return int(caught.value.code or 0), output.out, output.err

    return run


def rows(call: Command, *arguments: str, table: str = "bandwidth") -> list[dict[str, Any]]:
    code, out, err = call(*arguments, "--json")
    assert (code, err) == (0, "")
    found: list[dict[str, Any]] = json.loads(out)[table]
    return found


def test_the_table_shows_the_law_with_units(call: Command) -> None:
    code, out, err = call(*PAPER, "--topology", "ring", "--domain", "8,128")
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert ["#", "topology", "domain", "tax", "p", "q", "wait", "B*", "lower", "by", "note"] in lines
    assert ["#", "[ms]", "[GB/s]", "[%]"] in lines
    assert ["ring", "8", "Gumbel", "14", "1.75", "0.39180", "1017.2", "84.84"] in lines
    assert ["ring", "128", "Gumbel", "254", "1.98438", "0.75427", "263.14", "37.26", "[1]"] in lines
    assert ["ring", "128", "none", "254", "1.98438", "0.0000", "419.43", "0.00"] in lines


def test_parameters_are_times_or_numbers_of_a_spread(call: Command) -> None:
    times = rows(call, *PAPER, "--domain", "64")
    numbers = rows(call, "--mu", "1.726487", "--sigma", "1", "--spread", "130.736us", "--domain", "64")
    assert [row["bandwidth"] for row in numbers] == pytest.approx([row["bandwidth"] for row in times], rel=1e-6)


@pytest.mark.parametrize(("written", "size"), [("2^20", 2**20), ("1MiB", 2**20), ("3kB", 3000), ("12", 12)])
def test_a_message_is_a_power_or_has_a_unit(call: Command, written: str, size: int) -> None:
    # Without a tax B* = q S / (p α) at 0.5: p = 10, α = 1 µs.
    found = rows(call, "--message", written, "--alpha", "1us", "--topology", "10,1", "--domain", "8")
    assert [row["bandwidth"] for row in found] == pytest.approx([size / 10e-6])


def test_numbers_of_a_spread_need_it_rather_than_a_spread_of_a_second(call: Command) -> None:
    arguments = ("--mu", "1.03", "--sigma", "0.55", "--domain", "8", "--topology", "ring")
    said = "--mu and --sigma are in spreads; give --spread, e.g. --spread 237us, or both as times"
    assert call(*arguments) == (2, "", f"dlbench: {said}\n")
    # b (μ + σ (ln 2 + γ)) = 237 µs · (1.03 + 0.55 · 1.270363)
    (_, row) = rows(call, *arguments, "--spread", "237us")
    assert row["tau"] == pytest.approx(409.702e-6, rel=1e-5)


def test_a_location_of_0_goes_with_a_scale_of_either_kind(call: Command) -> None:
    # σ (ln 2 + γ) = 1.270363 σ
    for scale in (["--sigma", "4us"], ["--sigma", "2", "--spread", "2us"]):
        (_, row) = rows(call, "--mu", "0", *scale, "--topology", "ring", "--domain", "8")
        assert row["tau"] == pytest.approx(5.081451e-6, rel=1e-5)


def test_the_output_has_all_that_it_takes_to_make_it_again(call: Command) -> None:
    numbers = ["--mu", "1.03", "--sigma", "0.55", "--shape", "-0.1", "--spread", "237us", "--group-size", "8"]
    growth = ["--block", "10.38ms", "--flops-factor", "2"]
    code, out, _ = call(*numbers, *growth, "--message", "2^20", "--domain", "8")
    assert code == 0
    assert out.splitlines()[1:5] == [
        "# message    1.049 MB (1048576 B), latency 5 µs",
        "# elasticity 0.5",
        "# wait       GEV: μ 1.03, σ 0.55, ξ -0.1, spread 237 µs, groups of 8 ranks",
        "# today      450 GB/s, block 10380 µs",
    ]
    _, out, _ = call(*PAPER, "--domain", "8")
    assert "# wait       Gumbel: μ 225.714 µs, σ 130.736 µs, ξ 0, groups of 4 ranks" in out.splitlines()


def test_the_document_has_the_parameters_of_the_wait(call: Command, tmp_path: Path) -> None:
    _, out, _ = call(*PAPER, "--domain", "8", "--json")
    (tax,) = json.loads(out)["taxes"]
    assert tax == {
        "tax": "Gumbel",
        "mu": pytest.approx(225.714e-6),
        "sigma": pytest.approx(130.736e-6),
        "shape": 0.0,
        "spread": 1.0,
        "group_size": 4,
    }
    name = fit(tmp_path / "fit.json")
    document = json.loads(call("--from-fit", name, "--json")[1])
    assert (document["fit"], document["source"]) == (name, "world")
    assert document["taxes"] == [{"tax": "GEV", "mu": 1.0, "sigma": 0.5, "shape": 0.1, "spread": 1e-4, "group_size": 4}]
    assert json.loads(call("--domain", "8", "--json")[1])["taxes"] == []


def test_columns_of_intervals_are_there_only_where_a_wait_has_one(call: Command, tmp_path: Path) -> None:
    def headings(*arguments: str) -> list[str]:
        _, out, _ = call(*arguments, "--topology", "ring", "--domain", "8", "--flops-factor", "2")
        return [line for line in out.splitlines() if line.startswith("# topology")]

    without = [headings("--block", "1ms"), headings("--block", "1ms", *PAPER)]
    assert not [line for lines in without for line in lines if re.search(r"\b(low|high)\b", line)]
    found = headings("--from-fit", fit(tmp_path / "fit.json"))
    assert [len(re.findall(r"\b(?:low|high)\b", line)) for line in found] == [6, 6]


def test_what_the_fit_says_of_gumbel_stands_beside_its_rows(call: Command, tmp_path: Path) -> None:
    name = fit(tmp_path / "fit.json", distribution="Gumbel", tail_shape=0.0, reason="Gumbel overestimates: so")
    found = rows(call, "--from-fit", name, "--domain", "8,128", "--topology", "ring")
    assert [(row["tax"], row["reason"]) for row in found] == [
        ("none", ""),
        ("Gumbel", "Gumbel overestimates: so"),
        ("none", ""),
        ("Gumbel", "Gumbel overestimates: so; the tax is an extrapolation beyond k = 16 times the groups of its fit"),
    ]


def test_what_the_file_says_of_its_fit_is_said_again_but_not_of_other_groups(call: Command, tmp_path: Path) -> None:
    name = fit(tmp_path / "fit.json", scale=0.01, time_scale=0.5)
    document = json.loads(Path(name).read_text())
    document["fits"].append(document["fits"][0] | {"source": "tensor"})
    document["notes"] = ["all runs are scaled", "world: predictions start 28 % too high", "tensor: 30 blocks"]
    Path(name).write_text(json.dumps(document))
    arguments = ("--from-fit", name, "--source", "world", "--domain", "8", "--topology", "ring")
    expected = [
        "all runs are scaled",
        "world: predictions start 28 % too high",
        "times are those of scaled runs (scale 0.01, time scale 0.5), and so are waits and B*",
    ]
    assert json.loads(call(*arguments, "--json")[1])["notes"] == expected
    lines = call(*arguments)[1].splitlines()
    assert [line for line in lines if line.startswith("# note  ")] == [f"# note       {note}" for note in expected]


def test_a_fit_of_unscaled_runs_without_notes_has_none(call: Command, tmp_path: Path) -> None:
    arguments = ("--from-fit", fit(tmp_path / "fit.json"), "--domain", "8")
    assert json.loads(call(*arguments, "--json")[1])["notes"] == []
    assert "# note  " not in call(*arguments)[1]


def test_a_wait_whose_interval_ends_at_it_says_so_in_its_row(call: Command, tmp_path: Path) -> None:
    name = predicting(fit(tmp_path / "fit.json"), tau_low=1e-4)
    found = rows(call, "--from-fit", name, "--domain", "8,64", "--topology", "ring")
    said = "interval of wait ends at the estimate: nearly all resamples lie on one side of it"
    assert [(row["domain"], row["tax"], row["reason"]) for row in found] == [
        (8, "none", ""),
        (8, "GEV", said),
        (64, "none", ""),
        (64, "GEV", ""),
    ]


def test_an_elasticity_may_have_its_sign(call: Command) -> None:
    first, second = (rows(call, f"--elasticity={value}", "--domain", "8") for value in ("0.2", "-0.2"))
    assert first == second


def test_the_growth_of_flops_has_a_table_of_its_own(call: Command) -> None:
    arguments = [*PAPER, "--block", "10.38ms", "--flops-factor", "1,2.2750253", "--topology", "connected"]
    found = rows(call, *arguments, "--domain", "4096", table="flops")
    values = {(row["tax"], round(row["flops_factor"], 2)): row["bandwidth"] / 1e9 for row in found}
    assert values == pytest.approx(
        {("none", 1.0): 450, ("none", 2.28): 1022.5, ("Gumbel", 1.0): 450, ("Gumbel", 2.28): 902.9}, abs=0.05
    )


def test_a_shape_makes_the_tail_a_gev(call: Command) -> None:
    gumbel, gev = (rows(call, *PAPER, "--shape", shape, "--domain", "64")[1] for shape in ("0", "0.2"))
    assert (gumbel["tax"], gev["tax"]) == ("Gumbel", "GEV")
    assert gev["tau"] > gumbel["tau"]


def test_tables_and_figures_are_written(call: Command) -> None:
    code, out, _ = call(
        *PAPER, "--block", "10ms", "--flops-factor", "2,4", "--csv", "tables", "--plots", "figures", "--domain", "8,64"
    )
    assert code == 0
    assert sorted(path.name for path in Path("tables").iterdir()) == ["bandwidth.csv", "flops.csv"]
    with Path("tables/bandwidth.csv").open(encoding="utf-8-sig") as file:
        assert len(list(csv.DictReader(file))) == 3 * 2 * 2
    figures = sorted(path.stem for path in Path("figures").iterdir())
    assert sorted(set(figures)) == ["bandwidth", "bandwidth-flops"]
    assert "# written    figures/bandwidth.svg" in out.splitlines()


def test_captions_have_the_collective_and_what_the_fit_says_to_know(call: Command, tmp_path: Path) -> None:
    name = fit(tmp_path / "fit.json", scale=0.001)
    arguments = ("--message", "64MB", "--alpha", "2us", "--elasticity", "0.3", "--domain", "8,64")
    assert call("--from-fit", name, *arguments, "--plots", "figures")[0] == 0
    caption = Path("figures/bandwidth.txt").read_text(encoding="utf-8")
    assert "All-reduces of message size S = 64.00 MB, latency α = 2.000 µs, elasticity |ε| = 0.3. " in caption
    said = " Note: times are those of scaled runs (scale 0.001), and so are waits and B*.\n"
    assert caption.endswith(said)


def fit(path: Path, **changes: Any) -> str:
    """A document of `dlbench extremes --json`, cut to what the law takes of it."""
    parameters = {"tail_location": 1.0, "tail_scale": 0.5, "tail_shape": 0.1, "spread_seconds": 1e-4}
    row = {"source": "world", "distribution": "GEV", "group_size": 4, "block_seconds": 0.01, **parameters, **changes}
    wait = {
        "source": "world",
        "distribution": "GEV",
        "predicted_ranks": 8,
        "tau": 1e-4,
        "tau_low": 5e-5,
        "tau_high": 3e-4,
    }
    path.write_text(json.dumps({"fits": [row], "predictions": [wait]}))
    return str(path)


def test_a_fit_gives_waits_with_intervals_and_the_block_time(call: Command, tmp_path: Path) -> None:
    name = fit(tmp_path / "fit.json")
    (_, row) = rows(call, "--from-fit", name, "--topology", "20,2", "--alpha", "5us")
    volume = 2 * 2.0**28
    ends = [row[f"bandwidth{end}"] for end in ("_low", "", "_high")]
    assert ends == pytest.approx([volume / 400e-6, volume / 200e-6, volume / 150e-6])
    (baseline, _) = rows(call, "--from-fit", name, "--topology", "20,2", "--flops-factor", "2", table="flops")
    assert baseline["bandwidth"] / 450e9 == pytest.approx(0.0101 / 0.0051)


def test_for_other_domains_a_fit_gives_waits_without_intervals(call: Command, tmp_path: Path) -> None:
    name = fit(tmp_path / "fit.json")
    found = rows(call, "--from-fit", name, "--domain", "8,16", "--topology", "ring")
    assert [row["tau_low"] is None for row in found] == [False, False, False, True]
    code, out, _ = call("--from-fit", name, "--domain", "8,16", "--topology", "ring")
    assert code == 0
    assert " low" not in next(line for line in out.splitlines() if line.startswith("# topology")).replace("lower", "")


def test_a_group_is_chosen_where_a_fit_has_several(call: Command, tmp_path: Path) -> None:
    name = fit(tmp_path / "fit.json")
    document = json.loads(Path(name).read_text())
    document["fits"].append(document["fits"][0] | {"source": "tensor", "tail_scale": 5.0})
    Path(name).write_text(json.dumps(document))
    said = f"dlbench: {name}: not one fit; choose one of its groups with --source: world, tensor\n"
    assert call("--from-fit", name) == (2, "", said)
    world, tensor = (rows(call, "--from-fit", name, "--source", s, "--domain", "64")[1] for s in ("world", "tensor"))
    assert tensor["tau"] > world["tau"]
    said = f"dlbench: {name}: not one fit of 'pipeline'; its groups are world, tensor\n"
    assert call("--from-fit", name, "--source", "pipeline") == (2, "", said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--elasticity", "2"], "elasticity 2 is impossible; give one between 0 and 1, e.g. 0.5"),
        (["--mu", "1"], "--mu alone is no tail; give --mu and --sigma, or --from-fit"),
        (["--spread", "1ms"], "--spread alone is no tail; give --mu and --sigma, or --from-fit"),
        (
            ["--mu", "225us", "--sigma", "0.5", "--spread", "1us"],
            "one of --mu and --sigma is a time; give both as times, or both as numbers with --spread",
        ),
        ([*PAPER, "--spread", "1ms"], "--spread has no meaning where --mu and --sigma are times; leave it out"),
        (["--topology", "rnig"], "unknown topology 'rnig'; did you mean ring?"),
        (
            ["--topology", "5"],
            "unknown topology '5'; there are ring, torus, connected, and P,Q such as 2,1.97",
        ),
        ([*PAPER, "--shape", "1"], "a tail of shape 1 has no mean, so no tax follows; ξ must be below 1"),
        (
            [*PAPER, "--domain", "2"],
            "a domain of 2 ranks is smaller than the groups of 4 that the tail was fitted to",
        ),
        (["--flops-factor", "2"], "--flops-factor needs the mean block time; give --block, e.g. --block 10ms"),
        (["--source", "world"], "--source chooses a group of --from-fit; name its file"),
        (["--from-fit", "fit.json", *PAPER], "--mu contradicts --from-fit, whose file has it; leave one out"),
        (
            ["--from-fit", "nowhere.json"],
            "nowhere.json: cannot be read: No such file or directory; write it with dlbench extremes --json",
        ),
        (
            ["--alpha", "5"],
            f"argument --alpha: expected a time above 0 with a unit of s, ms, us, µs, ns, found '5'{SEE}",
        ),
        (
            ["--domain", "x"],
            f"argument --domain: expected numbers of ranks of 2 or more, such as 8,16,128, found 'x'{SEE}",
        ),
        (["--topology", "0,2"], "topology 0,2 is impossible: messages in a row and bytes per byte are above 0"),
        (
            ["--flops-factor", "2,x", "--block", "1s"],
            f"argument --flops-factor: expected a number of 0.001 or more, found 'x'{SEE}",
        ),
        (["--message", "2^63"], f"argument --message: expected less than 2^63 B, found '9223372036854775808'{SEE}"),
        (["--alpha", "1e308s"], f"argument --alpha: expected less than 2^63 s, found '1e308s'{SEE}"),
        (
            ["--message", "1e-5"],
            "argument --message: expected a size of a byte or more with a unit of B, kB, MB, GB, TB, KiB, MiB, GiB, "
            f"TiB, found '1e-5'{SEE}",
        ),
        (["--elasticity", "1e-320"], "elasticity 9.99989e-321 is impossible; give one between 0 and 1, e.g. 0.5"),
        (["--topology", "1e400,1"], "topology inf,1 is impossible: messages in a row and bytes per byte are above 0"),
        (
            ["--topology", "1,1e-320"],
            "topology 1,9.99989e-321 is impossible: messages in a row and bytes per byte are above 0",
        ),
        (["--block", "1ms"], "--block has no meaning without --flops-factor; give both, or leave it out"),
        (["--bandwidth", "9GB/s"], "--bandwidth has no meaning without --flops-factor; give both, or leave it out"),
        (
            ["--alpha", "-5us"],
            f"argument --alpha: expected a time above 0 with a unit of s, ms, us, µs, ns, found '-5us'{SEE}",
        ),
        (["--sigam", "1"], f"unknown option --sigam, did you mean --sigma?{SEE}"),
    ],
)
def test_a_wrong_option_is_one_line(call: Command, arguments: list[str], said: str) -> None:
    assert call(*arguments) == (2, "", f"dlbench: {said}\n")


@pytest.mark.parametrize("changes", [{"group_size": 1}, {"block_seconds": 0}, {"tail_scale": "wide"}])
def test_a_fit_with_impossible_numbers_is_one_line(call: Command, tmp_path: Path, changes: dict[str, Any]) -> None:
    name = fit(tmp_path / "fit.json", **changes)
    code, out, err = call("--from-fit", name)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"$.fits[0].{next(iter(changes))}" in err


def test_a_location_may_lie_below_0(call: Command) -> None:
    # b (μ + γσ) = −1 + 0.5772 · 4 µs at k = 1.
    for location in (["--mu=-1us"], ["--mu", "-1us"]):
        (_, row) = rows(call, *location, "--sigma", "4us", "--topology", "ring", "--domain", "4")
        assert row["tau"] == pytest.approx(1.30886e-6, rel=1e-5)


HUGE = 10.0**308


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"predicted_ranks": -5}, "`int` >= 2 - at `$.predictions[0].predicted_ranks`"),
        ({"predicted_ranks": 10**30}, "- at `$.predictions[0].predicted_ranks`"),
        ({"tau": HUGE}, "- at `$.predictions[0].tau`"),
        ({"tau_low": -HUGE}, "- at `$.predictions[0].tau_low`"),
        ({"tau": -1.0, "tau_low": -2.0}, "a wait of -1 s for 8 ranks is impossible; check μ, σ and ξ"),
        ({"tau_low": 9.0}, "s for 8 ranks is not in 9 to "),
    ],
)
def test_a_fit_with_impossible_waits_is_one_line(
    call: Command, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    name = predicting(fit(tmp_path / "fit.json"), **changes)
    code, out, err = call("--from-fit", name)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


@pytest.mark.parametrize("changes", [{"block_seconds": HUGE}, {"spread_seconds": 1e-320}, {"tail_shape": -HUGE}])
def test_a_fit_with_numbers_beyond_all_measure_is_one_line(
    call: Command, tmp_path: Path, changes: dict[str, Any]
) -> None:
    code, out, err = call("--from-fit", fit(tmp_path / "fit.json", **changes), "--flops-factor", "2")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"- at `$.fits[0].{next(iter(changes))}`" in err


def test_a_wait_without_interval_gives_a_bandwidth_without_one(call: Command, tmp_path: Path) -> None:
    name = predicting(fit(tmp_path / "fit.json"), tau_low=None, tau_high=None)
    _, row = rows(call, "--from-fit", name, "--topology", "ring", "--domain", "8")
    assert row["tau"] > 0
    assert (row["tau_low"], row["bandwidth_high"]) == (None, None)


def test_an_interval_that_reaches_below_0_ends_there(call: Command, tmp_path: Path) -> None:
    # No wait: 14 messages of 5 µs, and 2^28 bytes times 2 · 7/8, at |ε| = 1/2.
    name = predicting(fit(tmp_path / "fit.json"), tau_low=-1.0)
    _, row = rows(call, "--from-fit", name, "--topology", "ring", "--domain", "8")
    assert (row["tau_low"], row["bandwidth_high"]) == (0.0, pytest.approx(2 * 7 / 8 * 2**28 / 70e-6))


def test_a_fit_without_predictions_has_the_usual_domains(call: Command, tmp_path: Path) -> None:
    path = Path(fit(tmp_path / "fit.json"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"predictions": []}))
    found = rows(call, "--from-fit", str(path), "--topology", "ring")
    assert sorted({row["domain"] for row in found}) == [8, 64, 512, 4096]


def predicting(name: str, **changes: Any) -> str:
    """The file of a fit with other numbers in its predictions."""
    document = json.loads(Path(name).read_text())
    for row in document["predictions"]:
        row.update(changes)
    Path(name).write_text(json.dumps(document))
    return name


@pytest.mark.parametrize("text", ["{", "[]", '{"fits": [{}], "predictions": []}', "\x00"])
def test_a_file_that_is_no_fit_is_one_line(call: Command, text: str) -> None:
    Path("fit.json").write_text(text)
    code, out, err = call("--from-fit", "fit.json")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert re.match("dlbench: fit.json: no output of dlbench extremes --json: ", err)


def test_help_has_examples(call: Command) -> None:
    code, out, _ = call("--help")
    assert code == 0
    assert "dlbench bandwidth --from-fit fit.json --topology ring" in out


def test_a_group_of_several_configurations_is_no_single_fit(call: Command, tmp_path: Path) -> None:
    path = tmp_path / "fit.json"
    document = json.loads(Path(fit(path)).read_text())
    path.write_text(json.dumps({**document, "fits": 2 * document["fits"]}))
    said = "world is of several configurations; fit one with dlbench extremes --where"
    assert call("--from-fit", str(path)) == (2, "", f"dlbench: {path}: not one fit; {said}\n")
    assert call("--from-fit", str(path), "--source", "world") == (
        2,
        "",
        f"dlbench: {path}: not one fit of 'world'; {said}\n",
    )


def test_the_output_says_whose_waits_it_takes_and_what_is_taken_for_today(call: Command, tmp_path: Path) -> None:
    arguments = ["--from-fit", fit(tmp_path / "fit.json"), "--flops-factor", "2", "--domain", "8"]
    code, out, _ = call(*arguments)
    assert code == 0
    header = [line for line in out.splitlines() if line.startswith(("# fit ", "# wait ", "# today"))]
    assert header == [
        f"# fit        {tmp_path}/fit.json: world",
        "# wait       GEV: μ 1, σ 0.5, ξ 0.1, spread 100 µs, groups of 4 ranks",
        "# today      450 GB/s, block 10000 µs",
    ]
    code, out, _ = call(*arguments, "--bandwidth", "900GB/s", "--json")
    document = json.loads(out)
    assert (document["today"], document["block"]) == (900e9, 0.01)
    code, out, _ = call("--domain", "8", "--json")
    assert {"today", "block"}.isdisjoint(json.loads(out))
