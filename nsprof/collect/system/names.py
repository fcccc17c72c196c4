"""What a network namespace is called: `ip netns` name, container or pod, service, host name, process; inode last.

Containers are found through the control group of the processes inside, since every engine writes the container's
id there. Names that need the engine's own state files (docker, containerd, CRI-O, podman) are read from them where
they can be read.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsprof.escape import as_stored

__all__ = ["Membership", "look", "membership", "names_of", "paths_of"]

#: Where namespaces are kept as files: ip(8) and docker.
_NETNS_FOLDERS = ("run/netns", "run/docker/netns")
_ID = r"(?P<id>[0-9a-f]{32,64})"
#: Last component of a container's control group, cgroupfs or systemd driver, by engine.
_CONTAINER = (
    ("docker", re.compile(rf"/docker[-/]{_ID}(?:\.scope)?(?:/|$)")),
    ("containerd", re.compile(rf"/cri-containerd[-:]{_ID}(?:\.scope)?(?:/|$)")),
    ("containerd", re.compile(rf"/nerdctl-{_ID}(?:\.scope)?(?:/|$)")),
    ("crio", re.compile(rf"/crio-(?!conmon){_ID}(?:\.scope)?(?:/|$)")),
    ("podman", re.compile(rf"/libpod-(?!conmon){_ID}(?:\.scope)?(?:/|$)")),
    ("lxc", re.compile(r"/lxc(?:\.payload)?[./](?P<id>[^/.][^/]*)")),
    ("nspawn", re.compile(r"/machine\.slice/(?:systemd-nspawn@|machine-)(?P<id>[^/]+?)\.(?:service|scope)")),
)
#: kubepods-burstable-pod1234_5678.slice or kubepods/burstable/pod1234-5678
_POD = re.compile(r"kubepods[^:]*?[-/]pod(?P<uid>[0-9a-f]{8}[-_][0-9a-f_-]{20,}|[0-9a-f]{32})(?:\.slice)?(?:/|$)")
_POD_CONTAINER = re.compile(rf"/pod[0-9a-f_-]+/{_ID}(?:/|$)")
_SERVICE = re.compile(r"/system\.slice/(?:[^/]+\.slice/)*(?P<unit>[^/]+)\.service(?:/|$)")
#: Names of `ip netns` kind that a machine made: CNI plug-ins and docker.
_MACHINE_MADE = re.compile(r"^(cni-[0-9a-f-]{36}|[0-9a-f]{12,64}|netns-[0-9a-f-]{36})$")


@dataclass(frozen=True, slots=True)
class Membership:
    """What a process's control groups say. `engine` is "" for a process in no container."""

    engine: str = ""
    container_id: str = ""
    pod_uid: str = ""
    service: str = ""


def membership(cgroup_text: str) -> Membership:
    """Read /proc/PID/cgroup (version 1, 2 or hybrid; any engine's layout)."""
    engine = container = pod = service = ""
    for line in cgroup_text.splitlines():
        path = line.split(":", 2)[-1]
        pod_match = _POD.search(path)
        if pod_match:
            pod = pod or pod_match["uid"].replace("_", "-")
            inside = _POD_CONTAINER.search(path)
            if inside and not container:
                engine, container = "kubernetes", inside["id"]
        for name, pattern in _CONTAINER:
            match = pattern.search(path)
            if match and not container:
                engine, container = name, match["id"]
        unit = _SERVICE.search(path)
        if unit and not service:
            service = unit["unit"]
    return Membership(engine or ("kubernetes" if pod else ""), container, pod, service)


def names_of(inodes: Iterable[int] | None = None, *, root: Path = Path("/")) -> dict[int, str]:
    """Best name of each namespace, by inode; those for which there is none are left out.

    `inodes` limits the work (None: all that have a name or a process). Two namespaces never get the same name:
    the later ones are marked with their inode.
    """
    wanted = None if inodes is None else set(inodes)
    return _names(root, wanted, _files(root), _first_processes(root, wanted))


def look(*, root: Path = Path("/")) -> tuple[dict[int, str], dict[int, str]]:
    """(paths, names) of all namespaces, as paths_of() and names_of() have them, for the price of one."""
    files, processes = _files(root), _first_processes(root, None)
    return _paths(root, files, processes), _names(root, None, files, processes)


#: (name, path, inode) of the namespaces that are kept as files, by folder and name.
_Files = list[tuple[str, str, int]]


