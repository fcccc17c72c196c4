"""What `nsprof bench` shows: progress while it measures, then the table and the top deltas."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsprof.model.profile import Profile

__all__ = ["Advance", "progress", "show"]


class Advance:
    """Shows how far the bench is; on a terminal as a bar with the time left, otherwise a line a run."""

    def __init__(self, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._quiet = quiet
        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )
        self._plain = not quiet and not console.is_terminal
        self._task = self._bar.add_task("bench", total=None)

    def advance(self, done: int, total: int, what: str) -> None:
        """`done` of `total` runs are finished and `what` begins."""
        self._bar.update(self._task, completed=done, total=total, description=what or "done")
        if self._plain and what:
            print(f"nsprof: run {done + 1} of {total}: {what}", file=sys.stderr, flush=True)


@contextmanager
def progress(quiet: bool) -> Iterator[Advance]:
    """An Advance whose bar is removed at the end."""
    state = Advance(quiet)
    with state._bar:
        yield state


def show(profile: Profile, path: str, *, baseline: str = "", top: int = 15) -> None:
    """Print the document-000 table and, for each scenario but the baseline, the functions that changed most."""
    from nsprof import analyse
    from nsprof.cli.common import write_parts
    from nsprof.render import text

    usable = [s for s in profile.scenarios if profile.runs_of(s)]
    for run in profile.runs:
        if run.failed:
            print(f"nsprof: a run of {run.scenario} failed: {run.failed}", file=sys.stderr)
    if not usable:
        return
    base = baseline if baseline in usable else "host" if "host" in usable else usable[0]
    parts = list(text.scenario_parts(analyse.scenario_table(profile, baseline=base)))
    for name in usable:
        if name != base and top:
            report = analyse.diff(profile, profile, base_scenario=base, new_scenario=name)
            parts += [text.gap(), *text.diff_parts(report, limit=top)]
    write_parts(parts, None)
    print(
        f"nsprof: wrote {path}; next: nsprof diff {path} --baseline {base} --scenario {usable[-1]}", file=sys.stderr
    )
