"""Campaigns on disk: what is kept, who may write, and what is refused."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import msgspec
import pytest
from campaigns import REQUEST, make_campaign, make_plan
from full_disk import limited_files

from dlbench.allocators.experiment import read_plan
from dlbench.errors import OptionError, UserError
from dlbench.slurm import campaign as module
from dlbench.slurm.campaign import find_campaign, locked, open_campaign, submitter


def test_a_campaign_is_found_again_as_it_was_started(tmp_path: Path) -> None:
    started = make_campaign(tmp_path / "c")
    assert find_campaign(tmp_path / "c", REQUEST) == started == open_campaign(tmp_path / "c")


def test_a_new_folder_and_an_empty_one_hold_none(tmp_path: Path) -> None:
    assert find_campaign(tmp_path / "new", REQUEST) is None
    assert find_campaign(tmp_path, REQUEST) is None


def test_one_that_was_killed_while_it_was_started_is_started_anew(tmp_path: Path) -> None:
    make_campaign(tmp_path)
    (tmp_path / "campaign.yaml").unlink()
    assert find_campaign(tmp_path, REQUEST) is None


def test_one_that_the_disk_had_no_space_for_is_started_anew(tmp_path: Path) -> None:
    size = len(make_campaign(tmp_path / "whole").plan_file.read_bytes())
    with limited_files(size - 1), pytest.raises(OptionError, match=r"plan.yaml cannot be written: File too large"):
        make_campaign(tmp_path / "c")
    (tmp_path / "c" / ".123.unfinished").touch()  # of one that was killed
    assert find_campaign(tmp_path / "c", REQUEST) is None
    assert find_campaign(tmp_path / "c", REQUEST) != make_campaign(tmp_path / "c")


def test_its_request_is_whole_or_not_there(tmp_path: Path) -> None:
    with limited_files(10), pytest.raises(OptionError, match=r"campaign.yaml cannot be written: File too large"):
        module._write_request(tmp_path / "campaign.yaml", REQUEST)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(OptionError, match="has thesis.tex and no campaign.yaml; use a new or an empty folder"):
        find_campaign(tmp_path, REQUEST)


def test_another_campaign_in_the_folder_is_refused_with_what_differs(tmp_path: Path) -> None:
    make_campaign(tmp_path, options={"scale": 0.1})
    with pytest.raises(OptionError) as error:
        find_campaign(tmp_path, msgspec.structs.replace(REQUEST, seed=2, nodes="n[1-4]"))
    assert str(error.value) == (
        f'{tmp_path} holds another campaign: seed 1 there, 2 here; nodes default there, "n[1-4]" here; '
        "scale 0.1 there, default here; use another folder with -o, or the same options"
    )


def test_a_folder_without_a_campaign_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no campaign, it has no campaign.yaml; name the folder of 'dlbench submit'"):
        open_campaign(tmp_path)


def test_the_pool_gets_a_plan_of_its_one_experiment(tmp_path: Path) -> None:
    campaign = make_campaign(tmp_path)
    folder = campaign.write_experiment(campaign.plan.experiments[1])
    assert folder == tmp_path / "alone-000"
    plan = read_plan(folder / "experiment.yaml")
    assert plan == msgspec.structs.replace(campaign.plan, experiments=campaign.plan.experiments[1:])


def test_a_plan_that_is_too_large_for_yaml_is_kept_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGEST_YAML", 100)
    make_campaign(tmp_path)
    assert [name for name in ("plan.yaml", "plan.json") if (tmp_path / name).exists()] == ["plan.json"]
    assert open_campaign(tmp_path).plan == make_plan()


def test_the_last_event_of_an_experiment_counts(tmp_path: Path) -> None:
    campaign = make_campaign(tmp_path)
    campaign.note("submitted", "mix-000", "7")
    campaign.note("submitted", "alone-000", "8")
    campaign.note("cancelled", "mix-000", "7")
    last = campaign.submissions()
    assert {name: (event.event, event.job_id) for name, event in last.items()} == {
        "mix-000": ("cancelled", "7"),
        "alone-000": ("submitted", "8"),
    }
    assert len((tmp_path / "submissions.log").read_text().splitlines()) == 3


def test_a_submission_that_was_not_written_to_its_end_is_none(tmp_path: Path) -> None:
    campaign = make_campaign(tmp_path)
    campaign.note("submitted", "mix-000", "7")
    with (tmp_path / "submissions.log").open("a") as file:
        file.write('{"time":1.0,"event":"subm')
    assert set(campaign.submissions()) == {"mix-000"}
    campaign.note("submitted", "alone-000", "8")
    assert {name: found.job_id for name, found in campaign.submissions().items()} == {"mix-000": "7", "alone-000": "8"}


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    campaign = make_campaign(tmp_path)
    (tmp_path / "submissions.log").write_text("{}\n")
    with pytest.raises(UserError, match=r"submissions.log: line 1: no submission: "):
        campaign.submissions()


def test_two_cannot_submit_at_once(tmp_path: Path) -> None:
    with locked(tmp_path):
        assert submitter(tmp_path) == (os.getpid(), os.uname().nodename)
        with (
            pytest.raises(UserError, match=rf"another 'dlbench submit' \(process {os.getpid()} on .*\) is at work"),
            locked(tmp_path),
        ):
            pytest.fail("both have the lock")
    assert submitter(tmp_path) is None
    with locked(tmp_path):  # it was given back
        pass


def test_a_look_at_the_lock_does_not_stop_a_submission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / ".lock").open("w") as looking:
        fcntl.flock(looking, fcntl.LOCK_EX)
        monkeypatch.setattr(module.time, "sleep", lambda _: looking.close())
        with locked(tmp_path):
            pass
