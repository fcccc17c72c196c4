"""Compiling the simulator's programs, and what is said when that cannot be done."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nsprof.errors import VmError
from nsprof.vm import tcg_build
from tests.support import need


def _program(place: Path, text: str) -> str:
    place.write_text(f"#!/bin/sh\n{text}\n")
    place.chmod(0o755)
    return str(place)


@pytest.mark.parametrize(
    ("version", "api"), [("7.2.22", 1), ("8.2.2", 1), ("9.0.2", 2), ("9.2.0", 3), ("10.0.2", 4), ("11.0.0", 4)]
)
def test_plugin_interface_follows_the_version(tmp_path: Path, version: str, api: int) -> None:
    text = (
        f"""case $1 in --version) echo "QEMU emulator version {version} (Debian)";; *) echo "-plugin file";; esac"""
    )
    assert tcg_build.api_version(_program(tmp_path / "qemu", text)) == api


def test_qemu_without_plugins_is_named(tmp_path: Path) -> None:
    text = """case $1 in --version) echo "QEMU emulator version 7.2.0";; *) echo "-nothing";; esac"""
    with pytest.raises(VmError, match="without TCG plugins"):
        tcg_build.api_version(_program(tmp_path / "qemu", text))


def test_missing_qemu_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(VmError) as error:
        tcg_build.api_version(str(tmp_path / "none"))
    assert "apt install qemu-system-x86" in error.value.hint


def test_missing_compiler_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSPROF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(VmError, match="no C compiler") as error:
        tcg_build.traffic()
    assert error.value.hint == "apt install gcc libc6-dev"


def test_failing_compiler_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSPROF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(
        "CC", _program(tmp_path / "cc", 'echo "/usr/bin/ld: cannot find -lc: No such file" >&2; exit 1')
    )
    with pytest.raises(VmError, match="cannot find -lc") as error:
        tcg_build.traffic()
    assert error.value.hint == "apt install libc6-dev"
    left = [name for _, _, names in os.walk(tmp_path / "cache") for name in names if not name.endswith(".lock")]
    assert left == []


@pytest.mark.parametrize("api", [1, 2, 3, 4])
def test_plugin_builds_without_warnings_for_every_interface(
    api: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("gcc")
    monkeypatch.setenv("NSPROF_CACHE", str(tmp_path))
    monkeypatch.setattr(tcg_build, "_WARNINGS", ("-O1", "-Wall", "-Wextra", "-Werror"))
    made = tcg_build.plugin(api)
    assert made.stat().st_mode & 0o077 == 0
    stamp = made.stat().st_mtime_ns
    assert tcg_build.plugin(api) == made
    assert made.stat().st_mtime_ns == stamp
