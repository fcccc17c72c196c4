"""What every verb has in common: near misses, quiet, pipes, python -m."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from nsprof import store
from nsprof.cli.main import VERBS, main
from tests.profiles import bench_profile


def leaves() -> Iterator[tuple[str, click.Command]]:
    """Every verb, and the verbs below verbs."""
    ctx = click.Context(main)
    for verb in VERBS:
        command = main.get_command(ctx, verb)
        assert command is not None
        if isinstance(command, click.Group):
            yield from ((f"{verb} {name}", inner) for name, inner in command.commands.items())
        else:
            yield verb, command


def nsprof(*words: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the program."""
    return subprocess.run(
        [sys.executable, "-m", "nsprof", *words],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=cwd,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
    )


#: Verbs without --json, and why.
WITHOUT_JSON = {"completion": "writes a script for a shell"}


def test_every_verb_can_be_quiet() -> None:
    assert not [name for name, command in leaves() if not any("--quiet" in p.opts for p in command.params)]


def test_every_verb_speaks_json_unless_there_is_a_reason() -> None:
    mute = [name for name, command in leaves() if not any("--json" in p.opts for p in command.params)]
    assert not [name for name in mute if not WITHOUT_JSON.get(name)]
    assert set(WITHOUT_JSON) <= set(mute)  # no reason is kept longer than it is needed


@pytest.mark.parametrize(
    ("words", "near"),
    [
        ("reprot", "report"),
        ("topo lst", "list"),
        ("report --jsn", "--json"),
        ("record --frq 99 -- true", "--freq"),
        ("record --in pod --durration 3 -- true", "--duration"),
        ("bench --scenrio host -- true", "--scenario"),
        ("report --context softrq", "softirq"),
        ("completion bahs", "bash"),
        ("export --format fodled", "folded"),
    ],
)
def test_a_near_miss_is_told_what_was_meant(words: str, near: str, tmp_path: Path) -> None:
    done = nsprof(*words.split(), cwd=tmp_path)
    assert done.returncode == 2
    assert "Did you mean" in done.stderr
    assert near in done.stderr


def test_options_of_the_recorded_command_are_its_own(tmp_path: Path) -> None:
    done = nsprof("record", "-F", "99", "-q", "--in=nowhere", "ls", "--frq", cwd=tmp_path)
    assert "No such option" not in done.stderr
    assert "nowhere" in done.stderr


def test_quiet_drops_notes_and_keeps_errors(tmp_path: Path) -> None:
    store.save(bench_profile(runs=2), tmp_path / "p.nsprof")
    words = ("flamegraph", "p.nsprof", "--scenario", "host")
    assert nsprof(*words, cwd=tmp_path).stderr.startswith("flame graph: ")
    quiet = nsprof(*words, "--quiet", cwd=tmp_path)
    assert (quiet.returncode, quiet.stderr) == (0, "")
    wrong = nsprof("report", "--quiet", "missing.nsprof", cwd=tmp_path)
    assert wrong.returncode != 0
    assert "no such file: missing.nsprof" in wrong.stderr


def test_a_reader_that_leaves_is_no_error_to_talk_about(tmp_path: Path) -> None:
    store.save(bench_profile(runs=2), tmp_path / "profile.nsprof")
    for words in ("report", "report --json", "export --format folded"):
        script = f"{sys.executable} -m nsprof {words} | head -c 1 >/dev/null"
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, cwd=tmp_path)
        assert done.stderr == ""


def test_no_colour_leaves_a_pipe(tmp_path: Path) -> None:
    store.save(bench_profile(runs=2), tmp_path / "profile.nsprof")
    for env in ({}, {"NO_COLOR": "1"}, {"TERM": "xterm-256color"}):
        assert "\x1b" not in nsprof("report", cwd=tmp_path, **env).stdout


def _commands() -> list[list[str]]:
    """Every command that can be given, with the groups that hold others."""
    found: list[list[str]] = [[]]
    for verb in VERBS:
        made = main.get_command(click.Context(main), verb)
        found.append([verb])
        found += [[verb, inner] for inner in getattr(made, "commands", {})]
    return found


@pytest.mark.parametrize("words", _commands(), ids=" ".join)
def test_help_fits_a_terminal_of_80_columns_and_says_what_each_option_is(words: list[str]) -> None:
    command: click.Command = main
    ctx = click.Context(main, info_name="nsprof", terminal_width=80)
    for word in words:
        assert isinstance(command, click.Group)
        command = command.get_command(ctx, word) or command
        ctx = click.Context(command, ctx, info_name=word, terminal_width=80)
    lines = command.get_help(ctx).splitlines()
    assert not [line for line in lines if len(line) > 80]
    mute = [p.opts for p in command.params if isinstance(p, click.Option) and not p.help]
    assert not mute, f"no word on what these are: {mute}"


@pytest.mark.parametrize("words", [w for w in _commands() if w], ids=" ".join)
def test_every_command_can_be_quiet_and_answer_in_json(words: list[str]) -> None:
    command: click.Command = main
    for word in words:
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(main), word) or command
    if isinstance(command, click.Group):  # its commands can
        return
    names = {name for p in command.params for name in p.opts}
    assert "--quiet" in names
    assert ("--json" in names) == (words != ["completion"])  # which writes a script
