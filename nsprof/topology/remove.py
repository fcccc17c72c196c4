"""Taking runs down: one's own, one that was left up, and what a killed nsprof left behind."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nsprof.errors import TopologyError
from nsprof.netns import entered
from nsprof.topology import netlink as nl
from nsprof.topology import nft, sysctl, uplink
from nsprof.topology.inside import end_inside
from nsprof.topology.maker import LAST_METRIC
from nsprof.topology.namespaces import RUN, RunDirectory, apart
from nsprof.topology.plan import check_run_id
from nsprof.topology.state import State, load, load_all

__all__ = ["clean", "down", "listing", "remove"]

_HALF_WRITTEN_S = 60


def remove(state: State) -> None:
    """Take a run down: everything in its namespaces goes with them; in the initial namespace, what was written down.

    What is gone already is fine. Raises TopologyError, with the state kept so that it can be tried again.
    """
    directory = RunDirectory(state.run_id)

    def work(_: Callable[[], None]) -> None:
        host = directory.path / "host"
        if state.uplink:
            _restore_uplink(state, directory)
        if state.host_netns == "init" and host.exists():
            _restore_host(state, host)
        directory.remove()
        state.forget()

    apart(work)


def _restore_uplink(state: State, directory: RunDirectory) -> None:
    """Bring the user's device home, and tell what of it could not be put back."""
    home = directory.path / "home"
    if home.exists():
        places = sorted(str(p) for p in directory.path.iterdir() if p.name != "home")
        wrong = uplink.put_back(state.uplink, str(home), places)
    else:
        # The run's mounts died with a mount namespace, and with them its namespaces: a real device is then in the
        # initial namespace (a virtual one is gone).
        wrong = uplink.put_back(state.uplink, "/proc/self/ns/net", [])
    state.uplink = {}
    state.save()
    for line in wrong:
        print(f"nsprof: warning: {line}", file=sys.stderr)


def _restore_host(state: State, host: Path) -> None:
    if state.nft:
        nft.remove(str(host), state.nft)
    with entered(host):
        with nl.Rtnl() as door:
            door.send(nl.del_link(name) for name in state.devices)
            if state.unreachable:
                door.send([nl.del_unreachable(state.unreachable, LAST_METRIC)])
        for name, value in state.saved.items():
            if sysctl.read(name) not in (value, ""):
                sysctl.write(name, value)


def _end_processes(state: State) -> int:
    """End what still runs in the namespaces that were made for a run; those that were there before are spared."""
    return end_inside(state.made)


def down(run_id: str) -> int:
    """Take down a run that was left up; returns how many processes were still in it, and were ended.

    Raises TopologyError if there is none, or if another nsprof is using it.
    """
    state = load(check_run_id(run_id))
    if state is None:
        known = ", ".join(s.run_id for s in load_all())
        raise TopologyError(
            f"no topology {run_id!r} is up", f"there are: {known}" if known else "nsprof topo up SHAPE"
        )
    if state.condition == "in use":
        raise TopologyError(
            f"topology {run_id} is in use by nsprof with PID {state.pid}", "end that nsprof, and it removes it itself"
        )
    ended = _end_processes(state)
    remove(state)
    return ended


def clean() -> dict[str, int]:
    """Remove what killed nsprofs left behind, nobody else's and nothing in use.

    Returns the run ids removed, with how many processes were still in each, and were ended.
    """
    removed = {}
    for state in load_all():
        if state.condition == "leftover":
            ended = _end_processes(state)
            remove(state)
            removed[state.run_id] = ended
    for half in RUN.glob(".state-*"):  # killed while writing
        if time.time() - half.stat().st_mtime > _HALF_WRITTEN_S:
            half.unlink(missing_ok=True)
    return removed


def listing() -> list[dict[str, Any]]:
    """All runs on this machine: run_id, shape, condition ("in use", "up", "leftover"), containers, pid, ..."""
    return [
        {
            "run_id": s.run_id,
            "shape": s.shape,
            "condition": s.condition,
            "containers": s.containers,
            "host_netns": s.host_netns,
            "pid": s.pid,
            "created": s.created,
            "about": dict(s.about),
        }
        for s in load_all()
    ]
