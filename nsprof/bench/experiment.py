"""Experiments as files: TOML in, a Plan out. Every key is checked; nothing in the file is executed but its commands.

title = "..."                        runs = 8      baseline = "host"     needs = ["vrf"]
[topology]   wire-rate, mtu, offload, ipv6, host-netns, pin, uplink, remote, take-uplink
[scenarios]  shapes, containers, busy
[[workload]] name, command (with {seconds}), seconds, direction
[reduced]    what replaces the above without --full: runs, seconds, containers, shapes
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nsprof import workload
from nsprof.bench.plan import Case, Plan, topology_spec
from nsprof.errors import NsprofError, UsageError
from nsprof.files import near_names
from nsprof.units import DENOMINATORS

__all__ = ["TABLES", "load"]

#: Tables that a report may have.
TABLES = ("document", "delta", "lkp", "scaling", "rates")

#: section -> key -> (type, what it means). The schema, and what a message offers.
_SCHEMA: dict[str, dict[str, type | tuple[type, ...]]] = {
    "": {
        "title": str,
        "about": str,
        "runs": int,
        "baseline": str,
        "frequency": int,
        "events": list,
        "hop": bool,
        "timeout": (int, float),
        "max-time": (int, float),
        "until": str,
        "needs": list,
        "tables": list,
        "per": str,
        "topology": dict,
        "scenarios": dict,
        "workload": list,
        "reduced": dict,
        "churn": dict,
    },
    "topology": {
        "wire-rate": str,
        "mtu": int,
        "offload": str,
        "ipv6": bool,
        "host-netns": str,
        "pin": bool,
        "uplink": str,
        "remote": str,
        "take-uplink": bool,
    },
    "scenarios": {"shapes": list, "containers": list, "busy": list},
    "workload": {"name": str, "command": list, "seconds": int, "direction": str},
    "reduced": {"runs": int, "seconds": int, "containers": list, "shapes": list, "churn": dict},
    "churn": {
        "namespaces": int,
        "mount-namespaces": int,
        "tools": list,
        "rounds": int,
        "propagation": str,
        "parallel": int,
    },
}
_SECTION = re.compile(r"^\s*\[{1,2}\s*([A-Za-z0-9_.-]+)\s*\]{1,2}")
_KEY = re.compile(r"""^\s*["']?([A-Za-z0-9_-]+)["']?\s*=""")


class _File:
    """The text, for line numbers in messages."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            text = Path(path).read_bytes().decode("utf-8")
            self.data: dict[str, Any] = tomllib.loads(text)
        except FileNotFoundError:
            hint = near_names(path, suffix=".toml") or "there are some in examples/"
            raise UsageError(f"no such experiment file: {path}", hint) from None
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"{path}: not TOML: {error}") from error
        self.lines = text.splitlines()

    def line(self, section: str, key: str = "", nth: int = 0) -> int:
        """The line of a key in the nth section of that name; of the section's head without a key; else 0."""
        current, seen = "", -1 if section else 0
        for number, text in enumerate(self.lines, 1):
            head = _SECTION.match(text)
            if head:
                current = head[1]
                if current == section:
                    seen += 1
                    if not key and seen == nth:
                        return number
                continue
            found = _KEY.match(text)
            if found and current == section and seen == nth and found[1] == key:
                return number
        return 0

    def error(self, section: str, key: str, what: str, hint: str = "", nth: int = 0) -> UsageError:
        number = self.line(section, key, nth) or self.line(section, "", nth)
        return UsageError(f"{self.path}{f':{number}' if number else ''}: {what}", hint)

    def check(self, section: str, table: Mapping[str, Any], nth: int = 0, schema: str = "") -> None:
        known = _SCHEMA[schema or section]
        for key, value in table.items():
            where = f" in [{section}]" if section else ""
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
                elsewhere = [s or "the top" for s, keys in _SCHEMA.items() if key in keys]
                if near:
                    hint = f"did you mean {near[0]!r}?"
                elif elsewhere:
                    hint = f"{key!r} belongs to {' or '.join(f'[{e}]' if e != 'the top' else e for e in elsewhere)}"
                else:
                    hint = "there are: " + ", ".join(known)
                raise self.error(section, key, f"unknown key {key!r}{where}", hint, nth)
            wanted = known[key]
            right = isinstance(value, wanted) and not (isinstance(value, bool) and wanted is not bool)
            if not right:
                names = wanted if isinstance(wanted, tuple) else (wanted,)
                words = " or ".join(_TYPES[t] for t in names)
                raise self.error(section, key, f"{key} must be {words}, not {value!r}", "", nth)


_TYPES: dict[type, str] = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a table",
}


