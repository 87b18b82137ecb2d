"""How `run` gets uv and a CPython; with the real uv, where there is one, and with the real pip."""

import base64
import hashlib
import io
import json
import pathlib
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

from tests.setup.checkout import ROOT, STUB_UV, one_line, told

_ON_DEBIAN, _ON_FEDORA = "(Debian", "(Fedora)"
_ONE = "one-1-py3-none-any.whl"
# A CPython of 3.11 that only hands over to this one.
_HANDS_OVER = f'#!/bin/sh\nexec "{pathlib.Path(sys._base_executable).resolve()}" "$@"\n'


@pytest.fixture(scope="module")
def uv():
    """The uv that this environment was made with, or the one on PATH."""
    for path in (ROOT / ".venv" / ".uv" / "bin" / "uv", shutil.which("uv")):
        if path and pathlib.Path(path).exists():
            return path
    pytest.skip("this environment was not made with uv, and none is on PATH")


@pytest.fixture
def online(bare, uv):
    """A checkout on a machine with uv alone, whose lock and whose network are one package."""
    (bare.bin / "uv").symlink_to(uv)
    digest = _wheel(bare.state / _ONE, {"one.py": "print('one')"})
    index = bare.state / "index" / "one" / "index.html"
    index.parent.mkdir(parents=True)
    index.write_text(f'<a href="{(bare.state / _ONE).as_uri()}">{_ONE}</a>')
    (bare.root / "requirements.lock").write_text(f"one==1 --hash=sha256:{digest}\n")
    no_python = bare.state / "no_downloads.json"
    no_python.write_text("{}")
    settings = {
        "UV_DEFAULT_INDEX": (bare.state / "index").as_uri(),
        "UV_PYTHON_DOWNLOADS_JSON_URL": no_python.as_uri(),
    }
    return bare, settings


def _fetched(checkout):
    """A list of downloads with one CPython, and the setting that names it."""
    archive = checkout.state / "cpython.tar.gz"
    config = "# system configuration generated and used by the sysconfig module\n"
    files = {
        "bin/python3.11": _HANDS_OVER,
        "lib/python3.11/_sysconfigdata__linux_x86_64-linux-gnu.py": config + "build_time_vars = {}",
    }
    with tarfile.open(archive, "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(f"python/{name}")
            member.size, member.mode = len(text), 0o755
            tar.addfile(member, io.BytesIO(text.encode()))
    download = {
        "name": "cpython",
        "arch": {"family": "x86_64", "variant": None},
        "os": "linux",
        "libc": "gnu",
        "major": 3,
        "minor": 11,
        "patch": 18,
        "prerelease": "",
        "url": archive.as_uri(),
        "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
        "variant": None,
        "build": "20261110",
    }
    downloads = checkout.state / "downloads.json"
    downloads.write_text(json.dumps({"cpython-3.11.18-linux-x86_64-gnu": download}))
    return {"UV_PYTHON_DOWNLOADS_JSON_URL": downloads.as_uri()}


def _wheel(path, files):
    """Writes a wheel, and returns its digest."""
    name, version = path.name.split("-")[:2]
    info = f"{name}-{version}.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [f"{info}/RECORD,,"]
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
            record.append(f"{file},sha256={digest.decode()},{len(text)}")
            member = zipfile.ZipInfo(file)
            member.external_attr = 0o100755 << 16
            archive.writestr(member, text)
        archive.writestr(f"{info}/RECORD", "\n".join(record) + "\n")
    return hashlib.sha256(path.read_bytes()).hexdigest()


needs_3_11 = pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="plays a CPython of 3.11")


@pytest.mark.slow
@needs_3_11
def test_uv_fetches_a_cpython_where_none_fits_and_keeps_it(online):
    checkout, settings = online
    settings |= _fetched(checkout)
    checkout.add_script("python3", "exit 127\n")
    (checkout.home / "one.py").touch()
    made = checkout.run("python", "-P", "-c", "import one", environment=settings)
    assert (made.returncode, made.stdout) == (0, "one\n"), made
    setting_up, fetching = told(made)
    assert setting_up.startswith("run: setting up .venv with CPython 3.11 (first use;")
    assert fetching == "run: there is none yet: uv fetches CPython 3.11 (about 30 MB)"
    # It is fetched once.
    (checkout.state / "cpython.tar.gz").unlink()
    checkout.root = checkout.root.rename(checkout.folder / "moved away")
    again = checkout.run("python", "-P", "-c", "import one", environment=settings)
    assert (again.returncode, again.stdout) == (0, "one\n"), again
    (line,) = told(again)
    assert "the checkout has moved" in line


@pytest.mark.slow
@needs_3_11
def test_packages_are_held_to_the_hashes_of_the_lock(online):
    checkout, settings = online
    _wheel(checkout.state / _ONE, {"one.py": "print('another')"})
    result = checkout.run("setup", environment=settings | _fetched(checkout))
    assert result.returncode == 1
    assert "Hash mismatch" in result.stderr
    assert "run: set-up failed while installing the packages" in result.stderr.splitlines()[-1]


