"""What no verb's command line may hold: an option or file that is the empty string (a variable that was not set),
two options of which only one can hold, and options that would mean nothing beside another or without one."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import click

from nsprof.errors import UsageError
from nsprof.escape import as_stored

__all__ = ["check_words"]

#: Options whose empty value means something.
_MAY_BE_EMPTY = ("--append", "--filter")
_RUNNING = (
    *("--scenario", "--runs", "--output", "--full", "--seconds", "--until", "--resume", "--kernel", "--boots"),
    *("--modules", "--memory", "--freq", "--event", "--hop", "--count", "--containers", "--busy", "--reverse"),
    *("--wire-rate", "--mtu", "--offload", "-6", "--host-netns", "--pin", "--uplink", "--remote", "--take-uplink"),
    *("--timeout", "--max-time", "--seed"),
)
#: Options that name what stands in a profile: they are compared with, or become, names as profiles hold them.
_NAMES = ("--netns", "--device", "--task", "--scenario", "--function", "--filter", "--event", "--title", "--per")
#: (Elsewhere it may be a file.)
_BASELINE_IS_A_NAME = ("diff", "flamegraph", "bench")
#: (verb, option, those that mean nothing beside it, why)
_NOTHING_BESIDE: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("bench", "--show", _RUNNING, "runs nothing"),
    ("explain", "--kernel-diff", ("--function", "--baseline"), "compares two kernels"),
    ("record", "--watch", ("--timeout",), "ends after --duration"),
    ("report", "--html", ("--limit", "--sort"), "has every function, and sorts in the browser"),
    ("top", "--batch", ("--output", "--keep"), "saves nothing"),
)
#: (verb, option, those that mean nothing without it)
_NOTHING_WITHOUT: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("bench", "--kernel", ("--boots", "--modules", "--memory")),
    ("flamegraph", "--diff", ("--size-by",)),
)


def check_words(command: click.Command) -> None:
    """Make `command`, and the commands of a group, refuse such words before they do anything."""
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            check_words(inner)
        return
    if getattr(command, "_words_checked", False):
        return
    parse = command.parse_args

    def checked(ctx: click.Context, args: list[str]) -> list[str]:
        words = list(args)
        rest = parse(ctx, args)  # it also decides whether options may follow other words
        if not ctx.resilient_parsing:
            _check(command, ctx, words)
            _as_stored(command, ctx)
        return rest

    command.parse_args = checked  # type: ignore[method-assign]
    command._words_checked = True  # type: ignore[attr-defined]


def _as_stored(command: click.Command, ctx: click.Context) -> None:
    for param in command.params:
        named = set(param.opts) & {*_NAMES, *(("--baseline",) if ctx.info_name in _BASELINE_IS_A_NAME else ())}
        value = ctx.params.get(param.name or "")
        if param.name and named and isinstance(value, (str, tuple)):
            ctx.params[param.name] = as_stored(value) if isinstance(value, str) else tuple(map(as_stored, value))


def _check(command: click.Command, ctx: click.Context, args: list[str]) -> None:
    """Raises UsageError. What click itself refuses it has refused by now."""
    values, _, order = command.make_parser(ctx).parse_args(args)
    for param in command.params:
        words = values.get(param.name or "")
        if param.type is click.UNPROCESSED and isinstance(words, (list, tuple)) and words[:1] in (("",), [""]):
            raise UsageError("the command is an empty word", "write it after --, e.g. -- ping -c 3 10.0.0.7")
        if _is_empty(param, values.get(param.name or "")):
            name = max(param.opts, key=len) if isinstance(param, click.Option) else param.human_readable_name
            raise UsageError(f"{name}: an empty word", f"leave {name} out, or give it a value")
    given = list(dict.fromkeys(max(p.opts, key=len) for p in order if isinstance(p, click.Option)))
    for verb, option, others, why in _NOTHING_BESIDE:
        found = [name for name in given if name in others]
        if ctx.info_name == verb and option in given and found:
            raise UsageError(
                f"{option} {why}: {', '.join(found)} {'means' if len(found) == 1 else 'mean'} nothing beside it",
                f"leave {found[0]} out",
            )
    for verb, option, others in _NOTHING_WITHOUT:
        found = [name for name in given if name in others]
        if ctx.info_name == verb and option not in given and found:
            raise UsageError(f"{found[0]} means nothing without {option}", f"add {option}, or leave {found[0]} out")
    same: dict[str, list[str]] = defaultdict(list)
    for param in order:
        if isinstance(param, click.Option) and param.is_flag and param.name:
            same[param.name].append(max(param.opts, key=len))
    for names in same.values():
        distinct = list(dict.fromkeys(names))
        if len(distinct) > 1:
            raise UsageError(
                f"{' and '.join(distinct)} exclude each other", f"give one of them only, such as {distinct[0]}"
            )


def _is_empty(param: click.Parameter, value: Any) -> bool:
    if isinstance(param, click.Option) and (param.is_flag or param.count or set(param.opts) & set(_MAY_BE_EMPTY)):
        return False
    if param.type is click.UNPROCESSED:  # the words of a command that is run
        return False
    return value == "" or (isinstance(value, (list, tuple)) and "" in value)