def load(path: str, *, full: bool = False, seconds: int = 0, **changes: Any) -> Plan:
    """The plan of an experiment file. Without `full` its [reduced] lengths are taken; `seconds` replaces every
    workload's. `changes` are fields of Plan that the command line sets.

    Raises UsageError with file, line, key and the nearest valid word for anything unknown or impossible.
    """
    file = _File(path)
    data = file.data
    file.check("", data)
    for section in ("topology", "scenarios", "reduced", "churn"):
        file.check(section, data.get(section, {}))
    file.check("reduced.churn", data.get("reduced", {}).get("churn", {}), schema="churn")
    works = data.get("workload", [])
    for nth, work in enumerate(works):
        if not isinstance(work, dict):
            raise file.error("", "workload", "workload must be tables", "write [[workload]]")
        file.check("workload", work, nth)
    _lists(file, data)
    if not works and "churn" not in data:
        raise file.error("", "", "no [[workload]], so there is nothing to run")
    if "churn" in data and works:
        raise file.error("churn", "", "[churn] and [[workload]] exclude each other", "make two files of it")
    reduced = {} if full else data.get("reduced", {})
    cases = [c for nth, work in enumerate(works) for c in _cases(file, data, reduced, work, nth, seconds)]
    names = [c.name for c in cases]
    twice = next((n for n in names if names.count(n) > 1), "")
    if twice:
        raise file.error("workload", "name", f"{twice!r} would be run twice", "give each [[workload]] its own name")
    plan = Plan(
        cases=tuple(cases),
        runs=reduced.get("runs", data.get("runs", 3)),
        baseline=data.get("baseline", ""),
        frequency_hz=data.get("frequency", 499),
        events=tuple(data.get("events", ("cpu-clock",))),
        hop=data.get("hop", False),
        timeout_s=float(data.get("timeout", 0)),
        max_time_s=float(data.get("max-time", 0)),
        title=data.get("title", Path(path).stem),
        about=data.get("about", ""),
        needs=tuple(data.get("needs", ())),
        tables=tuple(data.get("tables", ("document", "delta"))),
        per=data.get("per", ""),
        experiment=Path(path).name,
    )
    if "until" in data:
        from nsprof.bench.stopping import parse_share

        try:
            plan = replace(plan, until=parse_share(data["until"]))
        except UsageError as error:
            raise file.error("", "until", error.message, error.hint) from None
    plan = replace(plan, **changes)
    _check_plan(file, data, plan)
    return plan


def churn_of(path: str, *, full: bool = False) -> dict[str, Any] | None:
    """The [churn] table of a file that has one (with [reduced.churn] laid over it unless `full`), else None."""
    file = _File(path)
    if "churn" not in file.data:
        return None
    load(path, full=full)
    reduced = {} if full else file.data.get("reduced", {}).get("churn", {})
    return {**file.data["churn"], **reduced, "title": file.data.get("title", "")}


def _lists(file: _File, data: Mapping[str, Any]) -> None:
    """Lists hold what they should."""
    wanted: dict[tuple[str, str], type] = {
        ("", "events"): str,
        ("", "needs"): str,
        ("", "tables"): str,
        ("scenarios", "shapes"): str,
        ("scenarios", "containers"): int,
        ("scenarios", "busy"): str,
        ("reduced", "containers"): int,
        ("reduced", "shapes"): str,
        ("churn", "tools"): str,
    }
    for (section, key), kind in wanted.items():
        table = data.get(section, {}) if section else data
        for value in table.get(key, ()):
            if not isinstance(value, kind) or isinstance(value, bool):
                raise file.error(section, key, f"{key} must hold {_TYPES[kind][2:]}s, not {value!r}")
        if key in table and not table[key]:
            raise file.error(section, key, f"{key} is empty")
    for table in data.get("tables", ()):
        if table not in TABLES:
            near = difflib.get_close_matches(table, TABLES, n=1)
            raise file.error(
                "", "tables", f"no table {table!r}", f"did you mean {near[0]!r}?" if near else ", ".join(TABLES)
            )


