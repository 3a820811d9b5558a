"""What a site asks of its user: account, reservation and their like, from wherever the user keeps them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from dlbench.errors import OptionError, SpecError, one_line
from dlbench.specs.check import Text
from dlbench.specs.reading import convert, read_yaml

VARIABLE_PREFIX = "DLBENCH_"
SITE_FILE = Path("dlbench") / "site.yaml"
"""Below the folder for configurations, which `XDG_CONFIG_HOME` names; else `~/.config`."""

TIME_PATTERN = r"^([0-9]+|[0-9]+:[0-5]?[0-9](:[0-5]?[0-9])?|[0-9]+-[0-9]+(:[0-5]?[0-9]){0,2})$"
Time: TypeAlias = Annotated[
    str, Meta(pattern=TIME_PATTERN, description='a time as SLURM writes it, such as "01:30:00" or "90" minutes')
]


class SiteSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What scripts need besides the facts of the system. None: left to the system's spec, or to SLURM."""

    account: Text | None = None
    reservation: Text | None = None
    qos: Text | None = None
    partition: Text | None = None
    time: Time | None = None
    """Limit of every job; None: what its experiment needs."""
    environment: Text | None = None
    """Folder of the Python environment to use; None: that of the dlbench which submits."""
    setup: tuple[Text, ...] = ()
    """Lines of shell that follow the modules and precede everything else, as they are."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            for line in value if isinstance(value, tuple) else (value or "",):
                if one_line(line) != line:
                    raise SpecError(f"at {name}: expected one line without control characters, found {line!r}")


_INSTEAD = {"reservation": "; without a reservation use --mode queue"}
NAMES = tuple(field.name for field in msgspec.structs.fields(SiteSettings))


def load_settings(
    options: Mapping[str, Any], file: Path | None = None, environment: Mapping[str, str] | None = None
) -> SiteSettings:
    """Settings, each from the first place that has it: `options`, `file`, the site file, the environment.

    Options that are None or empty are not given. Raises `SpecError` with the place of what is wrong.
    """
    variables = environment or {}
    layers = [_variables(variables)]
    site = site_file(variables)
    if site is not None and site.is_file():
        layers.append(_read(site))
    if file is not None:
        layers.append(_read(file))
    given = {name: list(value) if isinstance(value, tuple) else value for name, value in options.items() if value}
    try:
        convert(given, SiteSettings, "options")
    except SpecError as error:
        raise OptionError(re.sub(r"^options: at (\w+)", r"--\1", str(error))) from None
    merged: dict[str, Any] = {}
    for layer in (*layers, given):
        merged |= layer
    return convert(merged, SiteSettings, "settings")


def site_file(environment: Mapping[str, str]) -> Path | None:
    """Where the user's site file is, if there is one; None where the user has no home folder."""
    if folder := environment.get("XDG_CONFIG_HOME"):
        return Path(folder) / SITE_FILE
    home = environment.get("HOME")
    return Path(home) / ".config" / SITE_FILE if home else None


def missing(settings: SiteSettings, names: Iterable[str]) -> list[str]:
    """Those of `names` that are not set."""
    return [name for name in names if getattr(settings, name) is None]


def require(settings: SiteSettings, names: Iterable[str], system: str) -> None:
    """Raise `OptionError` where any of `names` is not set, with all places where they could be."""
    if absent := missing(settings, names):
        options = " ".join(f"--{name} NAME" for name in absent)
        variables = " and ".join(f"{VARIABLE_PREFIX}{name.upper()}" for name in absent)
        keys = " and ".join(f"'{name}: NAME'" for name in absent)
        instead = "".join(_INSTEAD.get(name, "") for name in absent)
        raise OptionError(
            f"system {system} needs your {' and '.join(absent)}: use {options}, or {keys} in --config FILE or in "
            f"~/.config/{SITE_FILE}, or {variables} in the environment{instead}; --dry-run does without"
        )


def _variables(environment: Mapping[str, str]) -> dict[str, Any]:
    """Settings of the environment; one that is wrong is named by its variable."""
    found = {}
    for name in NAMES:
        variable = f"{VARIABLE_PREFIX}{name.upper()}"
        if value := environment.get(variable):
            found[name] = value.splitlines() if name == "setup" else value
            convert({name: found[name]}, SiteSettings, variable)
    return found


def _read(path: Path) -> dict[str, Any]:
    content = read_yaml(path)
    convert(content, SiteSettings, str(path))
    return {name: value for name, value in content.items() if value is not None}
