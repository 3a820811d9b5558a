"""The published JSON Schema says what the structs say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from handmade import CLOCK, COUNTED, END, HEADER, RESYNCHRONISED, WARMUP, WHOLE, WITH_OPS

from dlbench.records.publish import PUBLISHED, text
from dlbench.records.schema import Clock, ClockModel, Header, Iteration, ops_path, ops_shape
from dlbench.records.writer import RecordWriter

SCHEMA = json.loads(PUBLISHED.read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def test_the_published_schema_is_that_of_the_structs() -> None:
    assert PUBLISHED.read_text(encoding="utf-8") == text(), "run python -m dlbench.records.publish"


def test_the_published_schema_is_a_json_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_every_key_is_described() -> None:
    bare = [
        f"{struct}.{key}"
        for struct, definition in SCHEMA["$defs"].items()
        for key, property_ in definition["properties"].items()
        if key != "kind" and not property_.get("description")
    ]
    assert bare == []


@pytest.mark.parametrize("line", [*WHOLE, WITH_OPS, RESYNCHRONISED, END | {"clock": CLOCK}])
def test_lines_written_by_hand_satisfy_it(line: dict[str, Any]) -> None:
    VALIDATOR.validate(line)


def test_lines_of_the_writer_satisfy_it(tmp_path: Path) -> None:
    with RecordWriter(tmp_path, "run", msgspec.convert(WITH_OPS, Header)) as writer:
        writer.iteration(msgspec.convert(WARMUP, Iteration))
        writer.clock(msgspec.convert(RESYNCHRONISED, Clock))
    for line in writer.path.read_text(encoding="utf-8").splitlines():
        VALIDATOR.validate(json.loads(line))


@pytest.mark.parametrize(
    "line",
    [
        HEADER | {"schema_version": 2},
        HEADER | {"world_size": 0},
        COUNTED | {"runtime": [0.5, None]},
        COUNTED | {"runtime": [-0.5, 0.5]},
        RESYNCHRONISED | {"model": CLOCK | {"drift_uncertainty": [0.0, -1e-9]}},
        {"kind": "clock", "index": 1},
        END | {"status": "happy"},
        {"kind": "remark"},
        {key: value for key, value in END.items() if key != "reason"},
    ],
)
def test_wrong_lines_do_not(line: dict[str, Any]) -> None:
    assert not VALIDATOR.is_valid(line)


def test_keys_of_a_later_release_satisfy_it() -> None:
    VALIDATOR.validate(COUNTED | {"watts": [300.0, 310.0]})


def test_ops_lie_beside_the_record() -> None:
    assert ops_path(Path("results/dp-8.a.jsonl")) == Path("results/dp-8.a.ops.npy")


def test_ops_have_room_for_the_longest_program() -> None:
    assert ops_shape(msgspec.convert(WITH_OPS, Header)) == (2, 2, 2)


def test_the_error_of_a_time_grows_with_the_distance_from_the_reference() -> None:
    model = ClockModel(
        reference=100.0,
        offset=[0.0, 5.0, 0.0],
        drift=[0.0, 0.0, 1.0],
        uncertainty=[0.0, 1e-6, 1e-6],
        drift_uncertainty=[0.0, 1e-7, 1e-7],
        unix_epoch=0.0,
    )
    # At global time 160 rank 1 reads 155; the clock of rank 2 is half as fast and reads 130.
    assert model.error(160.0) == pytest.approx([0.0, 6.5e-6, 4e-6])
    assert model.error(50.0) == pytest.approx([0.0, 6.5e-6, 3.5e-6])
