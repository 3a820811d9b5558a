"""docs/records.md describes the format as it is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
from handmade import OP_TABLES, text

from dlbench.records import schema
from dlbench.records.validator import validate

PAGE = (Path(__file__).parents[2] / "docs" / "records.md").read_text(encoding="utf-8")
STRUCTS = [
    struct for struct in vars(schema).values() if isinstance(struct, type) and issubclass(struct, msgspec.Struct)
]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def test_the_example_is_a_valid_record(tmp_path: Path) -> None:
    path = tmp_path / "dp-2.jsonl"
    path.write_bytes(text(*map(json.loads, blocks("json"))))
    assert validate(path) == []


def test_the_messages_of_the_example_are_the_gradient_of_its_model() -> None:
    header = json.loads(blocks("json")[0])
    elements = sum(message["count"] * message["elements"] for message in header["messages"])
    assert elements == header["model"]["parameters"]
    assert sum(message["count"] for message in header["messages"]) == header["buckets"]


def test_the_python_lines_work_as_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    header, iteration, end = map(json.loads, blocks("json"))
    counted = iteration | {"warmup": False}
    Path("dp-2.jsonl").write_bytes(text(header | {"op_tables": OP_TABLES}, counted, end))
    np.save("dp-2.ops.npy", np.array([[[10.0, 10.3], [10.3, 10.5]], [[10.1, 10.75], [10.75, 11.0]]]))
    exec("".join(blocks("python")), {})
    assert capsys.readouterr().out == "dp [0.25]\n1.0\n"


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_every_key_is_described(struct: type[msgspec.Struct]) -> None:
    missing = [field.encode_name for field in msgspec.structs.fields(struct) if f"`{field.encode_name}`" not in PAGE]
    assert missing == []
