"""Specs by name (shipped with dlbench) or by path (the user's own)."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from dlbench.errors import SpecError
from dlbench.specs.gpu import GpuSpec
from dlbench.specs.model import ModelSpec
from dlbench.specs.system import SystemSpec

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable
    from pathlib import Path

SpecT = TypeVar("SpecT")

_SUFFIXES = (".yaml", ".yml")


def model_names() -> list[str]:
    """Names of the shipped models, sorted."""
    return names_in(_folder("models"))


def gpu_names() -> list[str]:
    """Names of the shipped GPUs, sorted, other names of the same GPU included."""
    return names_in(_folder("gpus"))


def system_names() -> list[str]:
    """Names of the shipped systems, sorted."""
    return names_in(_folder("systems"))


def load_model(name_or_path: str) -> ModelSpec:
    """Model by name, or by path: whatever has a `/` or ends in .yaml or .yml. Raises `SpecError`."""
    return _load(name_or_path, "models", ModelSpec)


def load_gpu(name_or_path: str) -> GpuSpec:
    """GPU by name or path, as `load_model`. Raises `SpecError`."""
    return _load(name_or_path, "gpus", GpuSpec)


def load_system(name_or_path: str) -> SystemSpec:
    """System by name or path, as `load_model`, and its GPU looked up. Raises `SpecError`.

    A system may name its GPU by a path, which counts from the system's own file; the spec holds it resolved.
    """
    system = _load(name_or_path, "systems", SystemSpec)
    if system.gpu is None:
        return system
    gpu = system.gpu
    if _is_path(gpu):
        gpu = str(_expanded(name_or_path).parent / _expanded(gpu))
    try:
        load_gpu(gpu)
    except SpecError as error:
        raise SpecError(f"{name_or_path}: at gpu: {error}") from None
    return msgspec.structs.replace(system, gpu=gpu)


def names_in(folder: Traversable) -> list[str]:
    """Names of the YAML files of a folder, sorted."""
    files = (entry.name for entry in folder.iterdir())
    return sorted(name.removesuffix(".yaml") for name in files if name.endswith(".yaml"))


def load_named(name_or_path: str, folder: Traversable, what: str, kind: type[SpecT]) -> SpecT:
    """Content of a YAML file of `folder` by name, or of any by path as in `load_model`. Raises `SpecError`.

    `what` is the file's kind in words, for the message about an unknown name.
    """
    from dlbench.specs.reading import convert, read_yaml  # noqa: PLC0415 - PyYAML

    path = _find(name_or_path, folder, what)
    content = read_yaml(path)
    if other := _other_name(content):
        path = _find(other, folder, what)
        content = read_yaml(path)
    return convert(content, kind, str(path))


def _is_path(name_or_path: str) -> bool:
    return "/" in name_or_path or name_or_path.endswith(_SUFFIXES)


def _expanded(path: str) -> Path:
    from pathlib import Path  # noqa: PLC0415 - it loads five modules, which ranks that are sent their specs do without

    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise SpecError(f"{path}: found no home folder; write the whole path") from None


def _folder(folder: str) -> Traversable:
    from importlib.resources import files  # noqa: PLC0415 - ranks that are sent their specs never need it

    return files("dlbench.specs").joinpath(folder)


def _load(name_or_path: str, folder: str, kind: type[SpecT]) -> SpecT:
    return load_named(name_or_path, _folder(folder), folder.removesuffix("s"), kind)


def _other_name(content: Any) -> str | None:
    """The name that a file of the form `same_as: NAME` stands for; None for a spec."""
    if isinstance(content, dict) and content.keys() == {"same_as"}:
        return str(content["same_as"])
    return None


def _find(name_or_path: str, folder: Traversable, what: str) -> Path | Traversable:
    if _is_path(name_or_path):
        return _expanded(name_or_path)
    _require_known(name_or_path, what, names_in(folder))
    return folder.joinpath(f"{name_or_path}.yaml")


def _require_known(name: str, what: str, names: Collection[str]) -> None:
    from dlbench.specs.reading import unknown  # noqa: PLC0415 - PyYAML

    if name not in names:
        raise SpecError(f"{unknown(what, name, names)}; or the path of a YAML file")