def _files(root: Path) -> _Files:
    found = []
    for folder in _NETNS_FOLDERS:
        try:
            entries = sorted(os.scandir(root / folder), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            with suppress(OSError):  # removed since it was listed
                found.append((entry.name, entry.path, entry.stat().st_ino))
    return found


def _names(root: Path, wanted: set[int] | None, files: _Files, processes: Mapping[int, int]) -> dict[int, str]:
    given: dict[int, str] = {}
    for name, _, inode in files:  # the first in alphabetical order where one has several
        given.setdefault(inode, as_stored(name))
    own_uts = _link(root / "proc/self/ns/uts")
    found: dict[int, str] = {}
    for inode in sorted(set(given) | set(processes)):
        if wanted is not None and inode not in wanted:
            continue
        name = given.get(inode, "")
        if not name or _MACHINE_MADE.match(name):
            name = _from_process(root, processes.get(inode, 0), own_uts) or name
        if name:
            found[inode] = name
    return _told_apart(found)


def paths_of(*, root: Path = Path("/")) -> dict[int, str]:
    """A path to enter each namespace by, by inode: its file under /run/netns where it has one, else a process's."""
    return _paths(root, _files(root), _first_processes(root, None))


def _paths(root: Path, files: _Files, processes: Mapping[int, int]) -> dict[int, str]:
    found = {inode: str(root / f"proc/{pid}/ns/net") for inode, pid in processes.items()}
    kept: dict[int, str] = {}
    for _, path, inode in files:
        kept.setdefault(inode, path)
    return found | kept


def _told_apart(names: Mapping[int, str]) -> dict[int, str]:
    seen: set[str] = set()
    result = {}
    for inode, name in names.items():
        result[inode] = f"{name} [{inode}]" if name in seen else name
        seen.add(name)
    return result


def _first_processes(root: Path, wanted: set[int] | None) -> dict[int, int]:
    """Lowest PID in each namespace: of a container its first process, of a pod its pause process."""
    found: dict[int, int] = {}
    try:
        pids = sorted(int(name) for name in os.listdir(root / "proc") if name.isdigit())  # noqa: PTH208
    except OSError:
        return found
    for pid in pids:
        target = _link(root / f"proc/{pid}/ns/net")
        match = re.fullmatch(r"net:\[(\d+)\]", target)
        if match and (wanted is None or int(match[1]) in wanted):
            found.setdefault(int(match[1]), pid)
    return found


def _link(path: Path) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115 - no path, but net:[4026531840]
    except OSError:
        return ""


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "backslashreplace").strip()
    except OSError:
        return ""


def _from_process(root: Path, pid: int, own_uts: str) -> str:
    if not pid:
        return ""
    member = membership(_read(root / f"proc/{pid}/cgroup"))
    if member.container_id:
        named = _engine_name(root, member)
        if named:
            return named
    comm = _read(root / f"proc/{pid}/comm")
    if pid == 1 or (pid == 2 and comm == "kthreadd"):  # kernel threads live in the initial namespace
        return "init"
    if member.engine or _link(root / f"proc/{pid}/ns/uts") not in ("", own_uts):
        host = _read(root / f"proc/{pid}/root/etc/hostname").split("\n")[0]
        if host and not member.container_id.startswith(host):
            return host
    if member.container_id:
        return f"{member.engine}:{member.container_id[:12]}"
    if member.pod_uid:
        return f"pod:{member.pod_uid}"
    if member.service:
        return f"{member.service}.service"
    return f"{comm}[{pid}]" if comm else ""


def _engine_name(root: Path, member: Membership) -> str:
    """The container's or pod's name from its engine's files; "" where they cannot be read or do not say."""
    number = member.container_id
    docker = _json(root / f"var/lib/docker/containers/{number}/config.v2.json")
    labels = (docker.get("Config") or {}).get("Labels") if isinstance(docker.get("Config"), dict) else None
    if docker.get("Name"):
        return _pod_name(labels or {}) or str(docker["Name"]).lstrip("/")
    for folder in (
        "run/containerd/io.containerd.runtime.v2.task/k8s.io",
        "run/containerd/io.containerd.runtime.v2.task/default",
    ):
        notes = _json(root / folder / number / "config.json").get("annotations")
        if isinstance(notes, dict) and (name := _pod_name(notes)):
            return name
    for folder in ("run/containers/storage", "var/lib/containers/storage"):
        notes = _json(root / folder / f"overlay-containers/{number}/userdata/config.json").get("annotations")
        if isinstance(notes, dict) and (name := _pod_name(notes)):
            return name
    return next(_podman_names(root, number), "")


def _podman_names(root: Path, number: str) -> Iterator[str]:
    path = root / "var/lib/containers/storage/overlay-containers/containers.json"
    rows = _json(path, list)
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and row.get("id") == number and row.get("names"):
            yield str(row["names"][0])


def _pod_name(notes: Mapping[str, Any]) -> str:
    """namespace/pod from the labels and annotations that dockershim, containerd and CRI-O write."""
    for space_key, pod_key in (
        ("io.kubernetes.pod.namespace", "io.kubernetes.pod.name"),
        ("io.kubernetes.cri.sandbox-namespace", "io.kubernetes.cri.sandbox-name"),
    ):
        if notes.get(pod_key):
            space = notes.get(space_key)
            return f"{space}/{notes[pod_key]}" if space else str(notes[pod_key])
    return str(notes.get("nerdctl/name", ""))


def _json(path: Path, kind: type = dict) -> Any:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return kind()
    return value if isinstance(value, kind) else kind()
