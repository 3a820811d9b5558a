"""`dlbench calibrate`, as a user sees it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from host_device import HostDriver
from timed_device import TERA, PowerMeter, TimedDevice, TimedDriver

from dlbench import __version__
from dlbench.cli.calibrate import calibrate
from dlbench.errors import OptionError, PreflightError, SpecError
from dlbench.runtime.calibration import Effort, Shape
from dlbench.specs import load_gpu

Command = Callable[..., str]
QUICK = ("--min-seconds", "1e-9")
EFFORT = Effort(shapes=(Shape("square", 256, 256, 256, 0), Shape("projection", 512, 256, 128, 4)), sample_seconds=1e-6)
SEE = "; see 'dlbench calibrate --help'"


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Run the command in an empty folder, on a GPU of 100 TFLOP/s and 2 TB/s: its stdout."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, driver: HostDriver | None = None) -> str:
        calibrate([*QUICK, *arguments], lambda: driver or TimedDriver(TimedDevice()), EFFORT)
        output = capsys.readouterr()
        assert output.err == ""
        return output.out

    return run


def refused(call: Command, *arguments: str, kind: type[Exception] = OptionError, **options: Any) -> str:
    """The error that the arguments lead to; nothing is written."""
    before = sorted(Path().iterdir())
    with pytest.raises(kind) as caught:
        call(*arguments, **options)
    assert sorted(Path().iterdir()) == before
    return str(caught.value)


def test_the_table_has_every_product_the_layer_and_the_memory(call: Command) -> None:
    lines = call("--precision", "bf16").splitlines()
    assert lines[0] == f"# dlbench {__version__} calibrate"
    assert lines[1] == "# device     host:0 host memory, 68.72 GB"
    assert lines[2] == "# software   driver 12.4, runtime 12.4, CuPy 14.2.0"
    assert lines[3].split() == ["measured", "of", "rows×columns×k", "rounds", "median", "low", "high"]
    cells = [[cell for cell in line.split("  ") if cell] for line in lines[4:-1]]
    rate = ["10", "100.0 TFLOP/s", "100.0 TFLOP/s", "100.0 TFLOP/s"]
    assert [[part.strip() for part in row] for row in cells] == [
        ["bf16", "square", "256×256×256", *rate],
        ["bf16", "projection", "512×256×128", *rate],
        ["bf16", "layer", "-", *rate],
        ["memory", "copy of 1.074 GB", "-", "10", "2.000 TB/s", "2.000 TB/s", "2.000 TB/s"],
    ]
    assert lines[-1] == "# written    measured.yaml: the layers and the bandwidth; use it with --gpu measured.yaml"


def test_the_file_is_a_gpu_by_its_path(call: Command) -> None:
    call()
    gpu = load_gpu("measured.yaml")
    assert gpu.peak("bf16") == 100 * TERA
    assert list(gpu.peak_flops) == ["bf16", "fp16", "tf32", "fp32", "fp64"]
    assert f"measured by dlbench {__version__} calibrate on 20" in gpu.source["memory_bandwidth"]


def test_with_a_datasheet_layers_and_memory_are_shares_of_it(call: Command) -> None:
    # Of the H100: bf16 989 TFLOP/s, fp32 67 TFLOP/s, 3.35 TB/s.
    out = call("--precision", "bf16", "--precision", "fp32", "--gpu", "h100")
    shares = {line.split()[0]: line.split()[-2] for line in out.splitlines() if line.endswith("%")}
    assert shares == {"bf16": "10.1", "fp32": "149.3", "memory": "59.7"}
    assert "# datasheet  h100\n# note       fp32 above the datasheet of h100: is it that of host memory?" in out


def test_json_has_device_rates_bandwidth_shares_and_spec(call: Command) -> None:
    document = json.loads(call("--json", "--precision", "bf16", "--gpu", "h100", "-o", "mine.yaml"))
    assert document["dlbench"] == __version__
    assert document["device"]["uuid"] == "HOST-0"
    assert [rate["shape"] for rate in document["rates"]] == ["square", "projection", "layer"]
    assert [rate["rows"] for rate in document["rates"]] == [256, 512, None]
    layer = document["rates"][-1]
    assert (layer["precision"], layer["count"]) == ("bf16", 10)
    assert layer["median"] == pytest.approx(100 * TERA)
    assert layer["interval"]["coverage"] > 0.95
    assert document["memory_bandwidth"]["copied_bytes"] == 2**30
    assert document["shares"] == pytest.approx({"bf16": 100 / 989, "memory_bandwidth": 2 / 3.35})
    assert (document["datasheet"], document["output"], document["notes"]) == ("h100", "mine.yaml", [])
    assert document["spec"]["peak_flops"] == load_gpu("mine.yaml").peak_flops
    assert document["power_limit_watts"] is None


def test_json_without_a_datasheet_has_no_shares(call: Command) -> None:
    document = json.loads(call("--json"))
    assert (document["datasheet"], document["shares"]) == (None, None)


def test_the_power_limit_is_shown_and_the_meter_closed(call: Command) -> None:
    meter = PowerMeter(700.0)
    out = call(driver=TimedDriver(TimedDevice(), meter=meter))
    assert "# device     host:0 host memory, 68.72 GB, power limit 700 W\n" in out
    assert meter.closed
    assert "power limit 700 W" in load_gpu("measured.yaml").source["peak_flops"]


def test_a_missing_precision_is_a_note(call: Command) -> None:
    out = call(driver=TimedDriver(TimedDevice(precisions=("fp16", "fp32", "tf32", "fp64"))))
    assert "# note       bf16 is left out: no bf16 products on host:0\n" in out


def test_a_file_that_is_there_is_refused_before_anything_is_measured(call: Command) -> None:
    Path("measured.yaml").write_text("mine", encoding="utf-8")
    device = TimedDevice()
    message = refused(call, driver=TimedDriver(device))
    assert message == "measured.yaml exists; use --force to replace it, or -o for another file"
    assert device.measurements == 0
    assert Path("measured.yaml").read_text(encoding="utf-8") == "mine"


def test_with_force_it_is_replaced_and_no_half_of_it_is_left(call: Command) -> None:
    Path("measured.yaml").write_text("mine", encoding="utf-8")
    call("--force")
    assert load_gpu("measured.yaml").memory_bandwidth == 2 * TERA
    assert [entry.name for entry in Path().iterdir()] == ["measured.yaml"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["-o", "measured.json"], f"argument -o/--output: expected a file NAME.yaml, found 'measured.json'{SEE}"),
        (["-o", "no/such.yaml"], "no/such.yaml: there is no folder no"),
        (["--device", "1"], "--device 1: there is only GPU 0"),
        (["--device", "-1"], f"argument --device: expected an integer of 0 or more, found '-1'{SEE}"),
        (["--min-seconds", "0"], f"argument --min-seconds: expected a number above 0, found '0'{SEE}"),
        (["--presicion", "bf16"], f"unknown option --presicion, did you mean --precision?{SEE}"),
    ],
)
def test_wrong_options_are_one_line_and_nothing_is_written(call: Command, arguments: list[str], told: str) -> None:
    assert refused(call, *arguments) == told


def test_a_precision_that_nothing_multiplies_is_refused_with_those_that_are(call: Command) -> None:
    message = refused(call, "--precision", "fp8")
    assert message.startswith("argument --precision: invalid choice: 'fp8'")
    assert all(precision in message for precision in ("bf16", "fp16", "tf32", "fp32", "fp64"))


def test_of_several_gpus_those_that_are_there_are_told(call: Command) -> None:
    driver = TimedDriver(TimedDevice(), gpus=4)
    assert refused(call, "--device", "4", driver=driver) == "--device 4: there are GPUs 0 to 3"


def test_an_unknown_datasheet_is_refused_before_anything_is_measured(call: Command) -> None:
    message = refused(call, "--gpu", "h10", kind=SpecError)
    assert message.startswith("unknown gpu 'h10'; did you mean 'h100'?")


def test_a_host_without_a_gpu_is_refused(call: Command) -> None:
    assert refused(call, kind=PreflightError, driver=HostDriver(gpus=0)) == "the host device has no GPU"


def test_long_measurements_tell_how_far_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dlbench.cli.selection._SECONDS_BETWEEN_LINES", 0.0)
    calibrate([*QUICK, "--precision", "bf16"], lambda: TimedDriver(TimedDevice()), EFFORT)
    assert capsys.readouterr().err.splitlines() == [f"dlbench: {done} of 2 rates measured" for done in range(3)]


def in_a_shell(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dlbench", "calibrate", *arguments],
        cwd=folder,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_without_a_gpu_the_command_ends_with_one_line_and_exit_code_2(tmp_path: Path) -> None:
    ended = in_a_shell(tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("dlbench: ")
    assert ended.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_help_says_what_is_measured_and_how_to_use_it(tmp_path: Path) -> None:
    ended = in_a_shell(tmp_path, "--help")
    assert ended.returncode == 0
    assert "dlbench run dp -n 8 --gpu measured.yaml" in ended.stdout
    assert "--precision {bf16,fp16,tf32,fp32,fp64}" in ended.stdout
