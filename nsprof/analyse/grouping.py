"""`--by`: what the samples of a view are split by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsprof.analyse import categories
from nsprof.analyse.filters import device_label, effective_namespace, near
from nsprof.analyse.selection import View
from nsprof.errors import UsageError
from nsprof.model.profile import Context, Direction, Profile

__all__ = ["BY", "Groups", "group"]

#: What can be split by.
BY = ("netns", "device", "hop", "context", "category", "task", "cpu", "run")


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Group number of each row of a view, and the groups' keys (unique within a profile) and labels."""

    number: NDArray[np.int64]
    keys: tuple[str, ...]
    labels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.keys)


def group(chosen: View, by: str, row_category: NDArray[np.int64] | None = None) -> Groups:
    """Split a view. `row_category` is needed by "category". Raises UsageError for an unknown split."""
    if by not in BY:
        raise UsageError(f"cannot split by {by!r}", near(by, BY))
    if by == "category":
        if row_category is None:
            raise ValueError("categories are needed")
        return _named(row_category, lambda i: (categories.ALL[i], categories.ALL[i]))
    return _SPLITS[by](chosen)


def _named(number: NDArray[np.int64], name: Callable[[int], tuple[str, str]]) -> Groups:
    """Groups of the distinct numbers; `name` gives (key, label) of one; equal keys are one group."""
    distinct, inverse = np.unique(number, return_inverse=True)
    named = [name(int(i)) for i in distinct]
    labels = dict(named)
    place = {key: i for i, key in enumerate(labels)}
    merged = np.array([place[key] for key, _ in named], "i8")
    return Groups(merged[inverse], tuple(labels), tuple(labels.values()))


def _space_key(profile: Profile, index: int) -> str:
    """What tells a namespace apart. Those that nsprof made have a role, and their like in the next run is the same
    place of the scenario; all others are told apart by identity, since names and inodes come again."""
    if not index:
        return "unknown"
    space = profile.namespaces[index - 1]
    return f"{space.role}/{space.label}" if space.made else f"{space.inode}/{space.cookie}/{space.birth_slice}"


def _device_key(profile: Profile, index: int) -> str:
    entry = profile.devices[index - 1]
    made = bool(entry.namespace and profile.namespaces[entry.namespace - 1].made)
    return f"{_space_key(profile, entry.namespace)}/{'' if made else entry.ifindex}/{entry.name}"


#: What has no hop and yet is not unknown, by its name as a group.
_NO_HOP = {Direction.BETWEEN: "(between packets)", Direction.PROBE: "(probes)"}


def _no_hop(chosen: View, groups: NDArray[Any], first: int) -> NDArray[Any]:
    """`groups` with the samples that are no packet's work put into groups of their own, numbered from `first`."""
    direction = chosen.column("hop_dir")
    for number, way in enumerate(_NO_HOP):
        groups = np.where(direction == int(way), first + number, groups)
    return groups


def _by_netns(chosen: View) -> Groups:
    profile = chosen.profile
    extra = len(profile.namespaces) + 1
    labels = list(_NO_HOP.values())

    def name(index: int) -> tuple[str, str]:
        if index >= extra:
            return labels[index - extra], labels[index - extra]
        return _space_key(profile, index), profile.namespace_label(index)

    return _named(_no_hop(chosen, effective_namespace(profile, chosen.row), extra), name)


def _by_device(chosen: View) -> Groups:
    profile = chosen.profile
    device = chosen.column("hop_dev")
    # A task outside any packet is on no device, which is not the same as not knowing the device.
    at_home = (device == 0) & (
        (chosen.column("hop_dir") == int(Direction.TASK)) | (chosen.column("context") == int(Context.USER))
    )
    none = len(profile.devices) + 1
    labels = list(_NO_HOP.values())

    def name(index: int) -> tuple[str, str]:
        if index > none:
            return labels[index - none - 1], labels[index - none - 1]
        if index == none:
            return "no packet", "(no packet)"
        if not index:
            return "unknown", "unknown"
        return _device_key(profile, index), device_label(profile, index)

    return _named(_no_hop(chosen, np.where(at_home, none, device), none + 1), name)


def _by_hop(chosen: View) -> Groups:
    profile = chosen.profile
    space = effective_namespace(profile, chosen.row)
    device, direction = chosen.column("hop_dev"), chosen.column("hop_dir")
    width = len(profile.devices) + 1

    def name(code: int) -> tuple[str, str]:
        code, way = divmod(code, len(Direction))
        ns, dev = divmod(code, width)
        if Direction(way) in _NO_HOP:
            return (_NO_HOP[Direction(way)],) * 2
        where = Direction(way).name.lower()
        space_label = profile.namespace_label(ns)
        if dev:
            return f"{_device_key(profile, dev)}/{where}", f"{device_label(profile, dev)} {where}"
        if way == Direction.TASK or (way == Direction.UNKNOWN and ns):
            return f"{_space_key(profile, ns)}/task", f"{space_label} (task)"
        if not (ns or way):
            return "unknown", "unknown"
        return f"{_space_key(profile, ns)}//{where}", f"{space_label} {where}"

    return _named((space * width + device) * len(Direction) + direction, name)


def _by_context(chosen: View) -> Groups:
    return _named(chosen.column("context"), lambda i: (Context(i).name.lower(),) * 2)


def _by_task(chosen: View) -> Groups:
    """By comm: PIDs differ between any two runs."""
    tasks = chosen.profile.tasks
    if not tasks:
        return _named(np.zeros(len(chosen.row), "i8"), lambda _: ("unknown", "unknown"))
    comms = {comm: i for i, comm in enumerate(dict.fromkeys(t.comm for t in tasks))}
    names = list(comms)
    of_task = np.array([comms[t.comm] for t in tasks], "i8")
    return _named(of_task[chosen.column("task")], lambda i: (names[i], names[i]))


def _by_cpu(chosen: View) -> Groups:
    return _named(chosen.column("cpu"), lambda i: (str(i), f"cpu {i}"))


def _by_run(chosen: View) -> Groups:
    return _named(chosen.run.astype("i8"), lambda i: (str(chosen.runs[i]), f"run {chosen.runs[i] + 1}"))


_SPLITS: dict[str, Callable[[View], Groups]] = {
    "netns": _by_netns,
    "device": _by_device,
    "hop": _by_hop,
    "context": _by_context,
    "task": _by_task,
    "cpu": _by_cpu,
    "run": _by_run,
}


def shares_by_context(chosen: View, number: NDArray[Any], groups: int) -> list[dict[str, float]]:
    """Per group: context name -> share of the group's weight, largest first."""
    wide = len(Context)
    keep = number >= 0
    table = np.bincount(
        number[keep] * wide + chosen.column("context")[keep], weights=chosen.cost[keep], minlength=groups * wide
    ).reshape(groups, wide)
    sums = table.sum(axis=1)
    made: list[dict[str, float]] = []
    for row, total in zip(table, sums, strict=True):
        order = np.argsort(-row, kind="stable")
        made.append({Context(int(i)).name.lower(): float(row[i] / total) for i in order if row[i] > 0 and total > 0})
    return made