def _cases(
    file: _File, data: Mapping[str, Any], reduced: Mapping[str, Any], work: Mapping[str, Any], nth: int, seconds: int
) -> list[Case]:
    command = work.get("command")
    if not command or not all(isinstance(w, str) for w in command):
        raise file.error("workload", "command", "command must be a list of words", 'command = ["netperf"]', nth)
    length = seconds or reduced.get("seconds", work.get("seconds", 10))
    if length < 1:
        raise file.error("workload", "seconds", f"seconds = {length}: must be 1 or more", "", nth)
    words = tuple(w.replace("{seconds}", str(length)) for w in command)
    workload.driver(words)
    direction = work.get("direction", "tx")
    if direction not in ("tx", "rx"):
        raise file.error("workload", "direction", f"direction {direction!r}: must be 'tx' or 'rx'", "", nth)
    scenarios = {**data.get("scenarios", {}), **{k: v for k, v in reduced.items() if k in ("shapes", "containers")}}
    shapes: Sequence[str] = scenarios.get("shapes", ("host", "veth-bridge"))
    counts: Sequence[int] = scenarios.get("containers", (1,))
    busy: Sequence[str] = scenarios.get("busy", ("one",))
    for word in busy:
        if word not in ("one", "all"):
            raise file.error("scenarios", "busy", f"busy {word!r}: must be 'one' or 'all'")
    knobs = {key.replace("-", "_"): value for key, value in data.get("topology", {}).items()}
    name = work.get("name", "")
    if not name and len(data.get("workload", ())) > 1:
        raise file.error("workload", "", "several [[workload]] need a name each", 'name = "TCP_STREAM"', nth)
    if ":" in name or "/" in name:
        raise file.error("workload", "name", f"name {name!r}: ':' and '/' have a meaning of their own", "", nth)
    found = []
    for way in busy:
        part = " ".join(filter(None, (name, f"{way}-busy" if len(busy) > 1 else "")))
        for shape in shapes:
            single = shape == "host" or (shape == "device" and 1 in counts)
            for count in (1,) if single else counts:
                label = f"{shape} x{count}" if len(counts) > 1 and shape not in ("host", "device") else shape
                try:
                    spec = topology_spec(shape, {**knobs, "containers": count}, where="wire-rate")
                except NsprofError as error:
                    key = "containers" if "containers" in error.message else "shapes"
                    section = "scenarios" if "topology '" in error.message or key == "containers" else "topology"
                    raise file.error(section, key, error.message, error.hint) from error
                found.append(Case(part, label, spec, words, reverse=direction == "rx", busy=way))
    return found


def _check_plan(file: _File, data: Mapping[str, Any], plan: Plan) -> None:
    if plan.runs < 1:
        raise file.error("", "runs", f"runs = {plan.runs}: must be 1 or more")
    base = plan.baseline.rpartition(":")[2]
    if plan.per and plan.per not in DENOMINATORS:
        near = difflib.get_close_matches(plan.per, DENOMINATORS, n=1)
        raise file.error("", "per", f"per {plan.per!r} is no unit", near[0] if near else ", ".join(DENOMINATORS))
    labels = sorted({c.label for c in plan.cases})
    if base and base not in labels and plan.cases:
        near = difflib.get_close_matches(base, labels, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise file.error("", "baseline", f"baseline {base!r} is not run", hint + "there are: " + ", ".join(labels))
    if not 1 <= plan.frequency_hz <= 20_000:
        raise file.error("", "frequency", f"frequency = {plan.frequency_hz}: must be 1 to 20000")
    del data
