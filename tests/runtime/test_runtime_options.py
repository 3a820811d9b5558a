"""The options of a run, from the command line and from configuration files."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from dlbench.errors import LayoutError, OptionError, SpecError
from dlbench.runtime.options import check_request, parse_request, run_parser
from dlbench.runtime.request import Delay, RunRequest
from dlbench.strategies import STRATEGIES

DOCUMENTED = [
    "--model",
    "--gpu",
    "--dtype",
    "--local-batch",
    "--microbatches",
    "--sequence-length",
    "--buckets",
    "--units",
    "--sharding",
    "--pp",
    "--tp",
    "--ep",
    "--iterations",
    "--warmup",
    "--min-seconds",
    "--max-seconds",
    "--until-ci",
    "--compute",
    "--gemm-precision",
    "--backend",
    "--buffers",
    "--scale",
    "--time-scale",
    "--record",
    "--record-ops",
    "--check",
    "--seed",
    "--timeout",
    "--grace",
    "--sync",
    "--progress",
    "--persistent",
    "--delay",
    "--label",
    "--system",
    "--placement",
    "--experiment",
    "--job",
    "--concurrent-jobs",
    "--json",
    "--config",
    "--help",
]


def request(*argv: str, strategy: str = "dp") -> RunRequest:
    return parse_request(strategy, run_parser(f"python -m dlbench.{strategy}", strategy), argv)


def complaint(*argv: str, strategy: str = "dp", kind: type[Exception] = OptionError) -> str:
    """The message about a wrong command line; it is one line."""
    with pytest.raises(kind) as error:
        request(*argv, strategy=strategy)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "site.yaml"


def with_config(config: Path, text: str, *argv: str, strategy: str = "dp") -> RunRequest:
    config.write_text(text, encoding="utf-8")
    return request("--config", str(config), *argv, strategy=strategy)


def config_complaint(config: Path, text: str) -> str:
    config.write_text(text, encoding="utf-8")
    message = complaint("--config", str(config))
    assert str(config) in message
    return message


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_documented_option_is_there(strategy: str) -> None:
    parser = run_parser("prog", strategy)
    assert [option for option in DOCUMENTED if parser.find(option) is None] == []


def test_the_help_has_examples_exit_codes_and_every_option_that_the_strategy_has(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as leave:
        request("--help")
    text = capsys.readouterr().out
    assert leave.value.code == 0
    assert "mpirun -n 64 python -m dlbench.dp" in text
    assert "exit codes" in text
    of_others = {"--microbatches", "--units", "--sharding", "--pp", "--tp", "--ep"}
    assert set(DOCUMENTED) - set(re.split(r"[\s,]+", text)) == of_others


def test_the_defaults_are_those_of_the_paper_and_a_short_run() -> None:
    made = request()
    assert (made.model.name, made.gpu.name, made.workload) == ("vit-h", "b200", {})
    run = made.run
    assert (run.iterations, run.warmup, run.compute, run.backend, run.sync) == (10, 1, "sleep", "mpi", "barrier")
    assert (run.record, run.record_ops, run.check, run.json, run.seed) == ("results", False, False, False, 0)


def test_each_option_reaches_the_request() -> None:
    line = (
        "--model=vit-b --gpu=h100 --dtype=fp32 --local-batch=8 --sequence-length=100 --buckets=7 --scale=0.5 "
        "--time-scale=2 --iterations=3 --warmup=2 --min-seconds=1.5 --max-seconds=9 --until-ci=0.02 "
        "--max-iterations=77 --compute=gemm --gemm-precision=bf16 --buffers=gpu --persistent "
        "--progress=none --sync=window --check --delay=1:2:3.5 "
        "--seed=4 --timeout=30 --grace=5 --record=out --record-ops --label=a=b --system=local --placement=intra-l1 "
        "--experiment=e1 --job=j2 --concurrent-jobs=3 --json"
    )
    made = request(*line.split())
    assert (made.model.name, made.gpu.name) == ("vit-b", "h100")
    assert made.workload == {
        "dtype": "fp32",
        "local_batch": 8,
        "sequence_length": 100,
        "buckets": 7,
        "scale": 0.5,
        "time_scale": 2.0,
    }
    assert msgspec.to_builtins(made.run) == {
        "iterations": 3,
        "warmup": 2,
        "min_seconds": 1.5,
        "max_seconds": 9.0,
        "until_ci": 0.02,
        "max_iterations": 77,
        "compute": "gemm",
        "gemm_precision": "bf16",
        "backend": "mpi",
        "buffers": "gpu",
        "persistent": True,
        "progress": "none",
        "sync": "window",
        "check": True,
        "delay": [{"rank": 1, "op": 2, "milliseconds": 3.5}],
        "seed": 4,
        "timeout": 30.0,
        "grace": 5.0,
        "record": "out",
        "record_ops": True,
        "label": {"a": "b"},
        "system": "local",
        "placement": "intra-l1",
        "experiment": "e1",
        "job": "j2",
        "concurrent_jobs": 3,
        "json": True,
    }


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_request_survives_the_way_to_the_other_ranks(strategy: str) -> None:
    made = request("--label", "site=Jülich", "--delay", "0:0:1", strategy=strategy)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(made), type=RunRequest) == made


def test_a_system_sets_the_gpu() -> None:
    assert request("--system", "leonardo").gpu.name == "a100-64gb"


def test_a_gpu_that_is_named_wins_over_that_of_the_system() -> None:
    assert request("--system", "leonardo", "--gpu", "h100").gpu.name == "h100"


def test_a_system_without_gpus_leaves_the_default() -> None:
    assert request("--system", "local").gpu.name == "b200"


@pytest.mark.parametrize(("option", "value"), [("--model", "vit-x"), ("--gpu", "b2000"), ("--system", "leonard")])
def test_an_unknown_spec_is_a_mistake_of_the_user(option: str, value: str) -> None:
    assert value in complaint(option, value, kind=SpecError)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--iteration=5"], "unknown option --iteration, did you mean --iterations?"),
        (["--recordops"], "unknown option --recordops, did you mean --record-ops?"),
        (["--rec", "x"], "unknown option --rec"),
        (["stray"], "unexpected argument 'stray'"),
        (["--iterations=0"], "--iterations: expected an integer of 1 or more"),
        (["--iterations=2.5"], "--iterations: expected an integer"),
        (["--iterations", "1" + "0" * 400], "--iterations: expected an integer below 2^63"),
        (["--warmup=-1"], "--warmup: expected an integer of 0 or more"),
        (["--seed=18446744073709551616"], "--seed: expected an integer below 2^63"),
        (["--until-ci=nan"], "--until-ci: expected a number above 0"),
        (["--until-ci=0"], "--until-ci: expected a number above 0"),
        (["--timeout=inf"], "--timeout: expected a number above 0"),
        (["--max-seconds=-3"], "--max-seconds: expected a number above 0"),
        (["--scale=1e308"], "--scale: expected a number below 2^63"),
        (["--time-scale=zero"], "--time-scale: expected a number above 0, found 'zero'"),
        (["--compute=fast"], "--compute: invalid choice: 'fast'"),
        (["--sync=sometimes"], "--sync: invalid choice: 'sometimes'"),
        (["--label", "fabric"], "--label: expected KEY=VALUE such as fabric=ndr, found 'fabric'"),
        (["--label", "=ndr"], "--label: expected KEY=VALUE"),
        (["--delay", "1:2"], "--delay: expected RANK:OP:MILLISECONDS such as 3:12:5, found '1:2'"),
        (["--delay", "a:2:3"], "--delay: expected RANK:OP:MILLISECONDS"),
        (["--delay", "1:2:0"], "--delay: rank and op count from 0 and the delay is positive"),
        (["--delay", "1:2:nan"], "--delay: rank and op count from 0 and the delay is positive"),
        (["--delay", "1:2:inf"], "--delay: rank and op count from 0 and the delay is positive"),
        (["--delay=-1:2:3"], "--delay: rank and op count from 0"),
        (["--delay", "0:0:86400001"], "--delay: expected a delay of at most 86400000 ms, a day"),
        (["--delay", "0:0:1e305"], "--delay: expected a delay of at most 86400000 ms, a day"),
        (["--model="], "--model: expected a text, found ''"),
        (["--gpu="], "--gpu: expected a text, found ''"),
        (["--system", ""], "--system: expected a text, found ''"),
        (["--record="], "--record: expected a text, found ''"),
        (["--config="], "--config: expected a text, found ''"),
        (["--config=~nobody-of-this-name/x"], "--config: found no home folder"),
        (["--job", "a\nb"], "expected UTF-8 text without control characters"),
        (["--label", "a=\udcff"], "expected UTF-8 text without control characters"),
    ],
)
def test_a_wrong_command_line_is_answered_in_one_line(argv: list[str], message: str) -> None:
    assert message in complaint(*argv)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--record-ops", "--no-record"], "--record-ops needs a record; leave out --no-record"),
        (["--min-seconds=9", "--max-seconds=8"], "--max-seconds 8 is less than --min-seconds 9"),
        (["--iterations=9", "--until-ci=0.1", "--max-iterations=8"], "--max-iterations 8 is less than --iterations 9"),
        (["--backend=nccl", "--buffers=host"], "its buffers are in the memory of the GPU; leave out --buffers host"),
        (
            ["--backend=nccl", "--persistent"],
            "--persistent is for collectives of MPI; leave it out with --backend nccl",
        ),
        (
            ["--gemm-precision=fp16", "--backend=nccl"],
            "--gemm-precision has no meaning with --compute sleep",
        ),
        (
            ["--gemm-precision=tf32", "--compute=gemm"],
            "--gemm-precision tf32 needs a GPU: on the CPU gemm multiplies in fp32",
        ),
        (
            ["--backend=nccl", "--compute=gemm", "--dtype=fp8"],
            "--compute gemm cannot multiply in fp8: gemmEx, which multiplies, has no fp8; use --gemm-precision bf16",
        ),
    ],
)
def test_a_contradiction_is_refused(argv: list[str], message: str) -> None:
    assert message in complaint(*argv)


@pytest.mark.parametrize(
    "argv",
    [
        ["--compute=gemm", "--dtype=fp8"],  # on the CPU, in fp32
        ["--compute=gemm", "--dtype=fp8", "--backend=nccl", "--gemm-precision=fp16"],
        ["--compute=gemm", "--backend=nccl"],  # bf16, which only the GPU that is found can refuse
        ["--compute=spin", "--dtype=fp8"],
    ],
)
def test_messages_of_fp8_are_no_contradiction_where_nothing_multiplies_in_it(argv: list[str]) -> None:
    assert request(*argv).run.compute in {"gemm", "spin"}


def test_messages_are_where_the_backend_has_them_unless_an_option_says_otherwise() -> None:
    assert request().run.buffers == "host"
    assert request("--buffers=gpu").run.buffers == "gpu"
    assert request("--backend=nccl").run.buffers == request("--backend=nccl", "--buffers=gpu").run.buffers == "gpu"


@pytest.mark.parametrize(
    ("argv", "uses_gpu", "gpu_messages"),
    [
        ([], False, False),
        (["--compute=gemm", "--gemm-precision=fp32"], False, False),
        (["--compute=spin"], True, False),
        (["--buffers=gpu"], True, True),
        (["--backend=nccl"], True, True),
    ],
)
def test_a_gpu_is_needed_for(argv: list[str], uses_gpu: bool, gpu_messages: bool) -> None:
    run = request(*argv).run
    assert (run.uses_gpu, run.gpu_messages) == (uses_gpu, gpu_messages)


def test_a_label_may_hold_equal_signs_and_be_empty() -> None:
    assert request("--label", "a=b=c", "--label", "empty=").run.label == {"a": "b=c", "empty": ""}


def test_the_last_label_and_the_last_delay_of_a_name_count() -> None:
    run = request("--label=a=1", "--label=a=2", "--delay=0:1:5", "--delay=0:2:6", "--delay=0:1:7").run
    assert run.label == {"a": "2"}
    assert run.delay == [Delay(0, 1, 7.0), Delay(0, 2, 6.0)]


def test_no_record_and_record_are_opposites() -> None:
    assert request("--no-record").run.record is None
    assert request("--no-record", "--record", "here").run.record == "here"


def test_a_record_folder_may_lie_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert request("--record", "~/results").run.record == f"{tmp_path}/results"


@pytest.mark.parametrize("option", ["--model", "--gpu", "--system"])
def test_a_spec_at_the_home_of_nobody_is_a_mistake_of_the_user(option: str) -> None:
    assert "found no home folder" in complaint(option, "~nobody-of-this-name/x", kind=SpecError)


def test_a_delay_of_a_rank_or_an_op_that_does_not_exist_is_refused() -> None:
    # DP on two ranks: forward, 50 × (backward, all-reduce), wait: 102 ops.
    check_request(request("--delay=1:101:5"), 2)
    with pytest.raises(OptionError, match="--delay 1:102:5: rank 1 has ops 0 to 101"):
        check_request(request("--delay=1:102:5"), 2)
    with pytest.raises(OptionError, match="--delay 2:0:5: ranks are 0 to 1"):
        check_request(request("--delay=2:0:5"), 2)


def test_what_does_not_fit_the_world_size_is_refused() -> None:
    with pytest.raises(LayoutError, match="world size 6 is not a multiple"):
        check_request(request("--pp=4", strategy="dp_pp"), 6)


def test_an_option_of_another_strategy_is_refused() -> None:
    with pytest.raises(OptionError, match="dp has no option --units"):
        check_request(request("--units=4"), 2)


def test_a_configuration_file_has_the_names_of_the_options(config: Path) -> None:
    made = with_config(
        config,
        """
        model: vit-b
        local-batch: 8          # as on the command line
        time_scale: 1e-3        # or with an underscore
        iterations: 20
        until_ci: 0.05
        sync: none
        check: true
        record: /scratch/results
        job: "0123"
        """,
    )
    assert (made.model.name, made.workload) == ("vit-b", {"local_batch": 8, "time_scale": 0.001})
    run = made.run
    assert (run.iterations, run.until_ci, run.sync, run.check) == (20, 0.05, "none", True)
    assert (run.record, run.job) == ("/scratch/results", "0123")


def test_the_command_line_wins_over_the_file(config: Path) -> None:
    text = "iterations: 20\ncheck: true\ngpu: h100\nrecord: there\nlabel: {a: 1, b: 2}\ndelay: 0:1:5"
    run = with_config(config, text, "--iterations=3", "--no-check", "--no-record", "--label=a=9", "--delay=0:1:7").run
    assert (run.iterations, run.check, run.record) == (3, False, None)
    assert run.label == {"a": "9", "b": "2"}
    assert run.delay == [Delay(0, 1, 7.0)]


def test_a_gpu_in_the_file_wins_over_that_of_the_system(config: Path) -> None:
    assert with_config(config, "gpu: h100", "--system=leonardo").gpu.name == "h100"


def test_lists_and_mappings_stand_for_options_that_may_be_repeated(config: Path) -> None:
    run = with_config(config, "delay: [0:1:5, 1:2:0.5]\nlabel: {fabric: ndr, nodes: 4, batch: 2.5}\n").run
    assert run.delay == [Delay(0, 1, 5.0), Delay(1, 2, 0.5)]
    assert run.label == {"fabric": "ndr", "nodes": "4", "batch": "2.5"}
    assert with_config(config, "label: [a=b, c=d]\n").run.label == {"a": "b", "c": "d"}


def test_a_delay_in_a_file_is_no_number_of_sixties(config: Path) -> None:
    assert with_config(config, "delay: 3:12:5\n").run.delay == [Delay(3, 12, 5.0)]


def test_false_and_null_and_no_record(config: Path) -> None:
    assert with_config(config, "record: false\n").run.record is None
    assert with_config(config, "no-record: true\n").run.record is None
    assert with_config(config, "record:\niterations: null\n").run.iterations == 10


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("iteration: 5", "unknown key iteration, did you mean iterations?"),
        ("zzz: 5", "unknown key zzz"),
        ("iterations: many", "--iterations: expected an integer of 1 or more, found 'many'"),
        ("iterations: 0", "--iterations: expected an integer of 1 or more, found '0'"),
        ("iterations: true", "iterations: expected a number or a text, found true"),
        ("iterations: [1, 2]", "iterations: expected a number or a text, found a list"),
        ("iterations: {a: 1}", "iterations: expected a number or a text, found a mapping"),
        ("until-ci: false", "until-ci: expected a number or a text, found false"),
        ("check: yes", "check: expected true or false, found 'yes'"),
        ("check: 1", "check: expected true or false, found 1"),
        ("check: [true]", "check: expected true or false, found a list"),
        ("no-record: false", "no-record: expected true or false, found false"),
        ("label: {a: [1]}", "label: expected a number or a text, found a list"),
        ("label: {a: null}", "label: expected a number or a text, found nothing"),
        ("label: fabric", "--label: expected KEY=VALUE"),
        ("compute: fast", "--compute: invalid choice: 'fast'"),
        ("config: other.yaml", "config belongs on the command line"),
        ("help: true", "help belongs on the command line"),
        ("ranks: 4", "ranks belongs on the command line"),
        ("launcher: srun", "launcher belongs on the command line"),
        ("launcher_args: -v", "launcher_args belongs on the command line"),
        ("dry-run: true", "dry-run belongs on the command line"),
        ('label: {a: "x\\ny"}', "expected UTF-8 text without control characters"),
        ("model: ''", "--model: expected a text, found ''"),
        ("label: &all {a: 1}\njob: *all", "found the alias *all; write the value out"),
        ("- iterations", "expected a mapping such as 'iterations: 20', found a list"),
        ("just words", "expected a mapping such as 'iterations: 20', found 'just words'"),
        ("", "empty; expected a mapping"),
        ("iterations: [1", "line 1"),
        ("iterations: 1\niterations: 2", "iterations' appears twice"),
        ("1: 2", "text key"),
    ],
)
def test_a_wrong_file_is_answered_in_one_line_that_names_it(config: Path, text: str, message: str) -> None:
    assert message in config_complaint(config, text)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "none.yaml"
    assert complaint("--config", str(missing)) == f"--config {missing}: no such file or directory"


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    assert complaint("--config", str(tmp_path)) == f"--config {tmp_path}: is a directory"


def test_a_binary_file_is_no_configuration(config: Path) -> None:
    config.write_bytes(bytes(range(128, 256)))
    assert f"--config {config}: not UTF-8 text" in complaint("--config", str(config))


def test_a_mistake_on_the_command_line_is_not_blamed_on_the_file(config: Path) -> None:
    config.write_text("iterations: 3\n", encoding="utf-8")
    message = complaint("--config", str(config), "--iterations=0")
    assert str(config) not in message


@pytest.mark.parametrize(
    ("text", "argv", "message"),
    [
        ("min-seconds: 9\nmax-seconds: 8", [], "--max-seconds 8 is less than --min-seconds 9"),
        ("min-seconds: 9", ["--max-seconds=8"], "--max-seconds 8 is less than --min-seconds 9"),
        ("buffers: host", ["--backend=nccl"], "--backend nccl: its buffers are in the memory of the GPU; leave out"),
    ],
)
def test_a_contradiction_that_needs_the_file_names_it(config: Path, text: str, argv: list[str], message: str) -> None:
    config.write_text(text, encoding="utf-8")
    assert complaint("--config", str(config), *argv).startswith(f"{config}: {message}")


def test_an_unknown_spec_in_a_file_names_it(config: Path) -> None:
    config.write_text("gpu: b2000", encoding="utf-8")
    assert complaint("--config", str(config), kind=SpecError).startswith(f"{config}: unknown gpu 'b2000'")


def test_a_contradiction_on_the_command_line_is_not_blamed_on_the_file(config: Path) -> None:
    config.write_text("iterations: 3\n", encoding="utf-8")
    argv = ["--min-seconds=9", "--max-seconds=8"]
    assert complaint("--config", str(config), *argv) == complaint(*argv)
