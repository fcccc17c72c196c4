"""Commands that can be pasted: what to change at the place that was found, and the same measurement once more."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from nsprof.analyse.causes.case import Case, Side
from nsprof.analyse.causes.rule import Try
from nsprof.model.results import Suggestion

__all__ = ["command", "suggestion"]

#: What a reader has to fill in.
_BLANK = re.compile(r"\b(NETNS|DEV)\b")
#: Tools that show or change the namespace in which they run.
_IN_NAMESPACE = {"ip", "tc", "ethtool", "bridge", "nft", "nstat", "ss", "sysctl"}


def command(case: Case, files: tuple[str, str]) -> str:
    """The measurement of `case` once more and its explanation, one line for a shell; "" where it is not known how
    the profiles were made (imported ones)."""
    meta = case.new.profile.meta
    base, new = case.base.scenario, case.new.scenario
    if isinstance(meta.get("simulate"), Mapping):
        return _simulate(case.new, base, new)
    bench = meta.get("bench")
    if isinstance(bench, Mapping) and bench.get("command"):
        made = ["nsprof", "bench", "--scenario", f"{base},{new}", "-o", "after.nsprof"]
        runs = max(len(case.base.run_objects), len(case.new.run_objects))
        made += [*(["--runs", str(runs)] if runs > 1 else []), "--", *bench["command"]]
        return _then(made, base, new)
    record = meta.get("record")
    if isinstance(record, Mapping) and record.get("command"):
        where = ["--in", str(record["in"])] if record.get("in") else []
        where += [w for each in record.get("watch") or () for w in ("--watch", str(each))]
        made = ["nsprof", "record", "-o", "after.nsprof", *where, "--", *record["command"]]
        return (
            f"{shlex.join(made)} && {shlex.join(['nsprof', 'explain', 'after.nsprof', '--baseline', files[0]])}"
            if (files[0])
            else shlex.join(made)
        )
    return ""


def _then(made: Sequence[str], base: str, new: str) -> str:
    explain = ["nsprof", "explain", "after.nsprof", "--baseline", base, "--scenario", new]
    return f"{shlex.join(made)} && {shlex.join(explain)}"


def _simulate(side: Side, base: str, new: str) -> str:
    done: Mapping[str, Any] = side.profile.meta["simulate"]
    scenarios = list(dict.fromkeys(name.rpartition(":")[2] for name in (base, new)))
    kernels = dict.fromkeys(str(run.get("kernel", "")) for run in done.get("runs") or ())
    words = ["nsprof", "simulate", "--scenario", ",".join(scenarios)]
    for kernel in filter(None, kernels):
        words += ["--kernel", kernel]
    if done.get("workload"):
        words += ["--workload", str(done["workload"])]
    return _then([*words, "-o", "after.nsprof"], base, new)


def suggestion(tried: Try, place: str, case: Case, again: str) -> Suggestion:
    """A suggestion with its place filled in, and how to verify that it helped. What verifies can be pasted as it is:
    where a namespace has no name to enter, the measurement is made once more instead."""
    verify = _placed(tried.verify, place, case)
    pasted = verify if verify and not _BLANK.search(verify) else again
    return Suggestion(tried.text, _placed(tried.command, place, case), pasted)


def _placed(words: str, place: str, case: Case) -> str:
    """A command for the namespace and device of a place ("w0 in host", "host"). A namespace that a measurement makes
    for itself is gone when it ends and has no name to enter: then NETNS is left for the reader to fill in."""
    if not words:
        return ""
    device, _, space = place.rpartition(" in ")
    if device:
        words = re.sub(r"\bDEV\b", lambda _: shlex.quote(device), words)
    if words.partition(" ")[0] not in _IN_NAMESPACE:
        return words
    named = next((n for n in case.new.profile.namespaces if space and n.label == space), None)
    if named is None or not named.name or _is_initial(named.name):
        return words
    inside = "NETNS" if named.made else shlex.quote(named.name)
    return "; ".join(f"ip netns exec {inside} {part.strip()}" for part in words.split(";"))


def _is_initial(name: str) -> bool:
    return name in ("init", "own")
