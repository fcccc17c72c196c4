"""What a run has made, written down before it is made, so that another nsprof can take it down.

/run/nsprof/<run id>.json lives as long as the run. It names its owner by PID and start time: a run whose owner
is gone and that was not meant to stay (`topo up`) is a leftover.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nsprof.errors import TopologyError

__all__ = ["RUN", "RUN_ID", "State", "load", "load_all", "start_time"]

#: Where the runs of this machine stand. (Here and not beside the mounting, so that a look at it loads no netlink.)
RUN = Path("/run/nsprof")
#: What a run id looks like: it becomes part of file and device names.
RUN_ID = "[a-z0-9]{1,8}"


def start_time(pid: int) -> int:
    """When a process began, in clock ticks since boot; 0 if there is none (field 22 of /proc/PID/stat).

    One that was killed and that nobody has waited for is none.
    """
    try:
        raw = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return 0
    fields = raw[raw.rindex(b")") + 2 :].split()
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])


def _pid_namespace() -> int:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


@dataclass(slots=True)
class State:
    """One run. `saved` are settings of the initial namespace as they were, in the order to be restored."""

    run_id: str
    shape: str = ""
    created: str = ""
    pid: int = 0
    started: int = 0
    pid_namespace: int = 0
    host_netns: str = "own"
    keep: bool = False
    complete: bool = False
    containers: int = 0
    saved: dict[str, str] = field(default_factory=dict)
    devices: list[str] = field(default_factory=list)
    nft: str = ""
    unreachable: str = ""
    uplink: dict[str, Any] = field(default_factory=dict)
    damaged: bool = False
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """The file."""
        return RUN / f"{self.run_id}.json"

    @property
    def made(self) -> list[Path]:
        """The mounts of the namespaces that were made for it; not those that were there before."""
        directory = RUN / self.run_id
        if not directory.is_dir():
            return []
        found = {"home", "host"} if self.host_netns != "own" or self.damaged else {"home"}
        return [place for place in directory.iterdir() if place.name not in found]

    def own(self) -> None:
        """The calling process is the owner."""
        self.pid = os.getpid()
        self.started = start_time(self.pid)
        self.pid_namespace = _pid_namespace()

    @property
    def alive(self) -> bool:
        """Whether the owner still runs (one in another PID namespace cannot be looked up and counts as running)."""
        if self.damaged:
            return False
        if self.pid_namespace != _pid_namespace():
            return True
        return self.started != 0 and start_time(self.pid) == self.started

    @property
    def condition(self) -> str:
        """ "in use", "up" (left standing by `topo up`), or "leftover"."""
        if self.keep and self.complete:
            return "up"
        return "in use" if self.alive else "leftover"

    def save(self, *, new: bool = False) -> None:
        """Write the file, whole or not at all; `new` claims the run id. Raises TopologyError."""
        fields = asdict(self)
        del fields["damaged"]
        try:
            RUN.mkdir(mode=0o755, parents=True, exist_ok=True)
            fd, name = tempfile.mkstemp(dir=RUN, prefix=".state-")
            try:
                with os.fdopen(fd, "w") as file:
                    json.dump(fields, file)
                if new:
                    self._claim(Path(name))
                else:
                    Path(name).replace(self.path)
            except BaseException:  # a full disk, Ctrl-C
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise TopologyError(
                f"{RUN} cannot be written: {error.strerror}", "topologies need root: run it with sudo"
            ) from error

    def _claim(self, written: Path) -> None:
        try:
            os.link(written, self.path)
        except FileExistsError:
            raise TopologyError(f"run id {self.run_id} is taken", "'nsprof topo list' shows the runs") from None
        written.unlink()

    def forget(self) -> None:
        """Remove the file."""
        self.path.unlink(missing_ok=True)


def load(run_id: str) -> State | None:
    """The state of a run, None if there is no such run. A damaged file gives a state that says so."""
    path = RUN / f"{run_id}.json"
    try:
        fields = json.loads(path.read_text())
        known = {name: value for name, value in fields.items() if name in State.__dataclass_fields__}
        return State(**{**known, "run_id": run_id})
    except FileNotFoundError:
        return State(run_id, damaged=True) if (RUN / run_id).is_dir() else None
    except (ValueError, TypeError, AttributeError):
        return State(run_id, damaged=True)
    except OSError as error:
        raise TopologyError(f"{path} cannot be read: {error.strerror}", "run it as root (sudo)") from error


def load_all() -> list[State]:
    """All runs on this machine, oldest first."""
    if not RUN.is_dir():
        return []
    names = {p.stem for p in RUN.glob("*.json")} | {p.name for p in RUN.iterdir() if p.is_dir()}
    ours = sorted(name for name in names if re.fullmatch(RUN_ID, name))
    states = [state for state in map(load, ours) if state is not None]
    return sorted(states, key=lambda s: s.created)
