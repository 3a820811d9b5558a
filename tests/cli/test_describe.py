"""`dlbench describe`, as it is typed and as it is read by scripts."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import pytest

from dlbench.cli.describe import describe
from dlbench.errors import LayoutError, OptionError, SpecError


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Any:
    """Output lines of `dlbench describe` with the given arguments."""

    def run(*argv: str) -> list[str]:
        describe(argv)
        return capsys.readouterr().out.splitlines()

    return run


def table(lines: list[str], heading: str) -> list[list[str]]:
    """Cells of the rows below the `#` line that starts with the heading."""
    start = next(index for index, line in enumerate(lines) if line.startswith(f"# {heading}"))
    rows = []
    for line in lines[start + 1 :]:
        if line.startswith("#"):
            break
        rows.append(line.split())
    return rows


def test_the_header_says_what_runs_and_how_it_is_spread(shown: Any) -> None:
    lines = shown("dp_pp_tp", "-n", "256")
    assert lines[0].endswith("describe dp_pp_tp")
    assert "# model     llama3-70b: 70,553,706,496 parameters, 80 layers" in lines
    assert "# ranks     256 = replicas 8 × pp 8 × tp 4" in lines
    assert "# work      bf16, local batch 16, 16 microbatches, sequence length 8192" in lines
    assert not any(line.startswith("# note") for line in lines)


def test_the_message_table_holds_the_published_messages(shown: Any) -> None:
    assert table(shown("dp_pp_ep", "-n", "512"), "operation") == [
        ["alltoall", "expert", "8", "256", "4194304", "8.389", "MB", "2.147", "GB"],
        ["send", "pipeline", "8", "32", "16777216", "33.55", "MB", "1.074", "GB"],
        ["recv", "pipeline", "8", "32", "16777216", "33.55", "MB", "1.074", "GB"],
        ["allreduce", "expert", "8", "1", "200704512", "401.4", "MB", "401.4", "MB"],
        ["allreduce", "replica", "8", "1", "905347584", "1.811", "GB", "1.811", "GB"],
    ]


def test_what_does_not_block_is_written_as_mpi_writes_it(shown: Any) -> None:
    operations = [row[0] for row in table(shown("fsdp", "-n", "16"), "operation")]
    assert operations == ["allgather", "iallgather", "reduce_scatter", "iallreduce"]


def test_the_phase_table_times_the_compute(shown: Any) -> None:
    # vit-h forward 2376.55 µs; a fiftieth of twice that per bucket.
    rows = table(shown("dp", "-n", "8"), "phase")
    assert [(row[0], row[1], row[-4:]) for row in rows] == [
        ("forward", "1", ["2.377", "ms", "2.377", "ms"]),
        ("backward", "50", ["95.06", "µs", "4.753", "ms"]),
    ]


def test_every_role_of_a_pipeline_shows_its_memory(shown: Any) -> None:
    # Three times an eighth of 938.25 ms.
    # Gradients of 1 003 782 656 elements and 2 or 4 activations of 33 554 432, in bytes ×2; gradients twice. Of 180 GB.
    rows = table(shown("dp_pp", "-n", "16"), "role")
    assert [" ".join(row) for row in rows] == [
        "stage 0 2 351.8 ms 4.149 GB 2.3%",
        "stages 1-6 12 351.8 ms 4.284 GB 2.4%",
        "stage 7 2 351.8 ms 4.149 GB 2.3%",
    ]


def test_a_single_rank_exchanges_nothing_and_says_why(shown: Any) -> None:
    lines = shown("dp", "-n", "1")
    assert "# messages: none" in lines
    assert "# note      no world communication: a group of one exchanges nothing" in lines


def test_departures_from_the_paper_are_notes(shown: Any) -> None:
    notes = [line for line in shown("dp_pp_tp", "-n", "4", "--scale", "0.01") if line.startswith("# note")]
    assert "# note      messages have 0.01 times their elements" in notes
    assert "# note      pp = 2, tp = 2 on so few ranks; larger runs have pp × tp = 8 × 4" in notes


@pytest.mark.parametrize("strategy", ["dp", "fsdp", "dp_pp", "dp_pp_tp", "dp_pp_ep"])
def test_everything_fits_into_eighty_columns(shown: Any, strategy: str) -> None:
    for ranks in ("1", "4", "102400"):
        for program in ([], ["--program", "0"]):
            assert max(map(len, shown(strategy, "-n", ranks, "--sequence-length", "1000", *program))) <= 80


def test_a_program_is_printed_op_by_op_with_the_peers_as_world_ranks(shown: Any) -> None:
    lines = shown("dp_pp", "-n", "16", "--program", "9", "--microbatches", "1", "--local-batch", "1")
    assert "# program   of rank 9: replica 1, pp 1" in lines
    assert [line.split() for line in lines if not line.startswith("#")] == [
        ["0", "recv", "pipeline", "8", "activation_in", "33554432", "67.11", "MB"],
        ["1", "compute", "forward", "7.330", "ms"],
        ["2", "send", "pipeline", "10", "activation_out", "33554432", "67.11", "MB"],
        ["3", "recv", "pipeline", "10", "gradient_in", "33554432", "67.11", "MB"],
        ["4", "compute", "backward", "14.66", "ms"],
        ["5", "send", "pipeline", "8", "gradient_out", "33554432", "67.11", "MB"],
        ["6", "allreduce", "replica", "gradient", "1003782656", "2.008", "GB"],
    ]


def test_a_wait_names_its_first_request_and_counts_the_others(shown: Any) -> None:
    assert shown("dp", "-n", "2", "--buckets", "3", "--program", "1")[-1].split()[1:] == ["wait", "gradient[0]", "+2"]


def test_json_has_the_documented_keys(shown: Any) -> None:
    document = json.loads("\n".join(shown("dp_pp", "-n", "16", "--json")))
    assert set(document) == {
        "strategy", "title", "model", "gpu", "world_size", "replicas", "degrees", "notes", "dtype", "local_batch",
        "microbatches", "sequence_length", "buckets", "units", "scale", "time_scale", "messages", "phases", "roles",
        "ideal", "ideal_seconds", "memory_bytes", "groups",
    }  # fmt: skip
    assert document["model"]["parameters"] == 8_030_261_248
    assert document["degrees"] == {"pp": 8}
    assert document["messages"][-1] == {
        "operation": "allreduce",
        "scope": "replica",
        "group_size": 2,
        "count": 1,
        "elements": 1_003_782_656,
        "bytes": 2_007_565_312,
        "blocking": True,
    }
    assert set(document["phases"][0]) == {"name", "count", "flops", "bytes", "intensity", "seconds"}
    assert [(role["name"], role["rank"], role["ranks"]) for role in document["roles"]] == [
        ("stage 0", 0, 2),
        ("stages 1-6", 1, 12),
        ("stage 7", 7, 2),
    ]
    assert set(document["roles"][0]) == {"name", "rank", "ranks", "compute_seconds", "memory_bytes"}
    assert document["ideal"]["bubble"] == pytest.approx(7 / 23)


def test_a_program_as_json_is_one_object_a_line(shown: Any) -> None:
    ops = [json.loads(line) for line in shown("dp_pp", "-n", "16", "--program", "9", "--json")]
    assert [op["index"] for op in ops] == list(range(len(ops)))
    assert ops[0] == {
        "index": 0,
        "op": "recv",
        "scope": "pipeline",
        "name": "activation_in",
        "elements": 33_554_432,
        "bytes": 67_108_864,
        "blocking": True,
        "peer": 0,
        "peer_rank": 8,
    }
    assert set(ops[1]) == {"index", "op", "name", "seconds"}
    started = [json.loads(line) for line in shown("dp", "-n", "2", "--buckets", "1", "--program", "0", "--json")]
    assert started[2]["blocking"] is False
    assert started[3] == {"index": 3, "op": "wait", "requests": ["gradient[0]"]}


@pytest.mark.parametrize(
    ("argv", "error", "message"),
    [
        ([], OptionError, "the following arguments are required: STRATEGY, -n/--ranks; see 'dlbench describe --help'"),
        (["dp", "-n", "0"], OptionError, "argument -n/--ranks: expected an integer of 1 or more, found '0'"),
        (["dp", "-n", "4", "--tpp", "2"], OptionError, "unknown option --tpp, did you mean --tp?"),
        (["dp", "-n", "4", "more"], OptionError, "unexpected argument 'more'"),
        (["dp_tp", "-n", "4"], OptionError, "unknown strategy 'dp_tp'"),
        (["dp", "-n", "4", "--program", "4"], OptionError, "there is no rank 4; ranks are 0 to 3"),
        (["dp", "-n", "4", "--model", "vit-huge"], SpecError, ""),
        (["dp", "-n", "4", "--gpu", "a100", "--dtype", "fp8"], SpecError, "GPU a100"),
        (["dp_pp_tp", "-n", "48"], LayoutError, "world size 48 is not a multiple of pp × tp"),
    ],
)
def test_a_mistake_is_answered_in_one_line_before_anything_is_printed(
    capsys: pytest.CaptureFixture[str], argv: list[str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as raised:
        describe(argv)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)
    assert capsys.readouterr().out == ""


def test_a_hundred_thousand_ranks_take_less_than_a_second(shown: Any) -> None:
    began = time.process_time()
    shown("dp_pp_tp", "-n", "102400")
    assert time.process_time() - began < 1


def test_the_command_works_without_mpi() -> None:
    code = (
        "import sys; from dlbench.cli.describe import describe; describe(['dp', '-n', '2']);"
        "print([name for name in ('mpi4py', 'numpy', 'yaml.__bogus__') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "mpi4py" not in done.stdout.splitlines()[-1]


def test_the_command_ends_quietly_when_its_reader_has_seen_enough() -> None:
    command = f"{sys.executable} -m dlbench describe dp_pp_tp -n 256 --program 0 --local-batch 4096 | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    assert done.stdout.startswith("# dlbench")


def test_a_mistake_on_the_command_line_leaves_with_two() -> None:
    command = [sys.executable, "-m", "dlbench", "describe", "dp", "-n", "4", "--pp", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr == "dlbench: dp has no option --pp; its own options are --buckets\n"
