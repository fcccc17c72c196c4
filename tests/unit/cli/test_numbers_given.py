"""A number that would silently be another one is refused: 0 where it only stands for 'not given', and below."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import click
import pytest

from nsprof.bench.plan import topology_spec
from nsprof.cli.main import VERBS, run
from nsprof.errors import UsageError

#: What must be refused, (verb, option, word), each before anything is looked at or made.
REFUSED = [
    *(
        ("simulate", option, word)
        for option in ("--packets", "--size", "--samples", "--containers", "--mtu", "--container-mtu", "--boots")
        for word in ("0", "-1")
    ),
    *(("simulate", option, word) for option in ("--rounds", "--jobs", "--timeout") for word in ("0", "-1")),
    *(("simulate", option, "-1") for option in ("--warmup", "--rules", "--routes", "--bridge-ports", "--seed")),
    *(("bench", option, word) for option in ("--seconds", "--timeout", "--max-time") for word in ("0", "-1")),
    ("bench", "--top", "-1"),
    ("bench", "--mtu", "-1"),
    ("record", "--timeout", "0"),
    ("record", "--timeout", "-1"),
    ("record", "--timeout", "nan"),
    ("vm run", "--smp", "0"),
    ("vm run", "--timeout", "0"),
    ("vm run", "--timeout", "nan"),
    ("topo up", "--containers", "0"),
    ("topo up", "--containers", "-1"),
    ("topo up", "--mtu", "-1"),
    ("churn", "--namespaces", "0"),
    ("churn", "--mount-namespaces", "-1"),
    ("churn", "--rounds", "0"),
]
_REST = {"vm run": ("--kernel", "debian:6.1", "--", "true"), "topo up": ("host",), "record": ("--", "true")}


@pytest.mark.parametrize(("verb", "option", "word"), REFUSED)
def test_a_number_that_cannot_be_meant_is_refused(
    verb: str, option: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run([*verb.split(), f"{option}={word}", *_REST.get(verb, ())])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert option in said
    assert word in said


def test_a_wire_without_a_rate_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["topo", "up", "host", "--wire-rate", "0"])
    assert ended.value.code == 2
    assert "--wire-rate 0: no rate" in capsys.readouterr().err
    with pytest.raises(UsageError, match="no rate"):
        topology_spec("host", {"wire_rate": "0gbit"})


def _numbers() -> Iterator[tuple[str, click.Option]]:
    def walk(name: str, command: click.Command) -> Iterator[tuple[str, click.Option]]:
        for inner, below in command.commands.items() if isinstance(command, click.Group) else ():
            yield from walk(f"{name} {inner}", below)
        for param in command.params:
            if isinstance(param, click.Option) and not param.is_flag:
                yield name, param

    for verb, (module, _, _) in VERBS.items():
        yield from walk(verb, importlib.import_module(f"nsprof.cli.{module}").command)


def test_every_number_on_a_command_line_has_bounds() -> None:
    """(Except those that are checked together with others, and a seed, of which any will do.)"""
    elsewhere = {
        "churn --namespaces",
        "churn --mount-namespaces",
        "churn --rounds",
        "bench --seed",
        "import --packets",
    }
    unbounded = {
        f"{verb} {max(option.opts, key=len)}"
        for verb, option in _numbers()
        if type(option.type) in (click.types.IntParamType, click.types.FloatParamType)
    }
    assert unbounded == elsewhere


def test_the_default_stands_for_not_given(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["simulate", "--scenario", "nowhere", "--kernel", "/nonexistent"])
    assert "not in the range" not in capsys.readouterr().err
    assert ended.value.code != 0
