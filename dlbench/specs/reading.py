"""From a YAML file to a typed value, with one-line errors that name the file, the place and what would be right.

Imported where a file is read and not before: rank processes that receive their specs by broadcast never load YAML.
"""

from __future__ import annotations

import difflib
import json
import math
import re
import stat
import types
from collections.abc import Iterable
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
import yaml

from dlbench.errors import SpecError

T = TypeVar("T")

LARGEST_FILE = 100_000
"""Bytes; a spec or a configuration has a few thousand. YAML, and options that are repeated, take time."""
_SHOWN_CHARACTERS = 60
_MOST_DIGITS = 40
"""Characters of an integer below 2^63: 19 digits, the underscores between them, and the sign."""


def read(path: Path | Traversable, kind: type[T]) -> T:
    """Typed content of the YAML file at `path`. Raises `SpecError`."""
    return convert(read_yaml(path), kind, str(path))


def read_yaml(path: Path | Traversable, largest: int = LARGEST_FILE) -> Any:
    """Plain content of the YAML file at `path`, of at most so many bytes.

    Raises `SpecError` where it cannot be read, is no strict YAML, empty or larger.

    Strict: no key twice, no tags, no aliases, and scalars as in YAML 1.2: `1e12` is a number, `no` and `1:30` are text.
    """
    try:
        content = yaml.load(_read_bytes(path, largest).decode("utf-8-sig"), _StrictLoader)
    except OSError as error:
        raise SpecError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: not UTF-8 text (byte {error.start}); save the file as UTF-8") from None
    except yaml.YAMLError as error:
        raise SpecError(f"{path}: {_yaml_fault(error)}") from None
    except RecursionError:
        raise SpecError(f"{path}: nested too deeply; expected a plain mapping") from None
    if content is None:
        raise SpecError(f"{path}: is empty; expected a mapping")
    return content


def _read_bytes(path: Path | Traversable, largest: int) -> bytes:
    """Content of a file, which neither a pipe nor an endless device can be: they would hold up whoever reads."""
    try:
        if isinstance(path, Path) and not (stat.S_ISREG(mode := path.stat().st_mode) or stat.S_ISDIR(mode)):
            raise SpecError(f"{path}: is a pipe or a device; expected a YAML file")
        with path.open("rb") as file:
            content = file.read(largest + 1)
    except ValueError as error:  # a zero byte in the path
        raise SpecError(f"{path}: {error}") from None
    if len(content) > largest:
        raise SpecError(f"{path}: is larger than {largest // 1000} kB; expected a spec or a configuration")
    return content


def convert(value: Any, kind: type[T], origin: str) -> T:
    """`value` as a `kind`. Raises `SpecError` that begins with `origin`, usually the file's path."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise SpecError(f"{origin}: {_fault(value, kind, '') or error}") from None
    except SpecError as error:
        raise SpecError(f"{origin}: {error}") from None


def unknown(what: str, name: str, valid: Iterable[str]) -> str:
    """Message for an unknown name: the closest valid one, then all of them."""
    names = list(valid)
    close = difflib.get_close_matches(name.lower(), names, n=1)
    suggestion = f"did you mean {close[0]!r}? " if close else ""
    return f"unknown {what} {name!r}; {suggestion}valid: {', '.join(names)}"


class _StrictLoader(yaml.SafeLoader):
    """YAML 1.2's core schema and nothing else, so that a scalar means what it looks like."""

    yaml_implicit_resolvers: dict[str, Any] = {}
    yaml_constructors: ClassVar[dict[str | None, Any]] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            # Aliases of aliases make gigabytes of a few lines, and one within its own value an endless nest.
            _refuse(f"expected a value, found the alias *{event.anchor}; write the value out", event)
        if tag := getattr(event, "tag", None):
            _refuse(f"expected a value without a tag, found {tag}", event)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:str":
                _refuse("expected a text key", key)
            if key.value in seen:
                _refuse(f"key {key.value!r} appears twice", key)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _refuse(problem: str, part: Any) -> NoReturn:
    """Raise PyYAML's error at the place of a node or an event."""
    raise yaml.constructor.ConstructorError(None, None, problem, part.start_mark)


def _integer(loader: _StrictLoader, node: yaml.ScalarNode) -> int:
    # Digits first: Python converts no more than some thousands of them.
    if len(node.value) > _MOST_DIGITS or abs(number := int(node.value)) >= 2**63:
        _refuse("expected an integer of fewer digits", node)
    return number


