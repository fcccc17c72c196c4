"""Words that no verb takes: empty ones, and two of which only one can hold; a reader that leaves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

from nsprof.cli.common import tell
from nsprof.cli.main import VERBS, main, run


def every_command() -> list[tuple[tuple[str, ...], click.Command]]:
    """Each verb, and each command of the verbs that have several."""
    found: list[tuple[tuple[str, ...], click.Command]] = []
    context = click.Context(main)
    for verb in VERBS:
        command = main.get_command(context, verb)
        assert command is not None
        if isinstance(command, click.Group):
            found += [((verb, name), inner) for name, inner in command.commands.items()]
        else:
            found.append(((verb,), command))
    return found


def status(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        run(list(words))
    return int(end.value.code or 0)


def empty_words() -> list[tuple[str, ...]]:
    cases = []
    for verb, command in every_command():
        for param in command.params:
            if isinstance(param, click.Option) and not (param.is_flag or param.count):
                if not {"--append", "--filter"} & set(param.opts):
                    cases.append((*verb, max(param.opts, key=len), ""))
            elif isinstance(param, click.Argument) and param.type is not click.UNPROCESSED:
                cases.append((*verb, ""))
    return cases


@pytest.mark.parametrize("words", empty_words(), ids=" ".join)
def test_an_empty_word_is_refused(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert status(*words) == 2
    said = capsys.readouterr()
    assert said.err and not said.out
    assert not list(tmp_path.iterdir())


def exclusive() -> list[tuple[str, ...]]:
    cases = []
    for verb, command in every_command():
        forms: dict[str, list[str]] = {}
        for param in command.params:
            if isinstance(param, click.Option) and param.is_flag and param.name:
                forms.setdefault(param.name, []).append(max(param.opts, key=len))
        needed = [p.human_readable_name for p in command.params if isinstance(p, click.Argument) and p.required]
        cases += [(*verb, *names, *needed) for names in forms.values() if len(names) > 1]
    return cases


def test_most_verbs_have_forms_that_exclude_each_other() -> None:
    assert {words[0] for words in exclusive()} >= {"report", "diff", "explain", "gate", "history", "info", "bench"}


@pytest.mark.parametrize("words", exclusive(), ids=" ".join)
def test_forms_that_exclude_each_other_are_both_named(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(*words) == 2
    said = capsys.readouterr().err
    assert "exclude each other" in said
    assert all(word in said for word in words if word.startswith("-"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("bench", "--show", "--resume", "b.nsprof"), "--show runs nothing: --resume means nothing beside it"),
        (
            ("bench", "--show", "--runs", "3", "--no-hop", "b.nsprof"),
            "--show runs nothing: --runs, --hop mean nothing beside it",
        ),
        (("bench", "--show", "b.nsprof", "--resume"), "--resume means nothing beside it"),
        (("bench", "b.toml", "--json", "--csv"), "--json and --csv exclude each other"),
        (("bench", "--memory", "512", "--", "true"), "--memory means nothing without --kernel"),
        (("record", "--watch", "x", "--timeout", "3"), "--timeout means nothing beside it"),
        (("report", "--html", "x.html", "--sort", "total"), "--sort means nothing beside it"),
        (("top", "-b", "-n", "1", "-o", "x.nsprof"), "--batch saves nothing: --output means nothing beside it"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(*words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("words", [("bench", "--", ""), ("simulate", ""), ("record", "--", "")], ids=" ".join)
def test_a_command_that_is_an_empty_word_is_refused(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(*words) == 2
    assert "the command is an empty word" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("top", "-b", "-n", "1", "-d", "nan"),
        ("record", "--probe-budget", "nan", "--", "true"),
        ("record", "--duration", "inf", "--watch", "1"),
    ],
    ids=" ".join,
)
def test_what_is_no_number_is_refused(words: tuple[str, ...]) -> None:
    assert status(*words) == 2


def test_a_gate_that_could_not_compare_is_no_regression(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("gate", str(tmp_path / "a"), str(tmp_path / "b"), "--fail-above", "1%") == 2
    assert "no such file" in capsys.readouterr().err


def test_a_name_does_nothing_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    tell("wrote \x1b[31mred\n\u202eback")
    assert capsys.readouterr().err == "nsprof: wrote \\x1b[31mred\\x0a\\u202eback\n"


def test_every_option_of_the_tables_exists() -> None:
    from nsprof.cli import words

    known = {verb[-1]: {max(p.opts, key=len) for p in c.params} for verb, c in every_command()}
    for verb, option, others, _ in words._NOTHING_BESIDE:
        assert {option, *others} <= known[verb]
    for verb, option, others in words._NOTHING_WITHOUT:
        assert {option, *others} <= known[verb]


def test_the_empty_word_of_a_command_that_is_run_is_its_own() -> None:
    from nsprof.cli.words import check_words

    @click.command()
    @click.argument("command", nargs=-1, type=click.UNPROCESSED)
    def inner(command: tuple[str, ...]) -> None:
        click.echo(repr(command))

    check_words(inner)
    with click.Context(inner) as context:
        assert inner.parse_args(context, ["sh", ""]) == []
    assert context.params["command"] == ("sh", "")


@pytest.mark.parametrize("words", [("--help",), ("-V",), ("report", "--help"), ("topo", "up", "--help")])
def test_help_for_a_reader_that_has_left_is_quiet(words: tuple[str, ...]) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "nsprof", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout and process.stderr
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (141, "")
