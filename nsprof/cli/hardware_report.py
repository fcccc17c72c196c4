"""`report --memory` and `report --branches`: what imported files tell of memory accesses and branches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from nsprof.cli.common import write_csv, write_json, write_parts
from nsprof.errors import EvidenceError, UsageError

if TYPE_CHECKING:
    from nsprof.model.profile import Profile

__all__ = ["hardware_tables", "write_hardware"]

_TAKEN = ("profile", "memory", "branches", "event", "limit", "form")


def hardware_tables(profile: Profile, *, branches: bool, event: str | None = None) -> list[dict[str, Any]]:
    """For every imported file that tells of them its tables of branches, or of memory; of one event, if given.

    Raises EvidenceError where no file tells of any, UsageError for an event without.
    """
    known = profile.meta.get("sources") or [profile.meta.get("source")]
    made = [_branches(source) if branches else _memory(source) for source in known if isinstance(source, Mapping)]
    made = [each for each in made if any(value for name, value in each.items() if name not in ("file", "sums"))]
    if not made:
        how = "perf record -b" if branches else "perf mem record, or perf record -d -W"
        what = "branch stacks" if branches else "data addresses or sources"
        raise EvidenceError(
            f"no {what} in the profile: only perf.data files recorded with them tell of it",
            f"{how}, then nsprof report {'--branches' if branches else '--memory'} perf.data",
        )
    if event is None:
        return made
    tables = ("functions", "edges") if branches else ("accesses", "lines")
    names = dict.fromkeys(name for each in made for table in tables for name in each[table])
    if event not in names:
        raise UsageError(f"no event {event!r} that tells of it", f"there are: {', '.join(names)}")
    for each in made:
        for table in tables:
            each[table] = {name: rows for name, rows in each[table].items() if name == event}
    return made


def _memory(source: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "file": source.get("file", ""),
        "accesses": source.get("accesses_by_function", {}),
        "lines": source.get("lines_by_function", {}),
        "shared": source.get("shared_lines"),
    }


def _branches(source: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "file": source.get("file", ""),
        "sums": source.get("branches", {}),
        "functions": source.get("branches_by_function", {}),
        "edges": source.get("branch_edges", {}),
    }


def write_hardware(profile: Profile, form: str | None, options: Mapping[str, Any]) -> int:
    """Write the tables in the form asked for. Raises UsageError for options that choose among samples: the tables are
    of whole files."""
    from nsprof.render.hardware import branch_parts, memory_parts

    if options["memory"] and options["branches"]:
        raise UsageError("--memory and --branches are two reports", "ask for one of them")
    word = "--branches" if options["branches"] else "--memory"
    context = click.get_current_context()
    for name in context.params:
        if name not in _TAKEN and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UsageError(
                f"{word} and --{name.replace('_', '-')}: these tables are of whole recordings",
                f"leave it out; {word} takes --event, --limit, --json, --csv and --markdown",
            )
    files = hardware_tables(profile, branches=options["branches"], event=options["event"])
    if form == "json":
        if options["branches"]:
            write_json("report-branches", {"files": files})
        else:
            write_json("report-memory", {"files": files})
    elif form == "csv":
        write_csv(_rows(files, "functions" if options["branches"] else "accesses"))
    else:
        draw = branch_parts if options["branches"] else memory_parts
        write_parts([part for file in files for part in draw(file, limit=options["limit"])], form)
    return 0


def _rows(files: list[dict[str, Any]], table: str) -> Iterator[dict[str, Any]]:
    """The main table, a line a function of an event of a file: where no access tells its source, that of lines."""
    chosen = table if any(file[table] for file in files) else "lines"
    for file in files:
        for event, rows in file[chosen].items():
            for row in rows["functions"]:
                levels = row.get("levels", {})
                flat = {k: v for k, v in row.items() if k not in ("levels", "top_lines")}
                told = {f"level_{name}": level["samples"] for name, level in levels.items()}
                yield {"file": file["file"], "event": event, **flat, **told}
