"""Loading: by name, by path, and what is said about a file that is no spec."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbench.errors import SpecError
from dlbench.specs import load_gpu, load_model, load_system
from dlbench.specs.reading import read_yaml

MODEL = """\
name: mine
family: decoder
hidden_size: 8
layers: 2
heads: 4
kv_heads: 2
feed_forward_size: 16
vocabulary_size: 10
sequence_length: 6
source: by hand
"""
GPU = """\
name: mine
vendor: nobody
peak_flops: {bf16: 1e12, fp8: 2E+12}
memory_bandwidth: 1.5e9
memory_bytes: 80_000_000_000
source: {peak_flops: guess, memory_bandwidth: guess, memory_bytes: guess}
"""


def written(tmp_path: Path, content: str | bytes, name: str = "mine.yaml") -> Path:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def message(load: Callable[[str], object], path: Path) -> str:
    """What is said about the file, after its name; one line."""
    with pytest.raises(SpecError) as caught:
        load(str(path))
    text = str(caught.value)
    assert caught.value.exit_code == 2
    assert "\n" not in text
    assert text.startswith(f"{path}: ")
    return text.removeprefix(f"{path}: ")


@pytest.mark.parametrize("name", ["mine.yaml", "mine.yml", "without-suffix"])
def test_a_file_of_ones_own_is_loaded_by_its_path(tmp_path: Path, name: str) -> None:
    assert load_model(str(written(tmp_path, MODEL, name))).name == "mine"


def test_a_file_in_the_working_directory_needs_only_its_suffix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, MODEL)
    monkeypatch.chdir(tmp_path)
    assert load_model("mine.yaml").name == "mine"


def test_a_path_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, MODEL)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_model("~/mine.yaml").name == "mine"


def test_numbers_may_be_written_with_exponents_and_underscores(tmp_path: Path) -> None:
    gpu = load_gpu(str(written(tmp_path, GPU)))
    assert gpu.peak_flops == {"bf16": 1e12, "fp8": 2e12}
    assert gpu.memory_bandwidth == 1.5e9
    assert gpu.memory_bytes == 80_000_000_000


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    assert load_model(str(written(tmp_path, b"\xef\xbb\xbf" + MODEL.encode()))).name == "mine"


def test_a_file_may_stand_for_a_shipped_spec(tmp_path: Path) -> None:
    assert load_gpu(str(written(tmp_path, "same_as: b200"))) == load_gpu("b200")


def test_a_second_name_never_leads_to_a_third(tmp_path: Path) -> None:
    second = written(tmp_path, "same_as: h100", "second.yaml")
    third = written(tmp_path, f"same_as: {second}", "third.yaml")
    with pytest.raises(SpecError, match=re.escape(f"{second}: at same_as: unknown key 'same_as'")):
        load_gpu(str(third))


@pytest.mark.parametrize(
    ("load", "name", "start"),
    [
        (load_model, "llama-8b", "unknown model 'llama-8b'; did you mean 'llama3-8b'? valid: gpt2-l, gpt2-xl, "),
        (load_model, "ViT-H", "unknown model 'ViT-H'; did you mean 'vit-h'? valid: gpt2-l, "),
        (load_model, "zzz", "unknown model 'zzz'; valid: gpt2-l, "),
        (load_model, "", "unknown model ''; valid: gpt2-l, "),
        (load_gpu, "b20", "unknown gpu 'b20'; did you mean 'b200'? valid: a100, "),
        (load_system, "leonard", "unknown system 'leonard'; did you mean 'leonardo'? valid: alps, "),
    ],
)
def test_an_unknown_name_is_answered_with_the_closest_and_all_others(
    load: Callable[[str], object], name: str, start: str
) -> None:
    with pytest.raises(SpecError) as caught:
        load(name)
    text = str(caught.value)
    assert text.startswith(start)
    assert text.endswith("; or the path of a YAML file")


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    assert message(load_model, tmp_path / "nothing.yaml") == "no such file or directory"


def test_a_directory_is_said_to_be_one(tmp_path: Path) -> None:
    assert message(load_model, tmp_path) == "is a directory"


def test_a_pipe_or_a_device_is_never_opened(tmp_path: Path) -> None:
    pipe = tmp_path / "mine.yaml"
    os.mkfifo(pipe)
    assert message(load_model, pipe) == "is a pipe or a device; expected a YAML file"
    assert message(load_model, Path("/dev/zero")) == "is a pipe or a device; expected a YAML file"


def test_a_file_too_large_for_a_spec_is_not_parsed(tmp_path: Path) -> None:
    path = written(tmp_path, b"# comment\n" * 10_001)
    assert message(load_model, path) == "is larger than 100 kB; expected a spec or a configuration"


def test_the_home_of_nobody_is_no_folder() -> None:
    path = Path("~nobody-of-this-name/mine.yaml")
    assert message(load_model, path) == "found no home folder; write the whole path"


def test_a_path_that_no_file_can_have_is_refused() -> None:
    with pytest.raises(SpecError, match=r"^a\\x00\.yaml: .*null byte"):
        load_model("a\0.yaml")


def test_text_in_another_encoding_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, b"name: caf\xe9\n")
    assert message(load_model, path) == "not UTF-8 text (byte 9); save the file as UTF-8"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "is empty; expected a mapping"),
        ("# only a comment\n", "is empty; expected a mapping"),
        ("- a\n- b\n", "expected a mapping, found a list"),
        ("just words", 'expected a mapping, found "just words"'),
        ("42", "expected a mapping, found 42"),
        ("{}", "at name: missing; expected text"),
    ],
)
def test_a_file_that_holds_no_mapping_is_refused(tmp_path: Path, content: str, expected: str) -> None:
    assert message(load_model, written(tmp_path, content)) == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a: [1, 2\n", "line 2, column 1: not valid YAML: .*"),
        ("a: 1\n  b: 2\n", "line 2, column 4: not valid YAML.*"),
        ("a: 1\nb: 2\na: 3\n", "line 3, column 1: key 'a' appears twice"),
        ("x: {a: 1, a: 2}\n", "line 1, column 11: key 'a' appears twice"),
        ("1: x\n", "line 1, column 1: expected a text key"),
        ("? [a]\n: b\n", "line 1, column 3: expected a text key"),
        ("a: 1\n---\nb: 2\n", "line 2, column 1: not valid YAML: .*"),
        ("a: 1e999\n", "line 1, column 4: expected a finite number, found 1e999"),
        (f"a: {'9' * 5000}\n", "line 1, column 4: expected an integer of fewer digits"),
        ("a: !!timestamp 2001-01-01\n", "line 1, column 4: expected a value without a tag, found .*timestamp"),
        (
            "a: !!python/object/apply:os.system [ls]\n",
            "line 1, column 4: expected a value without a tag, found .*os.system",
        ),
        ('a: "\\ud800"\n', "line 1, column 4: expected Unicode text, found half of a surrogate pair"),
        ("a: !!map [b]\n", "line 1, column 4: expected a value without a tag, found .*map"),
        ("? !!str [a]\n: b\n", "line 1, column 3: expected a value without a tag, found .*str"),
        ("a: *nobody\n", r"line 1, column 4: expected a value, found the alias \*nobody; write the value out"),
        ("a: &x [*x]\n", r"line 1, column 8: expected a value, found the alias \*x; .*"),
        ("a: &x [1]\nb: &y [*x, *x]\n", r"line 2, column 8: expected a value, found the alias \*x; .*"),
        ("? *x\n: b\n", r"line 1, column 3: expected a value, found the alias \*x; .*"),
        ("a: 9223372036854775808\n", "line 1, column 4: expected an integer of fewer digits"),
        ("a: \x07\n", "not valid YAML: .*"),
        ("[" * 10_000, "nested too deeply; expected a plain mapping"),
    ],
)
def test_invalid_yaml_is_one_line_with_the_place(tmp_path: Path, content: str, expected: str) -> None:
    assert re.fullmatch(expected, message(load_model, written(tmp_path, content)))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e12", 1e12),
        ("2.25E+15", 2.25e15),
        (".5", 0.5),
        ("5.", 5.0),
        ("-1e-3", -1e-3),
        ("80_000", 80_000),
        ("-9223372036854775807", 1 - 2**63),
        ("0", 0),
        ("~", None),
        ("true", True),
        ("False", False),
        ("012", "012"),
        ("1:30", "1:30"),
        ("no", "no"),
        ("on", "on"),
        (".nan", ".nan"),
        (".inf", ".inf"),
        ("2024-01-01", "2024-01-01"),
        ("0x10", "0x10"),
        ("1_", "1_"),
        ("1__0", "1__0"),
        ("1__0e5", "1__0e5"),
        ("1_000.5", 1000.5),
        ("12.2.0", "12.2.0"),
        ("'1'", "1"),
    ],
)
def test_a_scalar_means_what_it_looks_like(tmp_path: Path, text: str, value: object) -> None:
    read = read_yaml(written(tmp_path, f"a: {text}\n"))["a"]
    assert (read, type(read)) == (value, type(value))


@given(st.floats(min_value=1e-300, allow_infinity=False))
def test_every_finite_number_survives_a_file(tmp_path_factory: pytest.TempPathFactory, number: float) -> None:
    path = written(tmp_path_factory.mktemp("numbers"), f"a: {number!r}\n")
    assert read_yaml(path)["a"] == number


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("hidden_size: 8", 'hidden_size: "big"', 'at hidden_size: expected an integer >= 1, found "big"'),
        ("hidden_size: 8", "hidden_size: 0", "at hidden_size: expected an integer >= 1, found 0"),
        ("hidden_size: 8", "hidden_size: -8", "at hidden_size: expected an integer >= 1, found -8"),
        ("hidden_size: 8", "hidden_size: 8.5", "at hidden_size: expected an integer >= 1, found 8.5"),
        ("hidden_size: 8", "hidden_size: true", "at hidden_size: expected an integer >= 1, found true"),
        ("hidden_size: 8", "hidden_size:", "at hidden_size: expected an integer >= 1, found null"),
        ("hidden_size: 8", "hidden_size: [8]", "at hidden_size: expected an integer >= 1, found a list"),
        ("hidden_size: 8", "hidden_size: {a: 8}", "at hidden_size: expected an integer >= 1, found a mapping"),
        ("hidden_size: 8\n", "", "at hidden_size: missing; expected an integer >= 1"),
        ("name: mine", "name: 7", "at name: expected text, found 7; put it in quotes"),
        ("name: mine", "name: ''", 'at name: expected text, found ""'),
        ("family: decoder", "family: bert", 'at family: expected one of decoder, gpt2, vit, found "bert"'),
        ("kv_heads: 2", "kv_heads: 3", "at kv_heads: expected a divisor of heads = 4, found 3"),
        (
            "hidden_size: 8",
            "hiden_size: 8",
            "at hiden_size: unknown key 'hiden_size'; did you mean 'hidden_size'? valid: name, family, hidden_size, "
            "layers, heads, kv_heads, feed_forward_size, vocabulary_size, sequence_length, experts, active_experts, "
            "patch_size, source",
        ),
    ],
)
def test_a_wrong_model_file_is_answered_with_the_place_and_what_would_be_right(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    assert old in MODEL
    assert message(load_model, written(tmp_path, MODEL.replace(old, new))) == expected


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("bf16: 1e12", "bf16: fast", 'at peak_flops.bf16: expected a number > 0, found "fast"'),
        ("bf16: 1e12", "bf16: -1", "at peak_flops.bf16: expected a number > 0, found -1"),
        ("bf16: 1e12", "bf16: .nan", 'at peak_flops.bf16: expected a number > 0, found ".nan"'),
        ("bf16: 1e12", "bf16: true", "at peak_flops.bf16: expected a number > 0, found true"),
        (
            "bf16: 1e12",
            "bf17: 1e12",
            "at peak_flops: expected dtypes out of bf16, fp16, fp32, tf32, fp64, fp8, found bf17",
        ),
        ("memory_bandwidth: 1.5e9", "memory_bandwidth: 0", "at memory_bandwidth: expected a number > 0, found 0"),
        (
            ", memory_bytes: guess",
            "",
            "at source: expected a source for each of peak_flops, memory_bandwidth, "
            "memory_bytes, found peak_flops, memory_bandwidth",
        ),
    ],
)
def test_a_wrong_gpu_file_is_answered_with_the_place_and_what_would_be_right(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    assert old in GPU
    assert message(load_gpu, written(tmp_path, GPU.replace(old, new))) == expected


def test_a_long_value_is_shortened_in_the_message(tmp_path: Path) -> None:
    path = written(tmp_path, MODEL.replace("layers: 2", f"layers: {'x' * 500}"))
    assert message(load_model, path) == f'at layers: expected an integer >= 1, found "{"x" * 59}…'


@given(st.binary(max_size=200))
def test_whatever_a_file_holds_the_answer_is_a_spec_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    message(load_model, written(tmp_path_factory.mktemp("noise"), content))


YAML_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(MODEL.split()[::2]).map(lambda key: key.rstrip(":")), YAML_VALUES)
def test_whatever_a_field_holds_the_answer_is_a_model_or_a_spec_error(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: Any
) -> None:
    path = tmp_path_factory.mktemp("fields") / "mine.yaml"
    lines = [line for line in MODEL.splitlines() if not line.startswith(f"{key}:")]
    path.write_text("\n".join([*lines, f"{key}: {json.dumps(value)}"]))
    try:
        load_model(str(path))
    except SpecError as error:
        assert str(error).startswith(f"{path}: ")
        assert "\n" not in str(error)


def test_a_rank_that_is_sent_its_specs_never_loads_yaml() -> None:
    program = """
import sys
import dlbench.specs
heavy = {"yaml", "difflib", "importlib.resources", "numpy", "typer", "rich"} & set(sys.modules)
sys.exit(f"loaded {heavy}" if heavy else 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
