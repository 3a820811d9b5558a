"""What the documentation shows is true: its YAML loads, its links lead somewhere, its commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dlbench.specs import load_gpu, load_model, load_system
from dlbench.strategies import STRATEGIES

REPOSITORY = Path(__file__).parents[1]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CHANGELOG.md", *sorted((REPOSITORY / "docs").glob("*.md"))]


def yaml_example(name: str, folder: Path) -> str:
    """The README's example file of that name, written to the folder; returns its path."""
    found = re.search(rf"```yaml\n(# {name}:.*?)```", README, re.DOTALL)
    assert found, f"README.md has no example {name}"
    path = folder / name
    path.write_text(found[1], encoding="utf-8")
    return str(path)


def test_the_model_of_the_readme_loads_and_has_the_parameters_of_its_architecture(tmp_path: Path) -> None:
    model = load_model(yaml_example("my-model.yaml", tmp_path))
    attention = 2 * 2048 * 2048 + 2 * 2048 * 512
    layer = attention + 3 * 2048 * 8192 + 2 * 2048
    assert model.parameters == 2 * 32000 * 2048 + 24 * layer + 2048


def test_the_gpu_of_the_readme_loads(tmp_path: Path) -> None:
    gpu = load_gpu(yaml_example("my-gpu.yaml", tmp_path))
    assert (gpu.peak("bf16"), gpu.memory_bandwidth) == (400e12, 2e12)


def test_the_system_of_the_readme_loads_and_has_eight_nodes(tmp_path: Path) -> None:
    system = load_system(yaml_example("my-cluster.yaml", tmp_path))
    assert (system.gpu, system.topology.groups, system.topology.nodes_per_group) == ("a100-80gb", 1, 8)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_commands_of_the_first_screen_are_targets_of_the_makefile() -> None:
    first_screen = "\n".join(README.splitlines()[:12])
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    commands = re.findall(r"^    make (\w+)", first_screen, re.MULTILINE)
    assert commands == ["demo", "test"]
    assert all(re.search(rf"^{command}:", makefile, re.MULTILINE) for command in commands)


def test_every_image_is_shown_and_drawn_by_make_images() -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"^images: demo\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    for image in (REPOSITORY / "docs" / "images").iterdir():
        assert f"/{image.name} docs/images/" in recipe
        assert re.search(rf"!\[[^\]]+\]\(docs/images/{image.name}\)", README)


def test_ci_runs_the_test_command_of_the_readme() -> None:
    assert (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8").splitlines()[-1] == "exec make test"


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_stands_in_the_readme_the_documentation_and_the_demo(name: str) -> None:
    assert f"| `{name}` |" in README
    assert f"`{name}`" in (REPOSITORY / "docs" / "strategies.md").read_text(encoding="utf-8")
    assert re.search(rf"^demo {name} ", (REPOSITORY / "examples" / "demo.sh").read_text(), re.MULTILINE)
