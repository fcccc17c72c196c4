"""What a careless or hostile caller does to the program: closed streams, full disks, words that cannot be meant."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nsprof import store
from nsprof.cli.main import run
from nsprof.errors import NsprofError, ProfileFormatError
from tests.profiles import HOST_COSTS, bench_profile

NSPROF = [sys.executable, "-m", "nsprof"]


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    store.save(bench_profile(scenarios={"host": HOST_COSTS}), tmp_path / "p.nsprof")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "p.nsprof"


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """(exit status, stderr) of nsprof in this process."""
    with pytest.raises(SystemExit) as end:
        run(list(words))
    code = end.value.code
    return (code if isinstance(code, int) else 1), capsys.readouterr().err


def closing(number: int) -> Callable[[], None]:
    return lambda: os.close(number)


@pytest.mark.parametrize(
    "words",
    [
        ("report", "p.nsprof", "--html", "p.nsprof"),
        ("flamegraph", "p.nsprof", "-o", "./p.nsprof"),
        ("flamegraph", "--diff", "p.nsprof", "p.nsprof", "-o", "link"),
        ("export", "p.nsprof", "-f", "raw", "-o", "link"),
        ("import", "p.nsprof", "-o", "p.nsprof"),
    ],
)
def test_nothing_is_written_over_the_profile_that_is_read(
    profile: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    Path("link").symlink_to("p.nsprof")
    before = profile.read_bytes()
    status, err = call(capsys, *words)
    assert (status, profile.read_bytes()) == (2, before)
    assert "would be overwritten" in err


@pytest.mark.parametrize("words", [("report", "p.nsprof"), ("export", "-f", "pprof", "p.nsprof"), ("--help",)])
def test_a_closed_or_full_output_is_named_and_fails(profile: Path, words: tuple[str, ...]) -> None:
    closed = subprocess.run(
        [*NSPROF, *words], stderr=subprocess.PIPE, text=True, preexec_fn=closing(1), check=False, timeout=60
    )
    assert (closed.returncode, closed.stderr) == (
        1,
        "nsprof: standard output: cannot be written: Bad file descriptor\n",
    )
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*NSPROF, *words], stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60
        )
    assert done.returncode == 1
    assert done.stderr == "nsprof: standard output: cannot be written: No space left on device\n"


def test_a_closed_standard_input_is_no_traceback(profile: Path) -> None:
    done = subprocess.run(
        [*NSPROF, "report", "-"], capture_output=True, text=True, preexec_fn=closing(0), check=False, timeout=60
    )
    assert done.returncode == 1
    assert "Bad file descriptor" in done.stderr and "internal" not in done.stderr


def test_an_output_that_knows_ascii_only_is_served(profile: Path) -> None:
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "TERM": "", "COLUMNS": "20"}
    done = subprocess.run([*NSPROF, "report", "p.nsprof"], capture_output=True, env=env, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii() and b"ns/transaction" in done.stdout


def test_a_file_never_gets_the_number_of_a_closed_stream(profile: Path) -> None:
    done = subprocess.run(
        [*NSPROF, "flamegraph", "p.nsprof", "-o", "p.svg"], stderr=subprocess.PIPE, text=True,
        preexec_fn=closing(1), check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert Path("p.svg").read_text().startswith("<")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("record", "--duration", "nan"), "not a number of seconds"),
        (("record", "--duration", "inf"), "is not in the range"),
        (("record", "--timeout", "nan", "--", "true"), "not a number of seconds"),
        (("record", "--timeout", "1e300", "--", "true"), "is not in the range"),
        (("bench", "--max-time", "nan", "--", "true"), "not a number of seconds"),
        (("record", "-o", "", "--", "true"), "an empty word"),
        (("report", ""), "an empty word"),
        (("info", ""), "an empty word"),
    ],
)
def test_words_that_cannot_be_meant_are_refused_at_once(
    profile: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    status, err = call(capsys, *words)
    assert status in (1, 2)
    assert said in err and "internal" not in err


def test_a_command_that_is_not_there_is_found_out_before_anything_is_loaded(
    profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, err = call(capsys, "record", "--", "nosuchcommand-at-all")
    assert (status, err) == (127, "nsprof: nosuchcommand-at-all: command not found\n")


def test_failures_of_record_never_look_like_the_commands_own(
    profile: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import nsprof.record

    def fail(options: object) -> int:
        raise NsprofError("x: cannot be written: No space left on device")

    monkeypatch.setattr(nsprof.record, "record", fail)
    assert call(capsys, "record", "--", "true")[0] == 125
    assert call(capsys, "--debug=", "record", "--", "true")[0] == 2  # not our words


def test_devices_without_an_end_are_refused_after_their_first_bytes(profile: Path) -> None:
    with pytest.raises(ProfileFormatError, match="none of the formats"):
        store.open_any("/dev/zero")


def test_standard_input_may_be_any_format(profile: Path) -> None:
    words = [*NSPROF, "info", "-", "--json"]
    for content in (b"main;work 7\n", profile.read_bytes()):
        done = subprocess.run(words, input=content, capture_output=True, check=False, timeout=60)
        assert (done.returncode, done.stderr) == (0, b"")


def test_seconds_of_a_run_need_not_be_counted_to_be_its_length(
    profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = bench_profile(scenarios={"host": HOST_COSTS})
    from dataclasses import replace

    runs = tuple(replace(r, denominators={"skb": 5.0}) for r in made.runs)
    store.save(made.with_(runs=runs), "p.nsprof")
    for words in (("--per", "second"), ("--seconds", "0-0")):
        assert call(capsys, "report", "p.nsprof", *words) == (0, "")
