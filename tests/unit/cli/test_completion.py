"""Completion as the shells ask for it: the program is called with their variables."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nsprof import store
from tests.profiles import bench_profile


def complete(words: list[str], where: Path) -> list[str]:
    """What `nsprof WORDS<TAB>` offers in a folder."""
    env = {
        **os.environ,
        "_NSPROF_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["nsprof", *words]),
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run(
        [sys.executable, "-m", "nsprof"], env=env, cwd=where, capture_output=True, text=True, timeout=60
    )
    assert not done.stderr
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_verbs_options_and_shapes_are_offered(tmp_path: Path) -> None:
    assert {"record", "report"} <= set(complete(["re"], tmp_path))
    assert "--flame" not in complete(["report", "--js"], tmp_path)
    assert complete(["report", "--js"], tmp_path) == ["--json"]
    assert {"veth-bridge", "veth-route"} <= set(complete(["topo", "up", "veth"], tmp_path))
    offered = complete(["bench", "--scenario", "host,veth-b"], tmp_path)
    assert "host,veth-bridge" in offered
    assert all(word.startswith("host,veth-b") for word in offered)


def test_profiles_come_before_other_files(tmp_path: Path) -> None:
    for name in ("pod.nsprof", "host.nsprof", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    assert complete(["report", ""], tmp_path) == ["host.nsprof", "pod.nsprof"]
    assert complete(["report", "po"], tmp_path) == ["pod.nsprof"]
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "perf.data").write_bytes(b"")
    assert complete(["report", "old/pe"], tmp_path) == ["old/pe"]  # type "file": the shell looks itself


def test_scenarios_are_those_of_the_profile_on_the_line(tmp_path: Path) -> None:
    store.save(bench_profile(runs=2), tmp_path / "b.nsprof")
    assert complete(["report", "b.nsprof", "--scenario", ""], tmp_path) == ["host", "veth-bridge"]
    assert complete(["report", "--scenario", ""], tmp_path) == []
    store.save(bench_profile(runs=2), tmp_path / "profile.nsprof")
    assert complete(["report", "--scenario", "ve"], tmp_path) == ["veth-bridge"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script_it_can_read(shell: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nsprof", "completion", shell], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert "_NSPROF_COMPLETE" in done.stdout
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed: its script was made, not read")
    script = tmp_path / "script"
    script.write_text(done.stdout)
    subprocess.run([shell, "-n", str(script)], check=True, timeout=20)


def test_bash_completes_a_typed_line(tmp_path: Path) -> None:
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "nsprof"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m nsprof "$@"\n')
    program.chmod(0o755)
    script = (
        'eval "$(nsprof completion bash)"; COMP_WORDS=(nsprof flameg); COMP_CWORD=1; '
        '_nsprof_completion nsprof; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == ["flamegraph"]


def test_an_unknown_shell_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    env = {**os.environ, "SHELL": "/bin/tcsh"}
    done = subprocess.run(
        [sys.executable, "-m", "nsprof", "completion"], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "no completion for the shell 'tcsh'" in done.stderr
    assert "hint: nsprof completion bash" in done.stderr
