"""`dlbench models | gpus | systems`: lists, single specs, JSON, and how they look on a terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dlbench.cli import main as command_line
from dlbench.cli.specs import column_widths, table_parts
from dlbench.specs import gpu_names, model_names, system_names

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def dlbench(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> Any:
    """Run the command line in this process; gives what it prints."""

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["dlbench", *arguments])
        with pytest.raises(SystemExit) as end:
            command_line.main()
        printed = capsys.readouterr()
        assert (end.value.code, printed.err) == (0, "")
        return str(printed.out)

    return run


def rows(text: str) -> dict[str, list[str]]:
    """Cells of a plain table by the first one; cells are two spaces or more apart."""
    cells = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()]
    return {row[0]: row[1:] for row in cells}


def fields(text: str) -> dict[str, str]:
    """Fields of a shown spec by their last key, as text."""
    pairs = (line.split(maxsplit=1) for line in text.splitlines())
    return {pair[0]: pair[1] if len(pair) == 2 else "" for pair in pairs}


def on_terminal(columns: int, *arguments: str) -> list[str]:
    """Lines that a terminal of that width shows."""
    ours, its = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "dumb"}
    with subprocess.Popen([sys.executable, "-m", "dlbench", *arguments], stdout=its, env=environment) as process:
        os.close(its)
        shown = b""
        try:
            while chunk := os.read(ours, 4096):
                shown += chunk
        except OSError:  # Linux ends a terminal whose other side is closed with an input/output error
            pass
    os.close(ours)
    assert process.returncode == 0
    return shown.decode().replace("\r\n", "\n").splitlines()


def test_the_models_are_listed_with_their_parameters(dlbench: Any) -> None:
    table = rows(dlbench("models"))
    assert list(table) == ["name", *model_names()]
    assert table["llama3-70b"] == ["70,553,706,496", "8192", "80", "64/8", "28672", "8192", "-"]
    assert table["mixtral-8x7b"][-1] == "2/8"


def test_the_gpus_are_listed_with_peaks_and_memory(dlbench: Any) -> None:
    table = rows(dlbench("gpus"))
    assert table["h100"] == ["989.0 TFLOP/s", "1.979 PFLOP/s", "3.350 TB/s", "80.00 GB"]
    assert table["a100 = a100-80gb"] == table["a100-80gb"] == ["312.0 TFLOP/s", "-", "2.039 TB/s", "80.00 GB"]
    assert len(table) == 1 + len(gpu_names())


def test_the_systems_are_listed_with_their_nodes_and_network(dlbench: Any) -> None:
    table = rows(dlbench("systems"))
    assert list(table) == ["name", *system_names()]
    assert table["jupiter"] == ["25 × 240", "4 × gh200", "4 × 200 Gbit/s", "InfiniBand NDR"]
    assert table["local"] == ["1 × 1", "-", "-", "-"]


def test_a_model_is_shown_with_every_field_and_what_follows_from_it(dlbench: Any) -> None:
    shown = fields(dlbench("models", "mixtral-8x7b"))
    assert shown["family"] == "decoder"
    assert shown["hidden_size"] == "4,096"
    assert shown["patch_size"] == "-"
    assert shown["parameters"] == "46,702,792,704"
    assert shown["non_expert_parameters"] == "1,605,636,096"
    assert "Jiang et al." in shown["source"]


def test_a_gpu_is_shown_with_units_and_the_source_of_each_figure(dlbench: Any) -> None:
    lines = dlbench("gpus", "mi250x-gcd").splitlines()
    assert "  bf16              191.5 TFLOP/s" in lines
    assert "memory_bandwidth    1.600 TB/s" in lines
    assert "  memory_bandwidth  AMD Instinct MI250X datasheet, half of 3.2 TB/s" in lines


def test_a_system_is_shown_with_its_site(dlbench: Any) -> None:
    shown = fields(dlbench("systems", "leonardo"))
    assert shown["modules"] == "gcc/12.2.0, openmpi/4.1.6--gcc--12.2.0-cuda-12.2, nvhpc/24.5"
    assert shown["NCCL_IB_SL"] == "1"
    assert shown["switched"] == "no"
    assert shown["nic_gbps"] == "100"
    assert shown["pair_bytes_per_second_min"] == "100.0 GB/s"
    assert shown["uenv"] == "-"


@pytest.mark.parametrize("command", ["models", "gpus", "systems"])
def test_json_of_one_is_an_object_and_json_of_all_an_array_of_the_same(dlbench: Any, command: str) -> None:
    every = json.loads(dlbench(command, "--json"))
    for spec in every:
        assert json.loads(dlbench(command, spec["name"], "--json")) == spec


def test_json_names_each_gpu_once(dlbench: Any) -> None:
    names = [gpu["name"] for gpu in json.loads(dlbench("gpus", "--json"))]
    assert names == [name for name in gpu_names() if name != "a100"]


def test_json_gives_plain_numbers(dlbench: Any) -> None:
    model = json.loads(dlbench("models", "llama3-8b", "--json"))
    assert (model["parameters"], model["expert_parameters"]) == (8_030_261_248, 0)
    assert json.loads(dlbench("gpus", "b200", "--json"))["peak_flops"]["bf16"] == 2.25e15
    assert json.loads(dlbench("systems", "alps", "--json"))["topology"]["nodes_per_l1_switch"] is None


def test_a_spec_of_ones_own_is_shown_by_its_path(dlbench: Any, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("same_as: vit-h\n")
    assert dlbench("models", str(path)) == dlbench("models", "vit-h")


@pytest.mark.parametrize("command", ["models", "gpus", "systems"])
def test_a_list_fits_a_terminal_of_80_columns_with_one_line_a_spec(dlbench: Any, command: str) -> None:
    plain = dlbench(command).splitlines()
    heading, rule, *shown = [line.rstrip() for line in on_terminal(80, command) if line.strip()]
    assert heading == plain[0]
    assert set(rule) == {"─"}
    assert shown == plain[1:]


def test_long_values_are_wrapped_beneath_themselves_on_a_terminal() -> None:
    lines = on_terminal(80, "gpus", "gb300")
    assert max(map(len, lines)) <= 80
    start = next(index for index, line in enumerate(lines) if line.startswith("  peak_flops"))
    assert lines[start + 1].startswith(" " * len("  memory_bandwidth  "))
    assert lines[start + 1][len("  memory_bandwidth  ")] != " "


COLUMNS = [["experiment", "mix-000"], ["jobs", "dp 4 GPUs intra-l1"], ["node hours", "0.04"]]
"""Two spaces between, and widths of 10, 18 and 10: 42; no narrower than their longest words of 10, 8 and 5: 27."""


@pytest.mark.parametrize(
    ("room", "widths"), [(80, [10, 18, 10]), (42, [10, 18, 10]), (40, [10, 16, 10]), (27, [10, 8, 5]), (20, [10, 8, 5])]
)
def test_cells_are_wrapped_at_spaces_and_no_word_is_broken(room: int, widths: list[int]) -> None:
    assert column_widths(COLUMNS, room) == widths


@pytest.mark.parametrize(("room", "parts"), [(27, [COLUMNS]), (26, [COLUMNS[:2], [COLUMNS[0], COLUMNS[2]]])])
def test_what_fits_no_more_stands_in_a_part_of_its_own(room: int, parts: list[list[list[str]]]) -> None:
    assert table_parts(COLUMNS, room) == parts


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_no_name_of_a_plan_is_broken_on_a_terminal(columns: int) -> None:
    lines = on_terminal(columns, "plan", "--system", "local", "--pattern", "tier", "--experiments", "1")
    assert max(map(len, lines)) <= columns
    words = " ".join(lines).split()
    assert {"experiment", "mix-000", "alone-000", "locality", "seconds"} <= set(words)
