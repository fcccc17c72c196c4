"""The CI examples call nsprof with words that it takes."""

from __future__ import annotations

import importlib
import re
import shlex

import click
import pytest

from nsprof.cli.main import VERBS
from tests.support import REPO

_LINES = [
    (path.name, match[1])
    for path in sorted((REPO / "examples/ci").iterdir())
    for line in path.read_text().splitlines()
    if (match := re.match(r"^\s*(?:- )?(?:/\S+/)?nsprof (.*?)(?: >> .*)?$", line))
]


def test_both_examples_simulate_and_gate() -> None:
    for name in ("github-actions.yml", "gitlab-ci.yml"):
        verbs = [line.split()[0] for file, line in _LINES if file == name]
        assert verbs.count("simulate") == 2
        assert verbs.count("gate") == 1


@pytest.mark.parametrize(("file", "line"), _LINES)
def test_every_call_has_options_that_exist(file: str, line: str) -> None:
    del file
    verb, *words = shlex.split(line)
    command: click.Command = importlib.import_module(f"nsprof.cli.{VERBS[verb][0]}").command
    command.make_context(verb, words)
