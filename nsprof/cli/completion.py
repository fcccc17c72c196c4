"""`nsprof completion`: the shell's completion script, and what the shell may complete with.

Scripts are click's own; this module adds what click cannot know: scenarios of a profile, shapes, namespaces. It
must answer within a keystroke, so profiles are looked into for their runs only when a scenario is asked for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import click
from click.shell_completion import BashComplete, CompletionItem, FishComplete, ShellComplete, ZshComplete

from nsprof.errors import NsprofError, UsageError

__all__ = ["command", "enrich"]

_SHELLS: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}
_PLACES = {
    "bash": "~/.local/share/bash-completion/completions/nsprof",
    "zsh": "~/.zfunc/_nsprof (a folder of fpath, before compinit)",
    "fish": "~/.config/fish/completions/nsprof.fish",
}
_Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


@click.command("completion", short_help="Completion script for bash, zsh or fish.")
@click.argument("shell", required=False, type=click.Choice(list(_SHELLS)))
@click.option("-q", "--quiet", is_flag=True, help="Do not say where the script goes.")
def command(shell: str | None, quiet: bool) -> None:
    """Print the completion script of SHELL (default: the one of $SHELL). Load it, or put it where the shell looks.

    \b
    eval "$(nsprof completion bash)"
    nsprof completion zsh > ~/.zfunc/_nsprof
    nsprof completion fish > ~/.config/fish/completions/nsprof.fish
    """
    from nsprof.cli.main import main

    name = shell or Path(os.environ.get("SHELL", "")).name
    if name not in _SHELLS:
        raise UsageError(f"no completion for the shell {name!r}", "nsprof completion bash (or zsh, fish)")
    made = _SHELLS[name]
    script = made(main, {}, "nsprof", "_NSPROF_COMPLETE")
    click.echo(script.source())
    if not quiet and sys.stdout.isatty():
        click.echo(f"nsprof: its place is {_PLACES[name]}", err=True)


# ---- what may stand where ----


def _matching(words: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(word) for word in words if word.startswith(incomplete)]


def _listed(words: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """The last word of a comma-separated list, without those that stand in it already."""
    done, comma, last = incomplete.rpartition(",")
    given = set(done.split(","))
    return [CompletionItem(f"{done}{comma}{w}") for w in words if w.startswith(last) and w not in given]


def _shapes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from nsprof.topology import SHAPES

    return _matching(SHAPES, incomplete)


def _shape_list(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from nsprof.topology import SHAPES

    return _listed(SHAPES, incomplete)


def _namespaces(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    try:
        names = sorted(os.listdir("/run/netns"))  # noqa: PTH208
    except OSError:
        return []
    return _matching(names, incomplete)


def _topologies(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from nsprof.topology import listing

    return _matching((str(row["run_id"]) for row in listing()), incomplete)


def _files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Profiles and folders; any file where there is none of nsprof's (every format is read)."""
    folder = Path(incomplete).parent if not incomplete.endswith("/") else Path(incomplete)
    head = incomplete.rpartition("/")[0] + "/" if "/" in incomplete else ""
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return [CompletionItem(incomplete, type="file")]
    found = [head + p.name for p in entries if p.suffix == ".nsprof" and p.is_file()]
    profiles = _matching(found, incomplete)
    return profiles or [CompletionItem(incomplete, type="file")]


def _scenarios(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Scenarios of the profiles that stand on the line already, else of profile.nsprof."""
    from nsprof import store
    from nsprof.analyse.selection import scenario_names
    from nsprof.cli.common import DEFAULT_PROFILE

    words: list[str] = []
    for name in ("profile", "files", "base", "new"):
        value = ctx.params.get(name)
        words += [value] if isinstance(value, str) else list(value or ())
    # An option without its value, the very one to be completed, ends click's parsing: files are still in args then.
    words += [word for word in ctx.args if not word.startswith("-")]
    names: dict[str, None] = {}
    for word in words or [DEFAULT_PROFILE]:
        try:
            names.update(dict.fromkeys(scenario_names(store.open_any(word))))
        except (NsprofError, OSError):  # a word that is no profile completes nothing
            continue
    return _matching(names, incomplete)


def _completer(verb: str, param: click.Parameter) -> _Completer | None:
    name = param.name or ""
    if isinstance(param, click.Argument):
        by_name: dict[str, _Completer] = {"shape": _shapes, "run_ids": _topologies}
        if name in ("profile", "files", "base", "new") and verb != "import":
            return _files
        return by_name.get(name)
    if verb in ("bench", "simulate") and "--scenario" in param.opts:
        return _shape_list
    if verb in ("record", "import", "bench", "simulate"):
        return _namespaces if name in ("inside", "watched") else None
    if {"--scenario", "--baseline"} & set(param.opts):
        return _scenarios
    if {"--netns"} & set(param.opts):
        return _namespaces
    return None


def enrich(verb: str, command: click.Command) -> click.Command:
    """The command with completers at the parameters that have none of their own."""
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            enrich(verb, inner)
    for param in command.params:
        completer = _completer(verb, param)
        if completer is not None:
            param._custom_shell_complete = completer
    return command
