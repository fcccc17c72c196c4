"""The wheel, built and installed into a fresh environment, has everything that the checkout has.

Dependencies come from the environment of the tests, so nothing is downloaded but the build backend where it lacks.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from nsprof import __version__
from tests.support import REPO, lack

pytestmark = pytest.mark.timeout(280)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree."""
    where = tmp_path_factory.mktemp("wheel")
    words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(where), str(REPO)]
    if importlib.util.find_spec("hatchling"):
        words.insert(4, "--no-build-isolation")
    done = subprocess.run(words, capture_output=True, text=True, timeout=200)
    if done.returncode and "--no-build-isolation" not in words and "No matching distribution" in done.stderr:
        pytest.skip("hatchling is neither installed nor to be had")
    assert done.returncode == 0, done.stderr
    (made,) = where.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`nsprof` of a fresh environment that has the wheel."""
    where = tmp_path_factory.mktemp("env")
    venv.create(where, with_pip=False, symlinks=True)
    python = where / "bin" / "python"
    words = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*words, str(wheel)], check=True, capture_output=True, text=True, timeout=120)
    (packages,) = (where / "lib").glob("python*/site-packages")
    (packages / "tests-environment.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return where / "bin" / "nsprof"


def run(program: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the installed program outside of the checkout."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run([str(program), *words], capture_output=True, text=True, cwd=cwd, env=env, timeout=120)


def test_the_wheel_holds_probes_plugin_source_and_page_assets(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder, inside in (("probes", "nsprof/_probes"), ("nsprof/render/assets", "nsprof/render/assets")):
        files = [p for p in (REPO / folder).rglob("*") if p.is_file() and "__pycache__" not in p.parts]
        assert files
        lacking = [p for p in files if f"{inside}/{p.relative_to(REPO / folder)}" not in names]
        assert not lacking
    assert any(name.startswith("nsprof/_probes/tcg/") and name.endswith(".c") for name in names)
    assert any(name.endswith("share/man/man1/nsprof.1") for name in names)
    assert not any(name.startswith(("tests/", "docs/")) for name in names)


def test_the_installed_program_is_the_wheels_and_runs(program: Path, tmp_path: Path) -> None:
    done = run(program, "--version", cwd=tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, f"nsprof, version {__version__}")
    python = str(program.with_name("python"))
    where = "import nsprof, nsprof.collect.bpf.loader as l; print(nsprof.__file__); print(l.probes_dir())"
    shown = subprocess.run([python, "-c", where], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert shown.returncode == 0, shown.stderr
    for line in shown.stdout.splitlines():
        assert Path(line).is_relative_to(program.parent.parent), f"{line} is not of the wheel"


def test_the_installed_doctor_answers_in_json(program: Path, tmp_path: Path) -> None:
    done = run(program, "doctor", "--json", cwd=tmp_path)
    document = json.loads(done.stdout)
    assert done.returncode == (0 if document["can_record"] else 1)
    assert len(document["checks"]) > 5


def test_the_installed_program_records_and_reports(program: Path, tmp_path: Path) -> None:
    reason = lack("bpf")
    if reason:
        pytest.skip(reason)
    done = run(program, "record", "-o", "one.nsprof", "--", "sleep", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "fallback" not in done.stderr
    assert "perf record" not in done.stderr, "the probes of the wheel were not used"
    called = "nsprof" if shutil.which("nsprof") else program  # what one can run again
    last = done.stderr.splitlines()[-1]
    assert last.endswith(f"next: {called} report one.nsprof, or {called} flamegraph one.nsprof")
    shown = json.loads(run(program, "info", "one.nsprof", "--json", cwd=tmp_path).stdout)
    assert shown["events"][0]["samples"] > 10
    assert run(program, "report", "one.nsprof", "--html", "one.html", cwd=tmp_path).returncode == 0
    assert (tmp_path / "one.html").stat().st_size > 10_000
