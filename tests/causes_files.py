"""Faults described in a TOML file: written by somebody who need not know the rules (format: docs/causes.md)."""

from __future__ import annotations

import subprocess
import tomllib
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, cast

from nsprof.errors import NsprofError, UsageError, WorkloadError
from nsprof.model.scenario import Place, TopologySpec
from nsprof.netns import spawn
from nsprof.topology.construction import Topology
from tests.causes_bed import Apply, Beside, Fault, nobody, nothing

__all__ = ["faults_of"]

_KEYS = {
    "name", "expect", "both", "scenario", "workload", "clean_scenario", "clean_workload", "setup", "prepare", "side",
    "everyone",
}  # fmt: skip
_SCENARIO = {"shape", "containers", "family", "mtu", "wire_rate_bps", "offloads"}
_STEP = {"netns", "run", "stdin", "background"}


def faults_of(path: Path) -> tuple[Fault, ...]:
    """The faults of a file, in its order. Raises UsageError naming the fault and the key that cannot be meant."""
    try:
        table = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path}: {error}", "format: docs/causes.md") from error
    rows = table.get("fault")
    if not isinstance(rows, list) or not rows:
        raise UsageError(f"{path}: no [[fault]]", "format: docs/causes.md")
    return tuple(_fault(row, number) for number, row in enumerate(rows, 1))


def _fault(row: Mapping[str, Any], number: int) -> Fault:
    name = str(row.get("name") or f"fault {number}")
    unknown = set(row) - _KEYS
    if unknown:
        raise UsageError(f"{name}: no key {sorted(unknown)[0]!r}", f"there are: {', '.join(sorted(_KEYS))}")
    expect, pair = _words(row, "expect", name), _words(row, "both", name)
    if not expect and not pair:
        raise UsageError(f"{name}: no expected cause", 'expect = ["netfilter-rules"]')
    command = _words(row, "workload", name) or ("netperf", "-t", "UDP_RR", "-l", "1")
    clean = row.get("clean_scenario")
    side = row.get("side", "dut")
    if side not in ("dut", "remote", "all"):
        raise UsageError(f"{name}: side {side!r}", 'side = "dut", "remote" or "all"')
    return Fault(
        name=name,
        expect=expect or pair,
        spec=_spec(row.get("scenario", "host"), name),
        command=command,
        apply=_steps(row.get("setup", []), name),
        clean_spec=_spec(clean, name) if clean is not None else None,
        clean_command=_words(row, "clean_workload", name),
        prepare=_steps(row.get("prepare", []), name),
        both=pair,
        beside=_background(row.get("setup", []), name),
        always=_background(row.get("prepare", []), name),
        side=cast(Literal["dut", "remote", "all"], side),
        everyone=bool(row.get("everyone", False)),
    )


def _words(row: Mapping[str, Any], key: str, name: str) -> tuple[str, ...]:
    words = row.get(key, [])
    if not isinstance(words, list) or not all(isinstance(w, str) for w in words):
        raise UsageError(f"{name}: {key} must be a list of words", f'{key} = ["...", "..."]')
    return tuple(words)


def _spec(given: Any, name: str) -> TopologySpec:
    options = {"shape": given} if isinstance(given, str) else given
    if not isinstance(options, Mapping) or set(options) - _SCENARIO:
        raise UsageError(
            f"{name}: scenario {given!r}", 'scenario = "veth-bridge", or { shape = "host", mtu = 1500, family = 6 }'
        )
    return TopologySpec(**options)


def _steps(given: Any, name: str) -> Apply:
    steps = given if isinstance(given, list) else [given]
    for step in steps:
        if not isinstance(step, Mapping) or set(step) - _STEP or not _words(step, "run", name):
            raise UsageError(f"{name}: step {step!r}", '{ netns = "host", run = ["tc", "qdisc", ...] }')
    if not steps:
        return nothing

    def apply(topo: Topology, stack: ExitStack) -> None:
        for step in steps:
            if not step.get("background"):
                _do(topo, step, name)

    return apply


def _background(given: Any, name: str) -> Beside:
    rows = given if isinstance(given, list) else [given]
    steps = [s for s in rows if isinstance(s, Mapping) and s.get("background")]

    def beside(topo: Topology) -> list[tuple[Place, tuple[str, ...]]]:
        return [_place(topo, step, name) for step in steps]

    return beside if steps else nobody


def _place(topo: Topology, step: Mapping[str, Any], name: str) -> tuple[Place, tuple[str, ...]]:
    """Where a step runs, and its words with what stands in braces filled in."""
    places = {
        **{p.name: p for p in (topo.host, topo.server, *topo.clients)},
        "client": topo.client, "host": topo.host, "remote": topo.server,
    }  # fmt: skip
    where = str(step.get("netns", "client"))
    if where not in places:
        raise UsageError(f"{name}: no namespace {where!r}", f"there are: {', '.join(sorted(places))}")
    wire = topo.reference[1]
    fields = {"{dev}": "eth0" if topo.client.role == "container" else wire, "{wire}": wire}
    fields |= {"{server}": topo.server_address, "{client}": topo.client.address}
    return places[where], tuple(_filled(word, fields) for word in step["run"])


def _do(topo: Topology, step: Mapping[str, Any], name: str) -> None:
    place, argv = _place(topo, step, name)
    process = spawn(
        argv, netns=place.netns_path, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    with process:
        try:
            _, err = process.communicate(str(step.get("stdin", "")).encode(), timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise NsprofError(f"{name}: {argv[0]} took more than a minute", "background = true keeps it") from None
    if process.returncode:
        line = (err.decode(errors="replace").strip().splitlines() or ["no message"])[0]
        raise WorkloadError(f"{name}: {' '.join(argv)} in {place.name}: {line}")


def _filled(word: str, fields: Mapping[str, str]) -> str:
    for field, value in fields.items():
        word = word.replace(field, value)
    return word
