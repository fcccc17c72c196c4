"""What killed nsprofs left behind, without touching it: cheap enough to look at before every measurement."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nsprof.topology.inside import pids_inside
from nsprof.topology.state import load_all

__all__ = ["Leftover", "leftovers"]


@dataclass(frozen=True, slots=True)
class Leftover:
    """A run whose owner is gone. `pid` was the owner's (0: unknown); `processes` are (PID, name) of those inside."""

    run_id: str
    pid: int
    namespaces: int
    processes: tuple[tuple[int, str], ...]


def leftovers() -> tuple[Leftover, ...]:
    """The runs that `clean` would remove, oldest first. Raises TopologyError where they may not be read."""
    return tuple(
        Leftover(state.run_id, state.pid, len(places := state.made), tuple(_named(pids_inside(places))))
        for state in load_all()
        if state.condition == "leftover"
    )


def _named(pids: Iterable[int]) -> list[tuple[int, str]]:
    found = []
    for pid in pids:
        try:
            name = os.fsdecode(Path(f"/proc/{pid}/comm").read_bytes()).strip()
        except OSError:  # it has just ended
            continue
        found.append((pid, name))
    return found
