"""docs/experiments.md and docs/campaigns.md: what they say of the pool's log, and of a system's scheduler."""

from __future__ import annotations

import re
import typing
from pathlib import Path

import msgspec

from dlbench.slurm import pool_log
from dlbench.specs.system import Scheduler

DOCS = Path(__file__).parents[2] / "docs"


def rows(page: str, header: str) -> dict[str, str]:
    """First column without its quotes, and the rest of the row, of the table with this first heading."""
    text = (DOCS / page).read_text(encoding="utf-8")
    table = text[text.index(f"\n| {header} |") :].split("\n\n")[0].splitlines()[3:]
    pairs = (line.strip("| ").split(" | ", maxsplit=1) for line in table)
    return {name: rest for name, rest in pairs}


def test_every_event_of_the_log_and_every_key_of_it_is_explained() -> None:
    events = {event.__struct_config__.tag: event for event in typing.get_args(pool_log.Event)}
    explained = rows("experiments.md", "event")
    assert sorted(explained) == sorted(f"`{name}`" for name in events)
    for name, event in events.items():
        named = set(re.findall(r"`([a-z_]+)`", explained[f"`{name}`"]))
        inner = {"pool_started": pool_log.JobFacts, "pool_ended": pool_log.JobTally}.get(str(name))
        fields = {*event.__struct_fields__, *(inner.__struct_fields__ if inner else ())} - {"time"}
        assert named == fields, name


def test_every_status_of_a_run_is_explained() -> None:
    page = (DOCS / "experiments.md").read_text(encoding="utf-8")
    (sentence,) = re.findall(r"^`status` is .*?\. ", page, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`([a-z]+)`", sentence)) - {"status"} == set(typing.get_args(pool_log.Status))


def test_every_key_of_a_scheduler_is_explained() -> None:
    explained = {key for names in rows("campaigns.md", "key") for key in re.findall("`([a-z_]+)`", names)}
    assert explained == {field.name for field in msgspec.structs.fields(Scheduler)}
