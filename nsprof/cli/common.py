"""What the reading commands share: which profiles, which samples, and in which form the answer is written."""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import json
import math
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from nsprof.errors import UsageError
from nsprof.escape import as_stored, safe

if TYPE_CHECKING:
    from nsprof.analyse import Filter
    from nsprof.model.profile import Profile

__all__ = [
    "DEFAULT_PROFILE",
    "Bound",
    "Given",
    "Seconds",
    "filter_of",
    "filter_options",
    "measure_options",
    "open_profile",
    "other_side",
    "output_options",
    "plain",
    "refuse_own_input",
    "write_csv",
    "write_json",
    "write_parts",
]

DEFAULT_PROFILE = "profile.nsprof"


class Number(click.FloatRange):
    """A number within bounds on the command line; nan is none, though no comparison excludes it."""

    what = "a number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if isinstance(number, float) and math.isnan(number):
            self.fail(f"{value!r} is not {self.what}.", param, ctx)
        return number


class Seconds(Number):
    """A length of time on the command line: no nan, no infinity, nothing that clocks of the system refuse."""

    what = "a number of seconds"

    def __init__(self, min: float = 0.0, max: float = 365 * 86_400) -> None:
        super().__init__(min=min, max=max)


class Bound(Seconds):
    """A length of time that bounds something; its default may be 0, for no bound, which is not to be given."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if number == 0 and _is_given(param, ctx):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return number

    def _describe_range(self) -> str:
        return "x>0"  # what click writes into the help


class Given(click.IntRange):
    """A whole number of at least `min`; its default may be 0, for whatever holds where none is given, and that 0 is
    not to be given: it would silently be something else."""

    def __init__(self, min: int = 1, max: int | None = None) -> None:
        super().__init__(min=min, max=max)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return 0 if value == 0 and not _is_given(param, ctx) else super().convert(value, param, ctx)


def _is_given(param: click.Parameter | None, ctx: click.Context | None) -> bool:
    if param is None or ctx is None or param.name is None:
        return True
    return ctx.get_parameter_source(param.name) is not click.core.ParameterSource.DEFAULT


def tell(line: str, *, who: str = "nsprof: ") -> None:
    """A line on stderr. Names in it (files, devices, namespaces, commands) do nothing to a terminal."""
    click.echo(who + safe(line), err=True)


_F = TypeVar("_F", bound=Callable[..., Any])
_CONTEXTS = ("user", "task", "softirq", "hardirq", "nmi", "sched", "unknown")


def _stack(*options: Callable[[_F], _F]) -> Callable[[_F], _F]:
    def decorate(function: _F) -> _F:
        return functools.reduce(lambda f, option: option(f), reversed(options), function)

    return decorate


def measure_options(function: _F) -> _F:
    """--event, --per, --by, --join-contexts."""
    return _stack(
        click.option("-e", "--event", metavar="EVENT", help="Event to read (default: cpu-clock or the only one)."),
        click.option(
            "--per",
            metavar="UNIT",
            help="transaction, kb, datagram, skb (packet), segment, operation, second, share or total "
            "(default: what the workload counts).",
        ),
        click.option(
            "--by", metavar="WHAT", help="Also split by netns, device, hop, context, category, task, cpu or run."
        ),
        click.option(
            "--join-contexts",
            is_flag=True,
            help="Let totals run through interrupt entries into whatever was interrupted.",
        ),
    )(function)


def filter_options(function: _F) -> _F:
    """Options that narrow the samples down; `filter_of` makes a Filter of them."""
    return _stack(
        click.option("--netns", multiple=True, metavar="NAME", help="Only samples that worked for this namespace."),
        click.option("--device", multiple=True, metavar="[NETNS:]DEV", help="Only samples of this device's packets."),
        click.option("--context", multiple=True, type=click.Choice(_CONTEXTS), help="Only samples in this context."),
        click.option("--cpu", multiple=True, type=click.IntRange(0), help="Only samples of this CPU."),
        click.option("--task", multiple=True, metavar="COMM|PID", help="Only samples while this task was current."),
        click.option("--seconds", metavar="A-B", help="Only seconds A to B of each run (counted from 0, inclusive)."),
        click.option(
            "--side",
            type=click.Choice(["dut", "remote", "all"]),
            default="dut",
            show_default=True,
            help="Whose CPUs: the device under test, the remote end, or all.",
        ),
        click.option("--everyone", is_flag=True, help="Count tasks that have no part in the scenario, too."),
    )(function)


def output_options(function: _F) -> _F:
    """--json, --csv, --markdown."""
    return _stack(
        click.option("--json", "form", flag_value="json", help="Everything as JSON (docs/json.md)."),
        click.option("--csv", "form", flag_value="csv", help="The main table as CSV."),
        click.option("--markdown", "form", flag_value="markdown", help="As Markdown."),
    )(function)


def filter_of(options: Mapping[str, Any]) -> Filter:
    """The Filter of the options of `filter_options`. Raises UsageError."""
    from nsprof.analyse import Filter

    return Filter(
        namespaces=options["netns"],
        devices=options["device"],
        contexts=options["context"],
        cpus=options["cpu"],
        tasks=options["task"],
        slices=_seconds(options["seconds"]),
        side=options["side"],
        everyone=options["everyone"],
    )


def _seconds(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    first, _, last = text.partition("-")
    if not (first.isdecimal() and (last or first).isdecimal()) or int(last or first) < int(first):
        raise UsageError(f"not a range of seconds: {text!r}", "write --seconds 2-9")
    return int(first), int(last or first)


def open_profile(path: str | None) -> Profile:
    """Read a profile of any format; `profile.nsprof` of this directory when none is named."""
    from nsprof import store

    if path is None and not Path(DEFAULT_PROFILE).exists():
        raise UsageError(
            f"no profile named, and there is no {DEFAULT_PROFILE} here", "nsprof record -- COMMAND makes one"
        )
    profile = store.open_any(DEFAULT_PROFILE if path is None else path)
    if path == "-":
        return profile
    # Two recordings of the same command are told apart by their files.
    return profile.with_(meta={**profile.meta, "file": as_stored(Path(path or DEFAULT_PROFILE).stem)})


def other_side(profile: Profile, word: str) -> tuple[Profile | None, str | None]:
    """What `--baseline WORD` means: (None, a scenario of `profile`), or (the profile of that file, None).

    A file wins only where no scenario has that name. Raises UsageError naming what is near both, NsprofError for a
    file that cannot be read.
    """
    from nsprof.analyse.filters import near
    from nsprof.analyse.selection import choose_scenario, scenario_names
    from nsprof.files import near_names

    names = scenario_names(profile)
    name = as_stored(word)
    if name in names or any(name == n.partition(":")[2] for n in names):
        return None, choose_scenario(profile, name)
    if word == "-" or Path(word).exists():
        return open_profile(word), None
    if "/" in word or word.endswith(".nsprof"):
        open_profile(word)  # says what is near it
    hints = [near(word, names), near_names(word)]
    near_ones = [hint for hint in hints if hint.startswith("did you mean")]
    raise UsageError(
        f"--baseline {word}: neither a scenario of the profile nor a file",
        "; ".join(near_ones or [f"scenarios: {', '.join(names)}"]),
    )


def refuse_own_input(output: str | None, *inputs: str | None) -> None:
    """Raises UsageError where what is to be written would take the place of what is read."""
    if not output or output == "-":
        return
    for each in inputs:
        source = DEFAULT_PROFILE if each is None else each
        try:
            same = Path(output).is_file() and Path(output).samefile(source)
        except (OSError, ValueError):
            continue
        if same:
            raise UsageError(
                f"{output}: is what is to be read, and would be overwritten", "name another file to write"
            )


# --- writing --------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """A result as JSON types: dataclasses and named tuples as objects, nan and infinities as null, numpy as Python
    numbers."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v) for v in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def write_json(kind: str, content: Any, *, beside_command: bool = False) -> None:
    """`{"nsprof": kind, "version": 1, ...}` on stdout; surrogates and control characters as JSON escapes.

    `beside_command`: stdout belongs to a command that was run, so the document is one line, the last, on stderr.
    """
    body = plain(content)
    document = {"nsprof": kind, "version": 1, **(body if isinstance(body, dict) else {"rows": body})}
    stream = sys.stderr if beside_command else sys.stdout
    text = json.dumps(document, indent=None if beside_command else 1, ensure_ascii=True, allow_nan=False)
    stream.write(f"{text}\n")
    stream.flush()


