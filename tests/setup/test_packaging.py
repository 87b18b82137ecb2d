"""The wheels, the locks and the version, as an installer sees them."""

import ast
import configparser
import contextlib
import email
import pathlib
import re
import subprocess
import sys
import tomllib
import zipfile

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tff_agnostic import checkout_commit, python_version_error

ROOT = pathlib.Path(__file__).absolute().parents[2]


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def version():
    # Read the version without importing the package, as the build does.
    for node in ast.parse((ROOT / "tff_agnostic/__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__version__":
            return ast.literal_eval(node.value)
    raise AssertionError("no literal __version__ in tff_agnostic/__init__.py")


def test_version_matches_changelog_and_citation():
    (number, date), *_ = re.findall(
        r"^## \[([\d.]+)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.M
    )
    assert version() == (f"{number}.dev0" if date == "unreleased" else number)
    assert f"version: {version()}\n" in (ROOT / "CITATION.cff").read_text()


# --- the wheel


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """The opened wheels of `./run build`: the package's, plan_runner's and fleet's."""
    folder = tmp_path_factory.mktemp("a folder") / "dist"
    # These folders may appear: simultaneous checks write caches, and the build downloads a missing
    # uv.
    caches = {".mypy_cache", ".pytest_cache", ".ruff_cache", ".uv"}
    before = caches | {path.name for path in ROOT.iterdir()}
    subprocess.run([ROOT / "run", "build", folder], check=True, stdin=subprocess.DEVNULL)
    assert {path.name for path in ROOT.iterdir()} <= before, "the build littered the checkout"
    names = (
        f"tff_agnostic-{version()}-py3-none-any.whl",
        f"plan_runner/tff_agnostic_plan_runner-{version()}-py3-none-any.whl",
        f"fleet/tff_agnostic_fleet-{version()}-py3-none-any.whl",
    )
    result = {path.relative_to(folder).as_posix() for path in folder.rglob("*.whl")}
    assert result == set(names)
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(zipfile.ZipFile(folder / name)) for name in names]


@pytest.fixture(scope="module")
def wheel(wheels):
    return wheels[0]


def metadata_file(wheel, name):
    (path,) = (path for path in wheel.namelist() if path.endswith(f".dist-info/{name}"))
    return wheel.read(path).decode()


def folder_modules(folder):
    return {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*.py")}


@pytest.mark.slow
def test_wheel_has_modules_and_configurations_only(wheel):
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    expected = folder_modules("tff_agnostic")
    expected |= {f"tff_agnostic/{path}" for path in folder_modules("binaries")}
    # The wheel includes these two packages, although they can be installed without it.
    expected |= folder_modules("plan_runner") | folder_modules("fleet")
    assert {name for name in names if name.endswith(".py")} == expected
    configs = {f"tff_agnostic/configs/{path.name}" for path in (ROOT / "configs").glob("*.flags")}
    assert {name for name in names if name.endswith(".flags")} == configs
    assert not [name for name in names if name.endswith((".bazel", ".bzl", ".pyc"))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "folder", "more", "needs"),
    [
        (1, "plan_runner", set(), "tensorflow"),
        (2, "fleet", {"fleet/requirements.lock"}, "tff-agnostic-plan-runner"),
    ],
)
def test_small_wheels_have_one_package(wheels, wheel, number, folder, more, needs):
    small = wheels[number]
    names = {name for name in small.namelist() if ".dist-info/" not in name}
    assert names == {name for name in wheel.namelist() if name.startswith(f"{folder}/")} | more
    assert metadata_file(small, "licenses/LICENSE") == (ROOT / "LICENSE").read_text()
    metadata = email.message_from_string(metadata_file(small, "METADATA"))
    required = {Requirement(line).name for line in metadata.get_all("Requires-Dist")}
    assert needs in required and "tff-agnostic" not in required


@pytest.mark.slow
def test_wheel_has_metadata_licence_and_program(wheel):
    assert metadata_file(wheel, "licenses/LICENSE") == (ROOT / "LICENSE").read_text()
    message = email.message_from_string(metadata_file(wheel, "METADATA"))
    assert message.get_payload().strip() == (ROOT / "README.md").read_text().strip()
    parser = configparser.ConfigParser()
    parser.read_string(metadata_file(wheel, "entry_points.txt"))
    ((name, target),) = parser["console_scripts"].items()
    assert name == "tff-agnostic"
    module, function = target.split(":")
    tree = ast.parse(wheel.read(module.replace(".", "/") + ".py"))
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def imported(folder):
    """Yields (file and line, top-level package) of each import in a folder."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module if not node.level else folder]
            else:
                continue
            for name in names:
                yield f"{path}:{node.lineno}", name.split(".")[0]


# Names of distributions, keyed by modules that are named differently.
DISTRIBUTIONS = {
    "PIL": "pillow",
    "absl": "absl-py",
    # TensorFlow depends on protobuf, and restricts its versions.
    "google": "tensorflow",
    "grpc": "grpcio",
    "keras": "tensorflow",
    "pkg_resources": "setuptools",
    "sklearn": "scikit-learn",
}


@pytest.mark.slow
def test_every_imported_package_is_a_dependency(project):
    """Installed modules import neither benchmarks nor `binaries`, whose name there is another."""
    asked = {Requirement(text).name for text in project["project"]["dependencies"]}
    for extra in project["project"]["optional-dependencies"].values():
        asked |= {Requirement(text).name for text in extra}
    fleet = tomllib.loads((ROOT / "fleet" / "pyproject.toml").read_text())
    asked |= {Requirement(text).name for text in fleet["project"]["dependencies"]}
    asked = {canonicalize_name(name) for name in asked}
    actual = {"fleet", "plan_runner", "tff_agnostic"}
    for folder in (*actual, "binaries"):
        for place, name in imported(folder):
            if name not in actual and name not in sys.stdlib_module_names:
                distribution = canonicalize_name(DISTRIBUTIONS.get(name, name))
                assert distribution in asked, f"{place}: {name}"


# --- the lock


PACKAGE, DOCS = "requirements.lock", "requirements-docs.lock"


def environment(python):
    return {
        **default_environment(),
        "implementation_name": "cpython",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{python}.7",
        "python_version": python,
        "sys_platform": "linux",
    }


@pytest.mark.parametrize("lock", [PACKAGE, DOCS])
def test_locks_name_no_index(lock):
    text = (ROOT / lock).read_text()
    assert "://" not in text and "-url" not in text
    assert not re.search(r"(^|\s)/", text, re.MULTILINE)


def pins(lock, python):
    """Returns the versions that a lock pins for a version of CPython, by package."""
    here, versions = environment(python), {}
    for line in re.findall(r"^\w[^\\\n]*", (ROOT / lock).read_text(), re.MULTILINE):
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate(here):
            name = canonicalize_name(requirement.name)
            assert name not in versions, f"{name} is locked twice"
            (pin,) = requirement.specifier
            versions[name] = pin.version
    return versions


@pytest.mark.parametrize(
    ("lock", "python"), [(DOCS, "3.11"), *((PACKAGE, f"3.{minor}") for minor in (11, 12, 13))]
)
def test_locks_satisfy_project_requirements(project, lock, python):
    if lock == DOCS:
        needed = project["dependency-groups"]["docs"]
    else:
        needed = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
        for extra in project["project"]["optional-dependencies"].values():
            needed += extra
    versions, here = pins(lock, python), environment(python)
    for requirement in map(Requirement, needed):
        if requirement.marker is None or requirement.marker.evaluate(here):
            name = canonicalize_name(requirement.name)
            assert name in versions, f"{requirement} is not in the lock: ./run lock"
            assert requirement.specifier.contains(versions[name]), (requirement, versions[name])


def test_package_rejects_the_pythons_that_pip_rejects(project):
    asked = SpecifierSet(project["project"]["requires-python"])
    for minor in range(9, 16):
        refusal = python_version_error((3, minor))
        assert bool(refusal) == (f"3.{minor}" not in asked)
        assert not refusal or f"expected CPython 3.11 to 3.13, found 3.{minor}, which" in refusal
    assert "TensorFlow 2.21 has no wheels" in refusal


def test_checkout_commit_is_the_git_commit():
    if not (ROOT / ".git").exists():
        assert checkout_commit() == {}
        return
    read = ("git", "-C", str(ROOT), "rev-parse", "HEAD")
    commit = subprocess.run(read, capture_output=True, text=True, check=True).stdout.strip()
    assert commit.startswith(checkout_commit()["commit"].removesuffix("-dirty"))
