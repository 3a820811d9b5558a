"""The JSON Schema of the run record, generated from the structs: `python -m dlbench.records.publish` rewrites it.

The schema (2020-12) describes one line of a record. Descriptions are the docstrings of the structs' fields.
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import msgspec

from dlbench.records import schema

PUBLISHED = Path(__file__).parent / "schema" / f"run-record-{schema.SCHEMA_VERSION}.schema.json"


def json_schema() -> dict[str, Any]:
    """JSON Schema of a line."""
    (line,), definitions = msgspec.json.schema_components([schema.Line], ref_template="#/$defs/{name}")
    for struct, descriptions in _field_descriptions().items():
        for name, text in descriptions.items():
            definitions[struct]["properties"][name]["description"] = text
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"dlbench run record, version {schema.SCHEMA_VERSION}: a line",
        "description": "A record is JSON Lines: one header, one line per iteration or new clock model, one end line.",
        "oneOf": line["anyOf"],
        "$defs": definitions,
    }


def text() -> str:
    """The published text of the schema."""
    return msgspec.json.format(msgspec.json.encode(json_schema()), indent=2).decode() + "\n"


def _field_descriptions() -> dict[str, dict[str, str]]:
    """Docstring of each field of each struct: Python keeps it in the source only."""
    module = ast.parse(inspect.getsource(schema))
    return {
        struct.name: {
            field.target.id: inspect.cleandoc(docstring)
            for field, following in zip(struct.body, struct.body[1:], strict=False)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            if (docstring := _docstring(following)) is not None
        }
        for struct in module.body
        if isinstance(struct, ast.ClassDef)
    }


def _docstring(statement: ast.stmt) -> str | None:
    match statement:
        case ast.Expr(value=ast.Constant(value=str(docstring))):
            return docstring
    return None


if __name__ == "__main__":
    PUBLISHED.write_text(text(), encoding="utf-8")
