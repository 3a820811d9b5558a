"""Every way to get dlbench gives the same one: pip install, editable, a checkout, a source distribution."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
LINKS = ("strategies", "allocators", "slurm", "analysis")
WAYS = ("pip install .", "pip install -e .", "checkout", "sdist")

pytestmark = pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="needs a git checkout")


@dataclass(frozen=True)
class Environment:
    """A place from which dlbench runs."""

    python: Path
    command: tuple[str, ...]
    folder: Path

    def output(self, *command: str) -> str:
        return run(*command, cwd=self.folder)

    def package(self) -> Path:
        script = "import dlbench; print(dlbench.__path__[0])"
        return Path(self.output(str(self.python), "-c", script).strip())


def run(*command: str | Path, cwd: Path) -> str:
    finished = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, f"{command}\n{finished.stdout}{finished.stderr}"
    return finished.stdout


def contents(package: Path) -> dict[str, str]:
    """Relative path and SHA-256 of every file of the package, byte code aside."""
    files = (path for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {str(path.relative_to(package)): sha256(path.read_bytes()).hexdigest() for path in files}


def listed(source: Path) -> list[str]:
    """Files of the checkout that git tracks or would track, links included."""
    names = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=source).split("\0")
    return [name for name in names if name and ((source / name).exists() or (source / name).is_symlink())]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository as a fresh clone would have it."""
    copy = tmp_path_factory.mktemp("clone") / "dlbench"
    for name in listed(REPOSITORY):
        target = copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPOSITORY / name, target, follow_symlinks=False)
    return copy


@pytest.fixture(scope="module")
def sdist(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder), cwd=checkout)
    (archive,) = folder.glob("*.tar.gz")
    return archive


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=checkout)
    (archive,) = folder.glob("*.whl")
    return archive


def environment(folder: Path) -> Path:
    """An environment that sees the dependencies of this one, but not its dlbench; returns its interpreter."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    site_packages = Path(run(python, "-c", "import site; print(site.getsitepackages()[0])", cwd=folder).strip())
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


@pytest.fixture(scope="module")
def environment_of(
    checkout: Path, sdist: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Environment]:
    requirements = {
        "pip install .": (str(checkout),),
        "pip install -e .": ("--editable", str(checkout)),
        "sdist": (str(sdist),),
    }
    ready: dict[str, Environment] = {}

    def prepare(way: str) -> Environment:
        folder = tmp_path_factory.mktemp("environment")
        python = environment(folder)
        if way == "checkout":
            return Environment(python, (str(python), "-m", "dlbench"), checkout)
        pip = (sys.executable, "-m", "pip", "--python", str(python))
        run(*pip, "install", "--quiet", "--no-deps", "--no-build-isolation", *requirements[way], cwd=folder)
        return Environment(python, (str(folder / "bin" / "dlbench"),), folder)

    def get(way: str) -> Environment:
        if way not in ready:
            ready[way] = prepare(way)
        return ready[way]

    return get


@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_every_file_of_the_package_unchanged(
    way: str, environment_of: Callable[[str], Environment], checkout: Path
) -> None:
    assert contents(environment_of(way).package()) == contents(checkout / "dlbench")


@pytest.mark.parametrize("way", WAYS)
def test_every_way_runs_its_own_files_and_no_others(
    way: str, environment_of: Callable[[str], Environment], checkout: Path
) -> None:
    found = environment_of(way)
    home = checkout if way in {"pip install -e .", "checkout"} else found.folder
    assert found.package().is_relative_to(home)


@pytest.mark.parametrize("arguments", [("--version",), ("models", "--json")], ids=" ".join)
def test_every_way_gives_the_same_commands(
    arguments: tuple[str, ...], environment_of: Callable[[str], Environment]
) -> None:
    found = {way: environment_of(way) for way in WAYS}
    answers = {way: place.output(*place.command, *arguments) for way, place in found.items()}
    assert answers == dict.fromkeys(WAYS, answers["checkout"])
    assert answers["checkout"].strip()


def test_the_package_ships_its_data(checkout: Path) -> None:
    suffixes = Counter(Path(name).suffix for name in contents(checkout / "dlbench"))
    assert "py.typed" in contents(checkout / "dlbench")
    assert suffixes[".yaml"] >= 9 + 7
    assert suffixes[".json"] >= 1
    assert suffixes[".j2"] >= 1


def test_the_wheel_holds_the_package_and_its_metadata_only(wheel: Path, checkout: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    package = {name for name in names if name.startswith("dlbench/")}
    assert package == {f"dlbench/{name}" for name in contents(checkout / "dlbench")}
    metadata = "-".join(wheel.name.split("-")[:2]) + ".dist-info"
    assert {Path(name).parts[0] for name in set(names) - package} == {metadata}
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert len(names) == len(set(names))


def test_the_source_distribution_holds_each_file_once(sdist: Path, checkout: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = [Path(*Path(member.name).parts[1:]) for member in archive.getmembers()]
        links = [member.name for member in archive.getmembers() if member.issym() or member.islnk()]
    assert len(names) == len(set(names))
    assert links == []
    assert {str(name) for name in names if name.parts[0] == "dlbench"} == {
        f"dlbench/{name}" for name in contents(checkout / "dlbench")
    }
    assert not {name.parts[0] for name in names} & set(LINKS)
    assert {"Makefile", "LICENSE", "README.md", "CHANGELOG.md"} <= {str(name) for name in names}


@pytest.mark.parametrize("name", LINKS)
def test_the_top_level_names_are_relative_links_into_the_package(name: str) -> None:
    link = REPOSITORY / name
    assert link.is_symlink()
    assert link.readlink() == Path("dlbench") / name
    assert (link / "__init__.py").is_file()


def test_the_version_of_the_package_is_the_version_of_the_distribution(
    environment_of: Callable[[str], Environment], sdist: Path
) -> None:
    found = environment_of("pip install .")
    script = (
        "import dlbench, importlib.metadata, json;"
        "print(json.dumps([dlbench.__version__, importlib.metadata.version('dlbench')]))"
    )
    package, distribution = json.loads(found.output(str(found.python), "-c", script))
    assert package == distribution
    assert sdist.name == f"dlbench-{package}.tar.gz"
