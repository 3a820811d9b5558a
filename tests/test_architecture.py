"""The rooms of the house: who may import whom, and what a rank process may load."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import grimp
import pytest
from importlinter.cli import lint_imports

CHECKOUT = Path(__file__).parents[1]

ENTRY_POINTS = ("dp", "fsdp", "dp_pp", "dp_pp_tp", "dp_pp_ep", "preflight")
RANK_MODULES = {"preflight": "preflight_job"}
"""What a rank of an entry point runs, where it is no strategy."""
GROUND = {"errors", "files"}
STRATEGIES = GROUND | {"strategies", "roofline", "specs", "arguments"}
RUN = STRATEGIES | {"runtime", "accelerator", "comm", "compute", "records", "statistics", "quantities"}

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "files": {"errors"},
    "specs": GROUND,
    "records": GROUND,
    "statistics": GROUND,
    "arguments": GROUND,
    "quantities": GROUND,
    "roofline": GROUND | {"specs"},
    "accelerator": GROUND | {"quantities"},
    "comm": GROUND | {"accelerator"},
    "compute": GROUND | {"accelerator"},
    "strategies": GROUND | {"specs", "roofline", "arguments"},
    "runtime": RUN - {"runtime"},
    "simulator": STRATEGIES | {"records", "statistics"},
    "allocators": STRATEGIES | {"quantities"},
    "slurm": RUN | {"allocators"},
    "analysis": GROUND | {"records", "specs", "statistics", "quantities"},
    "doctor": GROUND | {"accelerator", "comm", "quantities", "runtime", "slurm"},
    **{entry: RUN for entry in ENTRY_POINTS},
    "cli": RUN | {"simulator", "allocators", "slurm", "analysis", "doctor", *ENTRY_POINTS},
    "__main__": {"cli"},
}
"""Rooms of dlbench that each room may import, itself aside."""

COMMAND_LINE_PACKAGES = {"pandas", "scipy", "matplotlib", "jinja2", "typer", "click", "rich", "yaml"}


def room(module: str) -> str:
    """`dlbench.specs.models` lies in the room `specs`; the package itself is no room."""
    return module.partition(".")[2].partition(".")[0]


def violations(graph: grimp.ImportGraph) -> list[str]:
    """Imports that the table forbids, and modules that lie in no room of it."""
    found = [f"{module} lies in no room" for module in graph.modules if room(module) not in {"", *MAY_IMPORT}]
    for importer in graph.modules:
        allowed = {"", room(importer)} | MAY_IMPORT.get(room(importer), set())
        for imported in graph.find_modules_directly_imported_by(importer):
            if room(imported) not in allowed:
                found.append(f"{importer} imports {imported}")
    return sorted(found)


def graph_of(*imports: tuple[str, str]) -> grimp.ImportGraph:
    graph = grimp.ImportGraph()
    for importer, imported in imports:
        graph.add_import(importer=importer, imported=imported)
    return graph


def test_every_room_imports_only_what_the_design_allows_it() -> None:
    assert violations(grimp.build_graph("dlbench", cache_dir=None)) == []


def test_the_floors_that_pre_commit_checks_hold() -> None:
    assert lint_imports(config_filename=str(CHECKOUT / "pyproject.toml"), no_cache=True) == 0


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("dlbench.specs.load", "dlbench.records.schema"),
        ("dlbench.records.writer", "dlbench.specs"),
        ("dlbench.comm.mpi", "dlbench.compute.sleep"),
        ("dlbench.compute.gemm", "dlbench.roofline"),
        ("dlbench.strategies.layout", "dlbench.comm.protocol"),
        ("dlbench.runtime.executor", "dlbench.simulator"),
        ("dlbench.runtime.runner", "dlbench.allocators"),
        ("dlbench.runtime.runner", "dlbench.cli.main"),
        ("dlbench.analysis.load", "dlbench.runtime"),
        ("dlbench.dp", "dlbench.fsdp"),
    ],
)
def test_an_import_upwards_or_sideways_is_found(importer: str, imported: str) -> None:
    assert violations(graph_of((importer, imported))) == [f"{importer} imports {imported}"]


def test_an_import_downwards_or_within_a_room_is_fine() -> None:
    graph = graph_of(
        ("dlbench.strategies.data_parallel", "dlbench.strategies.ops"),
        ("dlbench.strategies.ops", "dlbench.roofline"),
        ("dlbench.comm.mpi", "dlbench.errors"),
        ("dlbench.cli.run", "dlbench"),
    )
    assert violations(graph) == []


def test_a_module_outside_the_rooms_is_found() -> None:
    graph = grimp.ImportGraph()
    graph.add_module("dlbench.utils")
    assert violations(graph) == ["dlbench.utils lies in no room"]


LOADED_BY = """
import json, sys
before = set(sys.modules)
{program}
print(json.dumps(sorted({{name.partition(".")[0] for name in set(sys.modules) - before}})))
"""


def packages_loaded_by(program: str) -> set[str]:
    """Top-level packages that a fresh process loads, those of Python itself aside."""
    command = [sys.executable, "-c", LOADED_BY.format(program=program)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return set(json.loads(printed)) - set(sys.stdlib_module_names)


@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_a_rank_process_loads_numpy_mpi4py_and_msgspec_only(entry: str) -> None:
    work = RANK_MODULES.get(entry, "rank")  # `main` imports it
    loaded = packages_loaded_by(f"import dlbench.{entry}, dlbench.runtime.{work}")
    assert loaded == {"dlbench"} | packages_loaded_by("import numpy, msgspec; from mpi4py import MPI")
    assert not loaded & COMMAND_LINE_PACKAGES


def test_the_command_line_starts_without_what_only_the_analysis_needs() -> None:
    assert not packages_loaded_by("import dlbench.cli.application") & {"pandas", "matplotlib", "jinja2", "scipy"}
