"""`nsprof history`: many result files as one series a scenario, with the places where it changes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsprof.errors import EvidenceError, NsprofError, UsageError
from nsprof.files import near_names
from nsprof.model.metrics import History, HistoryPoint
from nsprof.model.profile import Profile

__all__ = ["Entry", "histories", "read_directory"]

#: `make` with CONFIG_LOCALVERSION_AUTO puts the commit at the release's end: 6.12.0-rc1-00012-gabcdef012345.
_COMMIT = re.compile(r"-g([0-9a-f]{7,40})(?:-dirty)?$")


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """What is kept of one file's scenario: its unit costs by run."""

    file: str
    when: str
    kernel: str
    commit: str
    scenario: str
    label: str
    kind: str
    costs: tuple[float, ...]


def read_directory(
    directory: str,
    *,
    scenario: str | None = None,
    per: str | None = None,
    event: str | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> list[Entry]:
    """Every profile below the directory, oldest first; files that are none are said and left out.

    Raises UsageError where there is no directory, EvidenceError where nothing could be read.
    """
    from concurrent.futures import ThreadPoolExecutor

    place = Path(directory)
    if not place.is_dir():
        what = "is a file, not a directory" if place.exists() else "no such directory"
        hint = "" if place.exists() else near_names(directory, suffix="", directories=True)
        raise UsageError(f"{directory}: {what}", hint or "nsprof history DIR reads the *.nsprof files in it")
    entries: list[Entry] = []

    def one(path: Path) -> tuple[list[Entry], list[str]]:
        said: list[str] = []
        return _read(path, str(path.relative_to(place)), scenario, per, event, said.append), said

    # A few files at once: decompressing and adding up happen outside of the interpreter's lock. Only what is kept of
    # a file outlives its turn, so memory is that of as many profiles as there are threads.
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        for found, said in pool.map(one, sorted(place.rglob("*.nsprof"))):
            entries += found
            for line in said:
                say(line)
    if not entries:
        wanted = f" with scenario {scenario!r}" if scenario else ""
        raise EvidenceError(f"{directory} holds no profile{wanted}", "nsprof bench -o DIR/NAME.nsprof makes one")
    return sorted(entries, key=lambda e: (e.when, e.file))


def _read(
    path: Path,
    name: str,
    scenario: str | None,
    per: str | None,
    event: str | None,
    say: Callable[[str], None],
) -> list[Entry]:
    from nsprof import store

    try:
        profile = store.load(path)
    except NsprofError as error:
        say(error.message)
        return []
    return _entries(profile, name, scenario, per, event, say)


def _entries(
    profile: Profile,
    name: str,
    scenario: str | None,
    per: str | None,
    event: str | None,
    say: Callable[[str], None],
) -> list[Entry]:
    from nsprof.analyse.selection import scenario_names, usable_runs, view

    found = []
    for each in scenario_names(profile):
        plain = each.partition(":")[2] or each
        if scenario is not None and scenario not in (each, plain):
            continue
        if not usable_runs(profile, each):
            continue
        try:
            chosen = view(profile, scenario=each, per=per, event=event)
        except NsprofError as error:
            say(f"{name}: {each}: {error.message}")
            continue
        kernel = next((r.kernel for r in chosen.run_objects if r.kernel), "")
        commit = _COMMIT.search(kernel)
        found.append(
            Entry(
                name,
                str(profile.meta.get("created", "")),
                kernel,
                str(profile.meta.get("commit", "") or (commit[1] if commit else "")),
                plain,
                chosen.measure.label,
                chosen.measure.kind,
                tuple(float(v) for v in chosen.totals()),
            )
        )
    return found


def histories(entries: Sequence[Entry]) -> list[History]:
    """One history a scenario and unit, with change points marked."""
    groups: dict[tuple[str, str, str], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry.scenario, entry.label, entry.kind), []).append(entry)
    return [_history(*key, rows) for key, rows in groups.items()]


def _history(scenario: str, label: str, kind: str, entries: Sequence[Entry]) -> History:
    import numpy as np

    from nsprof.analyse import statistics
    from nsprof.analyse.changepoints import change_points

    exact = kind in ("modelled", "counted")
    means = np.array([np.mean(e.costs) for e in entries])
    marks: dict[int, str] = dict.fromkeys(change_points(means, exact=exact), "a new level begins")
    if not exact:
        marks |= {i: why for i, why in _steps(entries).items() if i not in marks}
    points = []
    for number, entry in enumerate(entries):
        before = means[number - 1] if number else 0.0
        points.append(
            HistoryPoint(
                entry.file,
                entry.when,
                entry.kernel,
                entry.commit,
                float(means[number]),
                None if exact else statistics.mean_interval(np.array(entry.costs)),
                len(entry.costs),
                float((means[number] - before) / before * 100) if before > 0 else float("nan"),
                marks.get(number, ""),
            )
        )
    notes = []
    if len(entries) < 8 and not exact:
        notes.append(
            f"{len(entries)} files: levels can be told apart from about 8 on; below, only files with 8 runs each are "
            "compared with the one before"
        )
    if exact:
        notes.append("exact counts: every change is a change")
    return History(scenario, label, tuple(points), tuple(notes))


def _steps(entries: Sequence[Entry]) -> dict[int, str]:
    """Files whose runs differ from those of the file before; q values over all pairs with runs enough."""
    import numpy as np

    from nsprof.analyse import statistics

    found: dict[int, Any] = {}
    for number in range(1, len(entries)):
        one, two = (np.array(e.costs)[np.newaxis] for e in entries[number - 1 : number + 1])
        if min(one.shape[1], two.shape[1]) >= statistics.RUNS_FOR_VERDICT:
            found[number] = float(statistics.compare(one, two).p[0])
    if not found:
        return {}
    q = statistics.adjusted(np.array(list(found.values())))
    return {
        n: f"differs from the file before (q = {value:.2g})"
        for n, value in zip(found, q, strict=True)
        if value < statistics.ALPHA
    }
