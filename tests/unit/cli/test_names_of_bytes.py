"""Names that are no UTF-8 are chosen by their own bytes, as by what is shown for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from nsprof import store
from nsprof.cli.main import run
from nsprof.escape import as_stored, safe, shell_word, shell_words
from nsprof.model.profile import Profile
from tests.profiles import bench_profile

RAW = b"a\xc3\xa9\xff"
WORD = os.fsdecode(RAW)  # what sys.argv holds
SHOWN = "aé\\xff"


def renamed(profile: Profile) -> Profile:
    """A profile in which some namespace, its devices, all tasks and one scenario have that name."""
    return profile.with_(
        namespaces=tuple(replace(n, name=WORD) if n.name == "c0" else n for n in profile.namespaces),
        tasks=tuple(replace(t, comm=WORD) for t in profile.tasks),
        runs=tuple(replace(r, scenario=WORD if r.scenario == "veth-bridge" else r.scenario) for r in profile.runs),
    )


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Such a profile, in a file that is called so as well."""
    path = os.path.join(os.fsencode(tmp_path), RAW + b".nsprof")  # noqa: PTH118 - bytes
    store.save(renamed(bench_profile(1)), os.fsdecode(path))
    return os.fsdecode(path)


def test_bytes_are_written_out_in_one_way() -> None:
    assert as_stored(WORD) == safe(WORD) == SHOWN
    assert as_stored("plain é") == "plain é"
    assert as_stored("\ud800") != "" and as_stored("\ud800").isprintable()


@pytest.mark.parametrize(
    "raw", [b"plain", RAW, b"it's \xff\\n", b"\x1b[31m\n", "\u202eé $(id)".encode(), b"-", b"a b"]
)
def test_a_quoted_word_is_that_word_to_the_shell_and_harmless_to_the_terminal(raw: bytes) -> None:
    quoted = shell_words(["x", os.fsdecode(raw)])
    assert quoted.isprintable()
    done = subprocess.run(["bash", "-c", f'f() {{ printf %s "$2"; }}; f {quoted}'], capture_output=True, timeout=10)
    assert (done.stdout, done.stderr) == (raw, b"")


@pytest.mark.parametrize("word", [WORD, SHOWN])
@pytest.mark.parametrize(
    "words",
    [
        ["report", "--scenario"],
        ["report", "--baseline"],
        ["report", "--scenario", WORD, "--task"],
        ["report", "--scenario", WORD, "--netns"],
        ["explain", "--baseline"],
    ],
)
def test_names_in_a_profile_are_chosen_by_their_bytes(
    file: str, word: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        run([words[0], file, *words[1:], word, "--json"])
    out, err = capsys.readouterr()
    assert "no scenario" not in err and "no task" not in err and "neither" not in err
    assert end.value.code in (0, 3), err  # 3: no cause was found
    assert json.loads(out)["nsprof"] == words[0]


def test_what_is_not_there_is_shown_in_one_spelling(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(["report", file, "--task", WORD + "x"])
    with pytest.raises(SystemExit):
        run(["report", file + "x"])
    err = capsys.readouterr().err
    assert "udcff" not in err and err.count(SHOWN) >= 2


def test_the_next_command_can_be_run(file: str, tmp_path: Path) -> None:
    stacks = tmp_path / os.fsdecode(b"\xfe.folded")
    stacks.write_text("a;b 3\n")
    argv = [sys.executable, "-m", "nsprof", "import", stacks, "-o", file + "2"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    command = next(line for line in done.stderr.splitlines() if "next: " in line).partition("next: nsprof ")[2]
    again = subprocess.run(
        ["bash", "-c", f"{shell_word(sys.executable)} -m nsprof {command}"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert again.returncode == 0, again.stderr
    assert "b " in again.stdout


@pytest.mark.parametrize(
    "words",
    [
        ["report", "a", "{}"],
        ["{}"],
        ["topo", "{}"],
        ["report", "--limit", "{}"],
        ["report", "--{}"],
        ["export", "-f", "{}"],
    ],
)
def test_usage_errors_drive_no_terminal(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        run([word.format("x\x07\u202e\udcff") for word in words])
    err = capsys.readouterr().err
    assert end.value.code == 2
    assert "x\\x07\\u202e\\xff" in err and all(c == "\n" or c.isprintable() for c in err)