def _number(loader: _StrictLoader, node: yaml.ScalarNode) -> float:
    number = float(node.value)
    if not math.isfinite(number):
        _refuse(f"expected a finite number, found {node.value}", node)
    return number


def _boolean(loader: _StrictLoader, node: yaml.ScalarNode) -> bool:
    return bool(node.value.lower() == "true")


def _text(loader: _StrictLoader, node: yaml.ScalarNode) -> str:
    text = str(node.value)
    if re.search("[\ud800-\udfff]", text):
        _refuse("expected Unicode text, found half of a surrogate pair", node)
    return text


def _teach_core_schema() -> None:
    scalars = (
        ("null", r"(~|null|Null|NULL|)", "~nN", yaml.SafeLoader.construct_yaml_null),
        ("bool", r"(true|True|TRUE|false|False|FALSE)", "tTfF", _boolean),
        ("int", r"[-+]?(0|[1-9][0-9]*(_[0-9]+)*)", "-+0123456789", _integer),
        ("float", r"[-+]?(\.[0-9]+|[0-9]+(_[0-9]+)*(\.[0-9]*|(?=[eE])))([eE][-+]?[0-9]+)?", "-+.0123456789", _number),
    )
    for name, pattern, first, constructor in scalars:
        tag = f"tag:yaml.org,2002:{name}"
        _StrictLoader.add_implicit_resolver(tag, re.compile(f"{pattern}$"), [*first, *[""] * (name == "null")])
        _StrictLoader.add_constructor(tag, constructor)
    _StrictLoader.add_constructor("tag:yaml.org,2002:str", _text)
    for name in ("seq", "map"):
        tag = f"tag:yaml.org,2002:{name}"
        _StrictLoader.add_constructor(tag, yaml.SafeLoader.yaml_constructors[tag])


_teach_core_schema()


def _yaml_fault(error: yaml.YAMLError) -> str:
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return f"not valid YAML: {' '.join(str(error).split())}"
    mark = error.problem_mark
    context = "" if isinstance(error, yaml.constructor.ConstructorError) else "not valid YAML: "
    return f"line {mark.line + 1}, column {mark.column + 1}: {context}{error.problem}"


def _fault(value: Any, hint: Any, path: str) -> str | None:
    """First reason why `value` is no `hint`; None if it is one."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (types.UnionType, Union):
        inner = next(option for option in arguments if option is not type(None))
        return None if value is None else _fault(value, inner, path)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return _struct_fault(value, hint, path)
    if origin is dict:
        return _mapping_fault(value, path) or _first(
            _fault(item, arguments[1], _join(path, key)) for key, item in value.items()
        )
    if origin is tuple:
        return _expected("a list", value, path, isinstance(value, list)) or _first(
            _fault(item, arguments[0], f"{path}[{index}]") for index, item in enumerate(value)
        )
    try:
        msgspec.convert(value, hint)
    except msgspec.ValidationError:
        what = _describe(hint)
        remedy = "; put it in quotes" if what == "text" and isinstance(value, int | float) else ""
        return f"{_expected(what, value, path)}{remedy}"
    return None


def _struct_fault(value: Any, struct: type[msgspec.Struct], path: str) -> str | None:
    if fault := _mapping_fault(value, path):
        return fault
    hints = get_type_hints(struct, include_extras=True)
    for key in value:
        if key not in hints:
            return f"at {_join(path, key)}: {unknown('key', key, hints)}"
    for field in msgspec.structs.fields(struct):
        if field.required and field.name not in value:
            return f"at {_join(path, field.name)}: missing; expected {_describe(hints[field.name])}"
    return _first(_fault(item, hints[key], _join(path, key)) for key, item in value.items())


def _first(faults: Iterable[str | None]) -> str | None:
    return next((fault for fault in faults if fault), None)


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _mapping_fault(value: Any, path: str) -> str | None:
    return _expected("a mapping", value, path, isinstance(value, dict))


def _expected(what: str, value: Any, path: str, holds: bool = False) -> str | None:
    if holds:
        return None
    place = f"at {path}: " if path else ""
    return f"{place}expected {what}, found {_show(value)}"


def _describe(hint: Any) -> str:
    """What a value of the type looks like, in words."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return "a mapping"
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (types.UnionType, Union):
        return " or ".join("null" if option is type(None) else _describe(option) for option in arguments)
    if origin is Annotated:
        return str(arguments[1].description)
    if origin is Literal:
        return f"one of {', '.join(arguments)}"
    return {dict: "a mapping", tuple: "a list", bool: "true or false", str: "text"}[origin or hint]


def _show(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