@pytest.mark.slow
@needs_3_11
def test_a_python_that_only_pyenv_knows_is_found(online):
    checkout, settings = online
    python = checkout.home / ".pyenv/versions/3.11.7/bin/python3.11"
    python.parent.mkdir(parents=True)
    python.write_text(_HANDS_OVER)
    python.chmod(0o755)
    result = checkout.run("setup", environment=settings)
    assert (result.returncode, result.stdout) == (0, ""), result
    assert "CPython 3.11" in one_line(result)


def test_a_cpython_that_cannot_be_fetched_is_one_line(online):
    checkout, settings = online
    refused = checkout.run("setup", environment=settings)
    assert refused.returncode == 1
    *_, line = refused.stderr.splitlines()
    assert line.startswith("run: uv cannot fetch CPython 3.11 (")
    assert "apt install python3.11" in line and "dnf install python3.11" in line


def test_neither_uv_nor_pip_is_one_line(bare):
    bare.add_python("python3", "3.13")
    refused = bare.run("train")
    assert refused.returncode == 2
    line = one_line(refused)
    assert "needs uv, or a Python 3 with pip" in line
    assert _ON_DEBIAN in line and _ON_FEDORA in line


@pytest.fixture
def with_pip(bare):
    """A checkout on a machine with a Python that has pip, which finds a stand-in for uv."""
    python = sys._base_executable
    if subprocess.run([python, "-I", "-m", "pip", "--version"], capture_output=True).returncode:
        pytest.skip(f"{python} has no pip")
    bare.add_script("python3", f'exec "{python}" "$@"\n')
    bare.add_python("python3.11")
    wheel = "uv-0.13.9-py3-none-any.whl"
    digest = _wheel(bare.state / wheel, {"uv-0.13.9.data/scripts/uv": STUB_UV})
    (bare.root / "tools" / "uv.txt").write_text(f"uv==0.13.9 --hash=sha256:{digest}\n")
    # PIP_USER is a user's own setting.
    return bare, {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(bare.state), "PIP_USER": "1"}


@pytest.mark.slow
def test_pip_gets_the_pinned_uv(with_pip):
    checkout, settings = with_pip
    made = checkout.run("setup", environment=settings)
    assert (made.returncode, checkout.installs) == (0, 1), made
    assert "setting up .venv with CPython 3.11" in one_line(made)
    assert list(checkout.home.iterdir()) == []


@pytest.mark.slow
def test_without_a_network_or_with_another_uv_one_line_says_what_to_install(with_pip):
    checkout, settings = with_pip
    _wheel(checkout.state / "uv-0.13.9-py3-none-any.whl", {"uv.py": "another"})
    for text, changed in (("mismatch", {}), ("No matching", {"PIP_FIND_LINKS": ""})):
        refused = checkout.run("setup", environment={**settings, **changed})
        assert refused.returncode == 1
        line = one_line(refused)
        assert "run: pip cannot get uv (" in line
        assert text in line or text == "mismatch"
        assert _ON_DEBIAN in line and _ON_FEDORA in line


@pytest.mark.slow
def test_the_python_asked_for_is_the_one_used(checkout):
    asked = checkout.add_python(checkout.folder / "other python" / "python", "3.11")
    environment = {"TFF_AGNOSTIC_PYTHON": str(asked)}
    assert "CPython 3.11" in one_line(checkout.run("setup", environment=environment))
    assert (checkout.root / ".venv/bin/python").resolve() == asked
    again = checkout.run("setup", environment={"TFF_AGNOSTIC_PYTHON": "python3.11"})
    assert "CPython 3.11 (TFF_AGNOSTIC_PYTHON has changed" in one_line(again)
    assert checkout.run("setup").stderr == ""
    assert checkout.installs == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "kind"), [("3.13", "cpython"), ("3.10", "cpython"), ("3.11", "pypy")]
)
def test_a_python_asked_for_that_does_not_fit_is_not_replaced_by_another(ready, version, kind):
    asked = ready.add_python(ready.folder / "new" / "python", version, kind)
    result = ready.run("setup", environment={"TFF_AGNOSTIC_PYTHON": str(asked)})
    assert result.returncode == 2
    assert f"TFF_AGNOSTIC_PYTHON is {asked} ({kind} {version})" in one_line(result)
    # Nor is the environment that is there touched.
    assert ready.run("setup").stderr == ""


def test_other_platforms_are_refused(checkout):
    checkout.add_script("uname", "[[ $1 == -s ]] && echo Linux || echo aarch64\n")
    result = checkout.run("train")
    assert result.returncode == 2
    assert "needs Linux x86_64" in one_line(result)
    assert "Linux aarch64" in result.stderr
