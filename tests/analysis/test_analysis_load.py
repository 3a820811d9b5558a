"""Loading: what the tables hold, what counts nowhere and why, and where records are searched."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from builder import UNIX_EPOCH, end, header, iterations, write_lines, write_run
from hypothesis import given
from hypothesis import strategies as st
from msgspec import convert
from msgspec.structs import replace

from dlbench.analysis.campaign import CLASSES, ITERATIONS, RANKS, RUNS, Campaign
from dlbench.analysis.extraction import extract
from dlbench.analysis.load import load
from dlbench.errors import RecordError
from dlbench.records.measures import Measures
from dlbench.records.reader import Record, read
from dlbench.records.schema import Header, Iteration

ALLREDUCE, ALLGATHER = "allreduce/world", "allgather/shard"


def measured_run(folder: Path, **changes: Any) -> Path:
    """A run of 2 ranks with a warm-up and one measured iteration, of which every number is different."""
    lines = iterations(
        [[3.0, 4.0], [1.0, 2.0]],
        [[1.5, 1.0], [0.5, 0.8]],
        warmups=1,
        start=10.0,
        gap=0.5,
        skew=[[0.0, 0.0], [0.0, 0.25]],
        compute=[[1.0, 2.0], [0.3, 0.9]],
        overrun=[[0.0, 0.0], [0.04, 0.1]],
        issue=[[0.0, 0.0], [0.06, 0.08]],
        communication={ALLREDUCE: [[1.0, 1.0], [0.3, 0.8]], ALLGATHER: [[0.5, 0.0], [0.2, 0.0]]},
    )
    return write_lines(folder / "run.jsonl", header("run", 2, **changes), *lines, end(2))


def only_exclusion(campaign: Campaign) -> str:
    """The reason of the one thing that was excluded."""
    assert len(campaign.excluded) == 1
    return str(campaign.excluded["reason"][0])


def run_ids(campaign: Campaign) -> list[str]:
    return list(campaign.runs["run_id"])


def row(frame: pd.DataFrame, **values: Any) -> dict[str, Any]:
    """The one row of a table that has these values."""
    for name, value in values.items():
        frame = frame[frame[name] == value]
    assert len(frame) == 1
    return dict(frame.iloc[0])


def test_a_row_of_iterations_holds_the_metrics_of_the_slowest_rank(tmp_path: Path) -> None:
    found = row(load([measured_run(tmp_path)]).iterations, run=0, iteration=1)
    # The warm-up took 4 s from global time 10, and 0.5 s later the next iteration began.
    assert found["start"] == UNIX_EPOCH + 14.5
    assert found["end"] == UNIX_EPOCH + 14.5 + 0.25 + 2.0
    assert found["seconds"] == 2.0
    assert found["throughput"] == 16 * 2 / 2.0
    assert found["communication"] == 0.5  # rank 0: 0.5 / 1; rank 1: 0.8 / 2 = 0.4
    assert found["hidden"] == pytest.approx(0.1)  # rank 0: 0.1 / 1; rank 1: 0.18 / 2 = 0.09
    assert (found["skew"], found["late"], found["warmup"]) == (0.25, 0, False)


def test_a_row_of_ranks_holds_what_the_record_says(tmp_path: Path) -> None:
    ranks = load([measured_run(tmp_path)]).ranks
    assert len(ranks) == 4
    found = row(ranks, iteration=1, rank=1)
    assert found["warmup"] == np.False_
    per_rank = {"skew": 0.25, "runtime": 2.0, "sync_time": 0.8, "compute": 0.9, "overrun": 0.1, "issue": 0.08}
    assert {name: found[name] for name in per_rank} == per_rank
    assert row(ranks, iteration=0, rank=0)["runtime"] == 3.0


def test_a_row_of_classes_sums_up_the_ranks(tmp_path: Path) -> None:
    classes = load([measured_run(tmp_path)]).classes
    assert len(classes) == 4
    found = row(classes, iteration=1, name=ALLREDUCE)
    # Shares: rank 0: 0.3 / 1, rank 1: 0.8 / 2.
    assert (found["seconds"], found["mean"], found["share"]) == pytest.approx((0.8, 0.55, 0.4))
    found = row(classes, iteration=1, name=ALLGATHER)
    assert (found["seconds"], found["mean"], found["share"]) == pytest.approx((0.2, 0.1, 0.2))


@pytest.mark.parametrize(
    ("option", "shown"),
    [
        ([{"rank": 3, "op": 0, "milliseconds": 2.5}, {"rank": 1, "op": 8, "milliseconds": 40.0}], "1:8:40 3:0:2.5"),
        ([{"rank": 1, "op": 8, "milliseconds": 1234567.25}], "1:8:1234567.25"),
        ([], ""),
        ("a delay of another age", "a delay of another age"),
    ],
)
def test_a_delay_is_written_as_the_option_takes_it(tmp_path: Path, option: object, shown: str) -> None:
    assert load([measured_run(tmp_path, options={"delay": option})]).runs.loc[0, "delay"] == shown


def test_delayed_runs_are_chosen_and_left_out_by_a_condition(tmp_path: Path) -> None:
    write_run(tmp_path, "plain", [[1.0, 1.0]])
    write_run(tmp_path, "late", [[1.0, 1.0]], options={"delay": [{"rank": 1, "op": 8, "milliseconds": 40.0}]})
    campaign = load([tmp_path])
    assert campaign.select(where="delay == '1:8:40'").runs["run_id"].to_list() == ["late"]
    assert campaign.select(where="delay == ''").runs["run_id"].to_list() == ["plain"]


def test_gpus_of_one_name_with_other_figures_are_told_apart(tmp_path: Path) -> None:
    gpu = {"name": "mine", "peak_flops": {"bf16": 9e14}, "memory_bandwidth": 3e12, "source": {"peak_flops": "monday"}}
    write_run(tmp_path, "a", [[1.0, 1.0]], gpu=gpu)
    write_run(tmp_path, "b", [[1.0, 1.0]], gpu={**gpu, "source": {"peak_flops": "tuesday"}})
    assert load([tmp_path]).runs["specs"].to_list() == ["", ""]
    write_run(tmp_path, "c", [[1.0, 1.0]], gpu={**gpu, "peak_flops": {"bf16": 8e14}})
    write_run(tmp_path, "d", [[1.0, 1.0]], gpu={**gpu, "name": "other"})
    runs = load([tmp_path]).runs.set_index("run_id")
    assert runs.loc["a", "specs"] == runs.loc["b", "specs"] != runs.loc["c", "specs"] != ""
    assert runs.loc["d", "specs"] == ""


def test_a_row_of_runs_holds_what_decides_the_configuration(tmp_path: Path) -> None:
    path = measured_run(
        tmp_path,
        strategy="dp_pp",
        degrees={"pp": 2},
        replicas=1,
        microbatches=4,
        scale=0.5,
        labels={"mode": "queue", "fabric": "ndr"},
        hosts=["a", "a"],
        ideal_seconds=0.75,
    )
    found = load([path]).runs.loc[0]
    expected = {
        "run_id": "run",
        "path": str(path),
        "model": "vit-h",
        "gpu": "b200",
        "gpus": 2,
        "pp": 2,
        "tp": 1,
        "sharding": 1,
        "backend": "mpi",
        "library": "MPICH 5.0.2",
        "sync": "barrier",
        "progress": "poll",
        "delay": "",
        "specs": "",
        "mode": "queue",
        "label_fabric": "ndr",
        "nodes": 1,
        "samples": 16,
        "scale": 0.5,
        "ideal_seconds": 0.75,
        "has_ops": False,
        "status": "completed",
        "warmups": 1,
        "measured": 1,
        "begin": UNIX_EPOCH + 10.0,
        "end": UNIX_EPOCH + 16.75,
    }
    assert {name: found[name] for name in expected} == expected
    assert "label_mode" not in found.index


def test_a_label_that_a_run_lacks_is_empty(tmp_path: Path) -> None:
    write_run(tmp_path, "a", [[1.0]], labels={"fabric": "ndr"})
    write_run(tmp_path, "b", [[1.0]])
    assert list(load([tmp_path]).runs["label_fabric"]) == ["ndr", ""]


def test_runs_of_different_sizes_stand_below_each_other(tmp_path: Path) -> None:
    write_run(tmp_path, "a", [[1.0], [2.0]])
    write_run(tmp_path, "b", [[3.0, 4.0, 5.0]])
    campaign = load([tmp_path])
    assert list(campaign.iterations["run"]) == [0, 0, 1]
    assert list(campaign.ranks["run"]) == [0, 0, 1, 1, 1]
    assert list(campaign.ranks["rank"]) == [0, 0, 0, 1, 2]
    assert list(campaign.ranks["runtime"]) == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert list(campaign.classes["run"]) == [0, 0, 1]


def test_a_run_without_communication_has_no_classes(tmp_path: Path) -> None:
    lines = iterations([[1.0]], [[0.0]])
    lines[0]["communication"] = {}
    write_lines(tmp_path / "a.jsonl", header("a", 1), *lines, end(1))
    campaign = load([tmp_path])
    assert (len(campaign.runs), len(campaign.classes)) == (1, 0)


def test_times_follow_the_clock_model_in_force(tmp_path: Path) -> None:
    head = header("a", 1)
    first, second = iterations([[1.0], [1.0]], [[0.0], [0.0]], start=0.0)
    clock = {"kind": "clock", "index": 1, "model": head["clock"] | {"unix_epoch": UNIX_EPOCH + 0.25}}
    write_lines(tmp_path / "a.jsonl", head, first, clock, second, end(2))
    assert list(load([tmp_path]).iterations["start"] - UNIX_EPOCH) == [0.0, 1.25]


def test_the_columns_and_their_types_are_the_same_with_and_without_runs(tmp_path: Path) -> None:
    some, none = load([measured_run(tmp_path)]), load([])
    for name, schema in (("runs", RUNS), ("iterations", ITERATIONS), ("ranks", RANKS), ("classes", CLASSES)):
        full, empty = getattr(some, name), getattr(none, name)
        assert list(full.columns) == list(schema)
        assert len(empty) == 0
        assert list(empty.dtypes) == list(full.dtypes)


seconds = st.floats(1e-6, 1e3)


@st.composite
def lines(draw: st.DrawFn, ranks: int) -> Iteration:
    per_rank = st.lists(seconds, min_size=ranks, max_size=ranks)
    parts = {name: draw(per_rank) for name in ("sync_time", "compute", "overrun", "issue", "rest")}
    runtime = [sum(of_rank) for of_rank in zip(*parts.values(), strict=True)]
    communication = {name: draw(per_rank) for name in (ALLREDUCE, ALLGATHER)}
    line = {"kind": "iteration", "index": 0, "warmup": False, "start": 0.0, "communication": communication}
    return convert(line | parts | {"skew": draw(per_rank), "runtime": runtime}, Iteration)


def numbered(found: list[Iteration]) -> list[Iteration]:
    return [replace(line, index=index) for index, line in enumerate(found)]


@st.composite
def records(draw: st.DrawFn) -> Record:
    ranks = draw(st.integers(1, 4))
    return Record(
        path=Path("a.jsonl"),
        header=convert(header("a", ranks), Header),
        iterations=numbered(draw(st.lists(lines(ranks), min_size=1, max_size=3))),
        clocks=[],
        end=None,
        truncated=False,
        notes=[],
    )


@given(records())
def test_the_measures_are_those_that_a_run_shows_of_itself(record: Record) -> None:
    run = extract(record)
    shown = [Measures(line, run.row["samples"]) for line in record.iterations]
    for name in ("seconds", "throughput", "communication", "hidden", "skew"):
        assert list(run.iterations[name]) == [getattr(measures, name) for measures in shown]
    assert list(run.classes["seconds"]) == [largest for measures in shown for largest in measures.classes.values()]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"concurrent_jobs": 3}, True),
        ({"concurrent_jobs": 1}, False),
        ({}, False),
        ({"experiment": "e"}, True),
        ({"experiment": "e", "concurrent_jobs": 1}, False),
        ({"experiment": "f"}, False),
        ({"experiment": "e", "system": "alps"}, False),
        ({"experiment": "e", "simulated": True}, False),
    ],
)
def test_a_run_is_concurrent_where_its_experiment_has_another_job(
    tmp_path: Path, changes: dict[str, Any], expected: bool
) -> None:
    write_run(tmp_path, "a", [[1.0]], job="job-a", **changes)
    write_run(tmp_path, "b", [[1.0]], job="job-b", experiment="e")
    runs = load([tmp_path]).runs
    assert row(runs, run_id="a")["concurrent"] == expected


def test_two_runs_of_one_job_are_not_concurrent(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_run(tmp_path, name, [[1.0]], job="job", experiment="e")
    assert not load([tmp_path]).runs["concurrent"].any()


def test_a_failed_job_was_running_too(tmp_path: Path) -> None:
    write_run(tmp_path, "a", [[1.0]], job="job-a", experiment="e")
    failed = header("b", 1, job="job-b", experiment="e")
    lines = iterations([[2.0], [1.0]], [[0.0], [0.0]], start=50.0, gap=1.0)
    write_lines(tmp_path / "b.jsonl", failed, *lines, end(2, "failed", "rank 0 died"))
    campaign = load([tmp_path])
    assert run_ids(campaign) == ["a"]
    assert campaign.runs["concurrent"][0]
    window = row(campaign.windows, job="job-b")
    assert (window["begin"] - UNIX_EPOCH, window["end"] - UNIX_EPOCH) == (50.0, 54.0)
    assert (window["experiment"], window["run_id"]) == ("e", "b")


def test_impossible_times_give_no_window(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", header("a", 2, experiment="e", job="j"), LINE | {"start": 1e300}, end(1))
    write_run(tmp_path, "b", [[1.0]], experiment="e", job="k")
    campaign = load([tmp_path])
    assert list(campaign.windows["run_id"]) == ["b"]
    # The job was there, whenever that was.
    assert list(campaign.runs["concurrent"]) == [True]


def test_runs_without_experiment_have_no_window(tmp_path: Path) -> None:
    write_run(tmp_path, "a", [[1.0]])
    assert len(load([tmp_path]).windows) == 0


HEAD = header("bad", 2)
LINE = iterations([[1.0, 1.0]], [[0.5, 0.5]])[0]


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ([{"epoch": 1, "loss": 0.5}], "is no run record; one begins with a header line"),
        ([HEAD | {"schema_version": 2}], "has schema version 2; this dlbench reads version 1"),
        ([HEAD], "no measured iteration; 0 of warm-up"),
        ([HEAD, LINE | {"warmup": True}, end(1)], "no measured iteration; 1 of warm-up"),
        ([HEAD, LINE, end(1, "failed", "rank 1 on node0: out of memory")], "failed: rank 1 on node0: out of memory"),
        (
            [HEAD, LINE | {"runtime": [1.0, 0.0]}, end(1)],
            "iteration 0: rank 1 has a runtime of 0 s; it must be 1e-09 s or longer",
        ),
        ([HEAD, LINE | {"runtime": [1e308, 1.0]}, end(1)], "iteration 0: runtime holds 1e+308 s; no run lasts 1e+09 s"),
        ([HEAD, LINE | {"overrun": [0.0, 2e9]}, end(1)], "iteration 0: overrun holds 2e+09 s; no run lasts 1e+09 s"),
        (
            [HEAD | {"ideal_seconds": 1e308}, LINE, end(1)],
            "ideal_seconds = 1e+308 is impossible; no run lasts 1e+09 s",
        ),
        (
            [HEAD, LINE | {"start": 1e300}, end(1)],
            "the Unix times of its iterations are impossible; see unix_epoch of its clock, and start",
        ),
        (
            [HEAD, LINE | {"compute": [0.5, 0.75]}, end(1)],
            "iteration 0: rank 1 has sync_time + compute + overrun + issue = 1.25 s in a runtime of 1 s",
        ),
        ([HEAD, LINE, LINE, end(2)], "iteration 0 comes after iteration 0; each must be there once"),
        (
            [HEAD, LINE | {"index": 4}, LINE | {"index": 2}, end(2)],
            "iteration 2 comes after iteration 4; each must be there once",
        ),
        ([HEAD, LINE | {"issue": [1.0]}, end(1)], "iteration 0: issue has 1 entries for 2 ranks"),
        ([HEAD, LINE | {"runtime": []}, end(1)], "iteration 0: runtime has 0 entries for 2 ranks"),
        (
            [HEAD, LINE | {"communication": {ALLREDUCE: [1.0, 1.0, 1.0]}}, end(1)],
            "iteration 0: allreduce/world has 3 entries for 2 ranks",
        ),
        (
            [HEAD | {"seed": 2**63}, LINE, end(1)],
            f"seed = {2**63} is too large; the tables hold integers of 64 bits",
        ),
        (
            [HEAD | {"local_batch": 2**62}, LINE, end(1)],
            f"samples = {2**63} is too large; the tables hold integers of 64 bits",
        ),
        (
            [HEAD, LINE | {"index": 2**31}, end(1)],
            f"iteration {2**31}: the index is too large; the tables hold integers of 32 bits",
        ),
    ],
)
def test_what_cannot_count_is_listed_with_the_reason_and_the_rest_loads(
    tmp_path: Path, document: list[dict[str, Any]], reason: str
) -> None:
    good = write_run(tmp_path, "good", [[1.0]])
    bad = write_lines(tmp_path / "bad.jsonl", *document)
    campaign = load([tmp_path])
    assert run_ids(campaign) == ["good"]
    assert campaign.paths == (good,)
    assert only_exclusion(campaign) == reason
    assert campaign.excluded["path"][0] == str(bad)
    assert campaign.files == 2


def test_the_run_id_of_an_excluded_run_is_listed_where_it_is_known(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", header("known", 1))
    write_lines(tmp_path / "b.jsonl", {"kind": "other"})
    assert list(load([tmp_path]).excluded["run_id"]) == ["known", ""]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "is empty; a run record begins with a header line"),
        (b'{"kind":"header","schema_ver', "line 1: the header is cut: the run was killed before its first iteration"),
        (b"\x93NUMPY\x01\x00", "is no run record; one begins with a header line"),
    ],
)
def test_a_file_that_is_no_record_is_listed(tmp_path: Path, text: bytes, reason: str) -> None:
    (tmp_path / "bad.jsonl").write_bytes(text)
    assert only_exclusion(load([tmp_path])) == reason


def test_a_damaged_line_is_listed_with_its_number(tmp_path: Path) -> None:
    path = measured_run(tmp_path)
    text = path.read_text()
    path.write_text(text.replace('"runtime": [3.0', '"runtime": [-3.0'))
    assert only_exclusion(load([path])).startswith("line 2: Expected `float` >= 0.0")


def test_a_killed_run_counts_and_a_note_says_so(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", header("a", 1), *iterations([[1.0], [2.0]], [[0.0], [0.0]]))
    campaign = load([path])
    assert campaign.runs["status"][0] == "killed"
    assert campaign.runs["measured"][0] == 2
    assert campaign.notes == [f"{path}: no end line: the run was killed after 2 iterations"]


def test_a_cut_last_line_is_dropped_and_a_note_says_so(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", header("a", 1), *iterations([[1.0], [2.0]], [[0.0], [0.0]]))
    path.write_bytes(path.read_bytes()[:-20])
    campaign = load([path])
    assert list(campaign.iterations["seconds"]) == [1.0]
    (note,) = campaign.notes
    assert note.startswith(f"{path}: line 3, cut after ")


def test_a_terminated_run_counts(tmp_path: Path) -> None:
    lines = iterations([[1.0]], [[0.0]])
    write_lines(tmp_path / "a.jsonl", header("a", 1), *lines, end(1, "terminated", "SIGTERM", signal="SIGTERM"))
    campaign = load([tmp_path])
    assert (campaign.runs["status"][0], campaign.runs["reason"][0], campaign.notes) == ("terminated", "SIGTERM", [])


def test_a_run_that_was_copied_counts_once(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a", "same", [[1.0], [2.0]])
    write_run(tmp_path / "b", "same", [[1.0], [2.0]])
    campaign = load([tmp_path])
    assert campaign.paths == (first,)
    assert list(campaign.iterations["seconds"]) == [1.0, 2.0]
    assert only_exclusion(campaign) == f"the same run as {first}, which has 2 iterations; a run counts once"
    assert campaign.excluded["path"][0] == str(tmp_path / "b" / "same.jsonl")


@pytest.mark.parametrize("longer", ["a", "b"])
def test_of_two_copies_of_a_run_the_longer_one_counts(tmp_path: Path, longer: str) -> None:
    for place in ("a", "b"):
        write_run(tmp_path / place, "same", [[1.0], [2.0]] if place == longer else [[1.0]], experiment="e", job="j")
    campaign = load([tmp_path])
    assert campaign.paths == (tmp_path / longer / "same.jsonl",)
    assert list(campaign.iterations["seconds"]) == [1.0, 2.0]
    assert list(campaign.windows["end"] - UNIX_EPOCH) == [103.0]


def test_a_file_counts_once_however_many_names_lead_to_it(tmp_path: Path) -> None:
    path = write_run(tmp_path, "a", [[1.0]])
    (tmp_path / "link.jsonl").symlink_to(path)
    campaign = load([path, tmp_path, path, tmp_path])
    assert (campaign.files, len(campaign.runs), len(campaign.excluded)) == (1, 1, 0)


def test_folders_are_searched_to_the_bottom_in_the_order_of_names(tmp_path: Path) -> None:
    for place, name in (("z", "first"), ("b/deep/deeper", "third"), ("a", "second")):
        write_run(tmp_path / place, name, [[1.0]])
    (tmp_path / "notes.txt").write_text("no record")
    assert run_ids(load([tmp_path / "z", tmp_path])) == ["first", "second", "third"]


def test_a_file_that_is_named_needs_no_ending(tmp_path: Path) -> None:
    path = write_run(tmp_path, "a", [[1.0]]).rename(tmp_path / "a.json")
    assert run_ids(load([path])) == ["a"]


def test_links_to_folders_are_followed_and_a_loop_ends(tmp_path: Path) -> None:
    write_run(tmp_path / "elsewhere", "far", [[1.0]])
    results = tmp_path / "results"
    write_run(results, "near", [[1.0]])
    (results / "link").symlink_to(tmp_path / "elsewhere")
    (results / "loop").symlink_to(results)
    campaign = load([results])
    assert sorted(run_ids(campaign)) == ["far", "near"]
    assert len(campaign.excluded) == 0


def test_links_that_lead_nowhere_are_listed(tmp_path: Path) -> None:
    (tmp_path / "gone.jsonl").symlink_to(tmp_path / "nothing")
    (tmp_path / "round.jsonl").symlink_to(tmp_path / "round.jsonl")
    reasons = list(load([tmp_path]).excluded["reason"])
    assert reasons == ["does not exist", "cannot be read: Too many levels of symbolic links"]


def test_a_pipe_is_listed_and_nobody_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert only_exclusion(load([tmp_path])) == "is a pipe or a device; a record is a file"


def test_a_name_that_is_not_utf8_is_shown_with_escapes_and_read(tmp_path: Path) -> None:
    path = write_run(tmp_path, "a", [[1.0]])
    named = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jsonl"))
    path.rename(named)
    (tmp_path / "line\nfeed.jsonl").write_text("{}\n")
    campaign = load([tmp_path])
    assert campaign.paths == (named,)
    assert campaign.runs["path"][0] == f"{tmp_path}/\\udcff.jsonl"
    assert campaign.excluded["path"][0] == f"{tmp_path}/line\\nfeed.jsonl"


def test_texts_of_a_record_stay_on_one_line(tmp_path: Path) -> None:
    lines = iterations([[1.0]], [[0.0]])
    head = header("a", 1, system="two\nlines", labels={"key\t": "value\x1b[31m"}, experiment="e\n", job="j")
    write_lines(tmp_path / "a.jsonl", head, *lines, end(1, reason="first\nsecond"))
    write_run(tmp_path, "b", [[1.0]], experiment="e\n", job="k", system="two\nlines")
    campaign = load([tmp_path])
    found = campaign.runs.loc[0]
    assert (found["system"], found["reason"]) == ("two\\nlines", "first\\nsecond")
    assert found["label_key\\t"] == "value\\x1b[31m"
    assert campaign.runs["concurrent"].all()
    assert set(campaign.windows["experiment"]) == {"e\\n"}


def test_a_path_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    missing = tmp_path / "resluts"
    with pytest.raises(RecordError) as caught:
        load([tmp_path, missing])
    assert str(caught.value) == f"{missing} does not exist; name a record NAME.jsonl or a folder of records"
    assert caught.value.exit_code == 2


def test_a_path_below_a_file_does_not_exist(tmp_path: Path) -> None:
    path = write_run(tmp_path, "a", [[1.0]]) / "b"
    with pytest.raises(RecordError, match="does not exist; name a record"):
        load([path])


def test_a_path_that_cannot_be_looked_at_is_an_error(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(RecordError) as caught:
        load([loop])
    reason = "cannot be read: Too many levels of symbolic links"
    assert str(caught.value) == f"{loop} {reason}; name a record NAME.jsonl or a folder of records"


def test_a_folder_without_records_is_listed(tmp_path: Path) -> None:
    write_run(tmp_path / "full", "a", [[1.0]])
    (tmp_path / "empty" / "deep").mkdir(parents=True)
    campaign = load([tmp_path / "full", tmp_path / "empty"])
    assert only_exclusion(campaign) == "holds no record; records are files NAME.jsonl"
    assert campaign.excluded["path"][0] == str(tmp_path / "empty")


def test_a_folder_that_may_not_be_searched_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "open", "a", [[1.0]])
    write_run(tmp_path / "shut", "b", [[1.0]])
    scandir = os.scandir

    def refuse(place: str) -> Iterator[os.DirEntry[str]]:
        if Path(place).name == "shut":
            raise PermissionError(errno.EACCES, "Permission denied", place)
        return scandir(place)

    monkeypatch.setattr(os, "scandir", refuse)
    campaign = load([tmp_path])
    assert run_ids(campaign) == ["a"]
    assert only_exclusion(campaign) == "cannot be searched: Permission denied"
    assert campaign.excluded["path"][0] == str(tmp_path / "shut")


def test_progress_counts_all_files_read_or_not(tmp_path: Path) -> None:
    write_run(tmp_path, "a", [[1.0]])
    write_run(tmp_path, "b", [[1.0]])
    (tmp_path / "c.jsonl").touch()
    calls: list[tuple[int, int]] = []
    load([tmp_path], progress=lambda done, total: calls.append((done, total)))
    assert calls == [(1, 3), (2, 3), (3, 3)]


def test_the_order_of_ranks_changes_no_iteration(tmp_path: Path) -> None:
    for place, order in (("a", [0, 1, 2]), ("b", [2, 0, 1])):
        runtime, sync = [1.0, 2.0, 4.0], [0.75, 1.0, 0.5]
        write_run(tmp_path / place, "run", [[runtime[i] for i in order]], [[sync[i] for i in order]])
    first, second = (load([tmp_path / place]) for place in ("a", "b"))
    pd.testing.assert_frame_equal(first.iterations, second.iterations)
    pd.testing.assert_frame_equal(first.classes, second.classes)


def test_a_record_is_read_as_the_reader_reads_it(tmp_path: Path) -> None:
    path = measured_run(tmp_path)
    record = read(path)
    ranks = load([path]).ranks
    assert list(ranks["sync_time"]) == [time for line in record.iterations for time in line.sync_time]
