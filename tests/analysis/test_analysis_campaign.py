"""A campaign: choosing runs, keeping kinds of runs apart, and saying why no run is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builder import end, header, iterations, write_lines, write_run

from dlbench.analysis.campaign import EXPERIMENT, FACTORS, KEY, RUNS, Campaign
from dlbench.analysis.load import load
from dlbench.errors import OptionError, RecordError

RUN = [[1.0, 2.0], [3.0, 4.0]]


def campaign_of(folder: Path, **runs: dict[str, Any]) -> Campaign:
    """A campaign of runs with these header fields, in the order of their names."""
    for name, changes in runs.items():
        write_run(folder, name, RUN, **changes)
    return load([folder])


def names(campaign: Campaign) -> list[str]:
    return list(campaign.runs["run_id"])


@pytest.fixture
def mixed(tmp_path: Path) -> Campaign:
    """Three runs: a and b on leonardo, c on alps; a and c of DP, b of FSDP."""
    return campaign_of(
        tmp_path,
        a={},
        b={"strategy": "fsdp", "labels": {"fabric": "ndr"}},
        c={"system": "alps", "model": {"name": "llama-3-70b"}, "placement": "inter-group"},
    )


def test_every_factor_is_a_column_of_a_run() -> None:
    assert set(FACTORS) | set(EXPERIMENT) <= set(RUNS)
    assert FACTORS[:5] == KEY == ("system", "strategy", "model", "gpus", "placement")
    assert len(set(FACTORS)) == len(FACTORS) == 30


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ({}, ["a", "b", "c"]),
        ({"strategy": ["dp"]}, ["a", "c"]),
        ({"strategy": ["dp", "fsdp"]}, ["a", "b", "c"]),
        ({"system": ["alps"]}, ["c"]),
        ({"model": ["vit-h"]}, ["a", "b"]),
        ({"strategy": ["dp"], "system": ["leonardo"]}, ["a"]),
        ({"where": "gpus >= 2"}, ["a", "b", "c"]),
        ({"where": "gpus > 2"}, []),
        ({"where": "placement == 'inter-group' or label_fabric == 'ndr'"}, ["b", "c"]),
        ({"where": "run_id.str.startswith('b')"}, ["b"]),
        ({"where": "not concurrent and run < 1"}, ["a"]),
        ({"where": "strategy.str.len() == 4 or run_id.str.contains('A', case=False)"}, ["a", "b"]),
        ({"where": "`label_fabric` == 'ndr' and (gpus * 2 - 3) // 1 % 2 == 1"}, ["b"]),
        ({"where": "(gpus == 2) & ~(system in ['alps', 'jupiter'])"}, ["a", "b"]),
        ({"where": "system == 'gpus.to_csv()' or run_id == 'c'"}, ["c"]),
        ({"where": "strategy == 'dp'", "system": ["alps"]}, ["c"]),
    ],
)
def test_filters_hold_all_together(mixed: Campaign, filters: dict[str, Any], left: list[str]) -> None:
    assert names(mixed.select(**filters)) == left


def test_a_selection_keeps_the_numbers_of_its_runs_in_every_table(mixed: Campaign) -> None:
    chosen = mixed.select(where="run_id != 'b'")
    assert list(chosen.runs.index) == [0, 2]
    assert list(chosen.iterations["run"]) == [0, 0, 2, 2]
    assert list(chosen.ranks["run"]) == [0] * 4 + [2] * 4
    assert list(chosen.classes["run"]) == [0, 0, 2, 2]
    assert list(chosen.ranks.index) == list(range(8))
    assert chosen.paths == mixed.paths
    assert names(chosen.select(system=["alps"])) == ["c"]


def test_the_other_jobs_of_a_selected_run_were_running_all_the_same(tmp_path: Path) -> None:
    jobs = {"a": {"strategy": "dp"}, "b": {"strategy": "fsdp"}}
    campaign = campaign_of(tmp_path, **{name: more | {"experiment": "e", "job": name} for name, more in jobs.items()})
    chosen = campaign.select(strategy=["dp"])
    assert list(chosen.windows["job"]) == ["a", "b"]
    assert list(chosen.runs["concurrent"]) == [True]


@pytest.mark.parametrize("chosen", [set(), {"a"}, {"b", "c"}, {"a", "b", "c"}])
def test_a_condition_and_its_opposite_share_the_runs(mixed: Campaign, chosen: set[str]) -> None:
    where = f"run_id in {sorted(chosen)}"
    assert set(names(mixed.select(where=where))) == chosen
    assert set(names(mixed.select(where=f"not ({where})"))) == {"a", "b", "c"} - chosen


def test_a_name_that_no_run_has_is_answered_with_the_nearest(mixed: Campaign) -> None:
    with pytest.raises(OptionError) as caught:
        mixed.select(system=["leonard"])
    assert str(caught.value) == "no run has system 'leonard'; did you mean leonardo?"


def test_a_name_like_no_other_is_answered_with_those_that_there_are(mixed: Campaign) -> None:
    with pytest.raises(OptionError) as caught:
        mixed.select(strategy=["dp", "x"])
    assert str(caught.value) == "no run has strategy 'x'; the runs have 'dp', 'fsdp'"


@pytest.mark.parametrize(
    ("where", "answer"),
    [
        ("gpus_ >= 64", "there is no column gpus_; did you mean gpus?"),
        ("stratgy == 'dp'", "there is no column stratgy; did you mean strategy?"),
        ("strategy == dp", "there is no column dp; text stands in quotes: 'dp';"),
        ("`label_file system` == 'scratch'", "there is no column label_file system;"),
        ("run + " + "x" * 50 + " > 1", "there is no column " + "x" * 40 + "…;"),
    ],
)
def test_an_unknown_column_is_answered_with_the_nearest_and_all(mixed: Campaign, where: str, answer: str) -> None:
    with pytest.raises(OptionError) as caught:
        mixed.select(where=where)
    assert str(caught.value).startswith(f"where {where!r}: {answer}")
    assert str(caught.value).endswith(" the columns are " + ", ".join(mixed.runs.columns))
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "where",
    [
        "gpus >=",
        "",
        "gpus + 1",
        "True",
        "gpus = 3",
        "gpus > 'a'",
        "strategy.upper()",
        "import os",
        "(",
        "1 +\n",
        "@len",
        "gpus == 2; run == 1",
        "(" * 300 + "gpus > 1" + ")" * 300,
        "gpus > 1" + " and gpus > 1" * 3000,
        "strategy.str.contains('(')",
    ],
)
def test_what_is_no_condition_is_an_error_of_one_line(mixed: Campaign, where: str) -> None:
    with pytest.raises(OptionError) as caught:
        mixed.select(where=where)
    assert str(caught.value).startswith(f"where {where[:100]!r}"[:-1].replace("\n", "\\n"))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "where",
    [
        "gpus.to_csv('written')",
        "strategy.to_pickle('written').empty",
        "strategy.str.cat.to_csv('written')",
        "gpus.__class__",
        "().__class__.__bases__[0].__subclasses__()",
        "__import__('os').system('touch written')",
        "gpus.apply(print) > 1",
        "sin(gpus) > 0",
        "gpus > 9 ** 9 ** 9 ** 9",
        "gpus > (lambda: 1)()",
        "[n for n in gpus]",
        "gpus[0] > 1",
        "strategy.str.len(gpus.to_csv('written')) > 1",
    ],
)
def test_a_condition_calls_nothing_but_methods_of_texts(
    mixed: Campaign, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError) as caught:
        mixed.select(where=where)
    allowed = "use columns, values, comparisons, + - * / // %, and, or, not, and .str.contains"
    assert str(caught.value).startswith(f"where {where!r} has parts that no condition may have; {allowed}")
    assert not (tmp_path / "written").exists()


def test_live_and_simulated_runs_are_kept_apart(tmp_path: Path) -> None:
    campaign = campaign_of(tmp_path, a={}, b={"simulated": True}, c={"simulated": True}).separate()
    assert names(campaign) == ["a"]
    assert list(campaign.excluded["run_id"]) == ["b", "c"]
    reason = "simulated, and never mixed with live runs; --mix-simulated brings it in"
    assert list(campaign.excluded["reason"]) == [reason, reason]
    assert campaign.excluded["path"][0] == str(tmp_path / "b.jsonl")
    assert campaign.notes == ["2 simulated runs excluded beside live ones; --mix-simulated brings them in"]


@pytest.mark.parametrize("factor", ["scale", "time_scale"])
def test_scaled_and_unscaled_runs_are_kept_apart(tmp_path: Path, factor: str) -> None:
    campaign = campaign_of(tmp_path, a={}, b={factor: 0.5}).separate()
    assert names(campaign) == ["a"]
    assert set(campaign.ranks["run"]) == {0}
    reason = "scaled, and never mixed with unscaled runs; --mix-scaled brings it in"
    assert list(campaign.excluded["reason"]) == [reason]
    assert campaign.notes == ["1 scaled run excluded beside unscaled ones; --mix-scaled brings them in"]


def test_a_flag_mixes_them_in_and_a_note_says_so(tmp_path: Path) -> None:
    campaign = campaign_of(tmp_path, a={}, b={"scale": 0.5}, c={"simulated": True})
    mixed = campaign.separate(mix_scaled=True, mix_simulated=True)
    assert names(mixed) == ["a", "b", "c"]
    assert len(mixed.excluded) == 0
    assert mixed.notes == [
        "1 simulated run beside live ones, in rows of their own (--mix-simulated)",
        "1 scaled run beside unscaled ones, in rows of their own (--mix-scaled)",
    ]


def test_runs_of_one_kind_stay_and_a_note_says_what_they_are(tmp_path: Path) -> None:
    campaign = campaign_of(tmp_path, a={"scale": 0.5, "simulated": True}, b={"time_scale": 0.1, "simulated": True})
    assert names(campaign.separate()) == ["a", "b"]
    assert campaign.separate().notes == ["all runs are simulated", "all runs are scaled"]


def test_live_runs_stay_even_where_only_simulated_ones_are_unscaled(tmp_path: Path) -> None:
    campaign = campaign_of(tmp_path, a={"scale": 0.5}, b={"simulated": True}).separate()
    assert names(campaign) == ["a"]
    assert campaign.notes[-1] == "all runs are scaled"


def test_nothing_is_said_of_runs_that_are_live_and_unscaled(tmp_path: Path) -> None:
    campaign = campaign_of(tmp_path, a={})
    assert campaign.separate() is campaign


def test_a_campaign_with_a_run_may_be_used(tmp_path: Path) -> None:
    campaign = campaign_of(tmp_path, a={})
    assert campaign.require_runs() is campaign


def test_without_a_valid_run_the_error_says_how_many_files_there_were_and_why_none_is(tmp_path: Path) -> None:
    for name in "abcde":
        (tmp_path / f"{name}.jsonl").touch()
    with pytest.raises(RecordError) as caught:
        load([tmp_path]).require_runs()
    first, second, third = (
        f"{tmp_path}/{name}.jsonl: is empty; a run record begins with a header line" for name in "abc"
    )
    assert str(caught.value) == f"no valid run in 5 files; {first}; {second}; {third}; and 2 more"
    assert caught.value.exit_code == 2


def test_a_single_failed_run_is_an_error_with_its_reason(tmp_path: Path) -> None:
    lines = iterations([[1.0]], [[0.5]])
    path = write_lines(tmp_path / "a.jsonl", header("a", 1), *lines, end(1, "failed", "rank 0 died"))
    with pytest.raises(RecordError) as caught:
        load([path]).require_runs()
    assert str(caught.value) == f"no valid run in 1 file; {path}: failed: rank 0 died"


def test_an_empty_folder_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(RecordError) as caught:
        load([tmp_path]).require_runs()
    assert str(caught.value) == f"no valid run in 0 files; {tmp_path}: holds no record; records are files NAME.jsonl"


def test_a_selection_without_runs_is_an_error_that_tells_it_from_bad_files(mixed: Campaign) -> None:
    chosen = mixed.select(where="gpus > 1000")
    assert len(chosen.iterations) == len(chosen.ranks) == len(chosen.classes) == 0
    with pytest.raises(RecordError) as caught:
        chosen.require_runs()
    assert str(caught.value) == "no run is left: 3 valid in 3 files, and none of them was selected"


def test_a_selection_of_nothing_can_be_filtered_and_separated_again(mixed: Campaign) -> None:
    nothing = mixed.select(where="gpus > 1000")
    assert names(nothing.select(strategy=["dp"], where="gpus == 2").separate()) == []
    assert names(load([]).select(where="gpus == 2", system=["alps"]).separate()) == []


def test_ops_of_a_run_are_mapped_when_they_are_asked_for(tmp_path: Path) -> None:
    table = {"ranks": [0, 1], "ops": [{"op": "compute", "seconds": 0.5}, {"op": "allreduce", "scope": "world"}]}
    write_run(tmp_path, "a", RUN)
    path = write_run(tmp_path, "b", RUN, op_tables=[table])
    arrays = [np.arange(8.0).reshape(2, 2, 2) + index for index in range(2)]
    with path.with_suffix(".ops.npy").open("wb") as file:
        for array in arrays:
            np.save(file, array)
    campaign = load([tmp_path])
    assert list(campaign.runs["has_ops"]) == [False, True]
    found = campaign.ops(1)
    assert len(found) == 2
    assert all((one == other).all() for one, other in zip(found, arrays, strict=True))


def test_a_run_without_ops_says_how_to_record_them(tmp_path: Path) -> None:
    path = write_run(tmp_path, "a", RUN)
    with pytest.raises(RecordError) as caught:
        load([path]).ops(0)
    assert str(caught.value) == f"{path}: the run recorded no ops; record them with --record-ops"


def test_a_run_whose_ops_were_not_copied_along_says_which_file_is_missing(tmp_path: Path) -> None:
    path = write_run(tmp_path, "a", RUN, op_tables=[{"ranks": [0, 1], "ops": [{"op": "compute"}]}])
    campaign = load([tmp_path])
    assert campaign.runs["has_ops"][0]
    with pytest.raises(RecordError) as caught:
        campaign.ops(0)
    assert str(caught.value) == f"{path.with_suffix('.ops.npy')}: does not exist; it belongs beside a.jsonl"


@pytest.fixture
def damaged(tmp_path: Path) -> Campaign:
    """Killed runs a of DP and b of FSDP; excluded: c of DP and d of FSDP, whose last lines are no JSON, and e."""
    for name, strategy in (("a", "dp"), ("b", "fsdp"), ("c", "dp"), ("d", "fsdp")):
        lines = iterations([[1.0, 1.0]] * 2, [[0.1, 0.1]] * 2)
        write_lines(tmp_path / f"{name}.jsonl", header(name, 2, strategy=strategy), *lines)
        if name in "cd":
            with (tmp_path / f"{name}.jsonl").open("a") as file:
                file.write("no line of a record\n" * 2)
    (tmp_path / "e.jsonl").write_text("hello\n")
    return load([tmp_path])


UNKNOWN = "it is not known whether the filters choose them; without filters, reasons are listed"


@pytest.mark.parametrize(
    ("filters", "excluded", "noted", "unknown"),
    [
        ({}, ["c", "d", "e"], ["a", "b"], ""),
        ({"strategy": ["fsdp"]}, ["d"], ["b"], f"of 1 excluded file {UNKNOWN}"),
        ({"where": "strategy == 'dp' and gpus == 2"}, ["c"], ["a"], f"of 1 excluded file {UNKNOWN}"),
        ({"where": "measured > 0"}, [], ["a", "b"], f"of 3 excluded files {UNKNOWN}"),
        ({"where": "measured > 0", "strategy": ["dp"]}, [], ["a"], f"of 2 excluded files {UNKNOWN}"),
    ],
)
def test_filters_choose_notes_and_excluded_files_too(
    damaged: Campaign, filters: dict[str, Any], excluded: list[str], noted: list[str], unknown: str
) -> None:
    chosen = damaged.select(**filters)
    assert [Path(path).stem for path in chosen.excluded["path"]] == excluded
    assert [Path(note.partition(": ")[0]).stem for note in chosen.notes if "killed" in note] == noted
    assert [note for note in chosen.notes if "killed" not in note] == ([unknown] if unknown else [])