def write_csv(rows: Iterable[Any], columns: Sequence[str] | None = None) -> None:
    """One line a row (a dataclass or a mapping); nested intervals become two columns, nan an empty cell."""
    flat = [_flat(row) for row in rows]
    names = list(columns or dict.fromkeys(name for row in flat for name in row))
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, names, extrasaction="ignore", restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    sys.stdout.write(out.getvalue())


def _flat(row: Any) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in (plain(row)).items():
        if isinstance(value, dict) and set(value) == {"low", "high", "level"}:
            made[f"{name}_low"], made[f"{name}_high"] = value["low"], value["high"]
        elif name.endswith("interval") and value is None:
            made[f"{name}_low"] = made[f"{name}_high"] = ""
        elif isinstance(value, (dict, list)):
            made[name] = json.dumps(value)
        elif isinstance(value, str):
            made[name] = safe(value)  # CSV is looked at in terminals as well
        else:
            made[name] = "" if value is None else value
    return made


def write_parts(parts: Sequence[Any], form: str | None) -> None:
    """Text for people: rich on a terminal (colour only there, NO_COLOR honoured), or Markdown."""
    from rich.console import Console

    from nsprof.render.tables import markdown, print_parts

    if form == "markdown":
        sys.stdout.write(markdown(parts))
        return
    width = max(60, shutil.get_terminal_size((110, 24)).columns)
    print_parts(parts, Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False))
