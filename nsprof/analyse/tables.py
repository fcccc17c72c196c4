"""Results and samples as pandas DataFrames, for notebooks and scripts (`nsprof.api`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pandas as pd

from nsprof.analyse.filters import device_label, effective_namespace
from nsprof.kernelnames import fold_suffixes
from nsprof.model.profile import Context, Direction, Lateness, Profile
from nsprof.model.results import FlameTree, Interval

__all__ = ["rows_frame", "runs_frame", "samples_frame", "tree_frame"]


def rows_frame(rows: Sequence[Any], row_type: type) -> pd.DataFrame:
    """One row a result row; an interval becomes `<name>_low` and `<name>_high` (nan where there is none).

    `row_type` gives the columns of an empty table.
    """
    columns: dict[str, list[Any]] = {}
    for field in fields(row_type):
        values = [getattr(row, field.name) for row in rows]
        if field.name.endswith("interval"):
            columns[f"{field.name}_low"] = [_bound(v, "low") for v in values]
            columns[f"{field.name}_high"] = [_bound(v, "high") for v in values]
        else:
            columns[field.name] = values
    return pd.DataFrame(columns)


def _bound(interval: Interval | None, end: str) -> float:
    return float(getattr(interval, end)) if interval is not None else float("nan")


def samples_frame(profile: Profile) -> pd.DataFrame:
    """One row a sample row with names instead of numbers: scenario, run, second, event, cpu, comm, namespaces,
    device, direction, context, lateness, leaf function, samples, weight. Names are categoricals, so a million rows
    are some tens of MB."""
    s = profile.samples

    def named(codes: Any, labels: Sequence[str]) -> Any:
        unique = list(dict.fromkeys(labels)) or [""]
        where = {label: i for i, label in enumerate(unique)}
        table = np.array([where[label] for label in labels] or [0])
        return pd.Categorical.from_codes(table[np.asarray(codes, "i8")], categories=pd.Index(unique))

    spaces = ["unknown", *(n.label for n in profile.namespaces)]
    devices = [device_label(profile, i) for i in range(len(profile.devices) + 1)]
    names = ["", *(fold_suffixes(n) for n in profile.frames.name)]
    has_leaf = np.diff(profile.stacks.offsets) > 0
    leaves = np.zeros(len(profile.stacks), "i8")
    leaves[has_leaf] = profile.stacks.frames[profile.stacks.offsets[:-1][has_leaf]].astype("i8") + 1
    return pd.DataFrame(
        {
            "run": s.run.astype("i4"),
            "scenario": named(s.run, [r.scenario for r in profile.runs]),
            "second": s.slice.astype("i4"),
            "event": named(s.event, [e.name for e in profile.events]),
            "cpu": s.cpu.astype("i4"),
            "comm": named(s.task, [t.comm for t in profile.tasks] or ["unknown"]),
            "task_netns": named(s.task_ns, spaces),
            "netns": named(effective_namespace(profile), spaces),
            "device": named(s.hop_dev, devices),
            "direction": named(s.hop_dir, [d.name.lower() for d in Direction]),
            "context": named(s.context, [c.name.lower() for c in Context]),
            "lateness": named(s.lateness, [x.name.lower() for x in Lateness]),
            "function": named(leaves[s.stack] if len(leaves) else np.zeros(len(s), "i8"), names),
            "stack": s.stack.astype("i8"),
            "samples": s.count.astype("i8"),
            "weight": s.weight,
        }
    )


def runs_frame(profile: Profile) -> pd.DataFrame:
    """One row a run: scenario, kernel, seconds, busy and own CPU seconds, losses, denominators, workload values."""
    rows = []
    for number, run in enumerate(profile.runs):
        row: dict[str, Any] = {
            "run": number,
            "scenario": run.scenario,
            "kernel": run.kernel,
            "duration_s": run.duration_s,
            "busy_s": sum(run.cpu_busy_s.values()),
            "own_cpu_s": run.own_cpu_s,
            "steal_s": run.cpu_steal_s,
            "lost_share": run.losses.lost_share,
            "failed": run.failed,
            "warmup": run.warmup,
        }
        row.update({f"{name}s": value for name, value in run.denominators.items()})
        row.update({value.name: value.value for value in run.values if value.name not in row})
        rows.append(row)
    return pd.DataFrame(rows)


def tree_frame(tree: FlameTree) -> pd.DataFrame:
    """One row a node of a call tree: name, module, parent (-1 for the root), self cost and samples of both sides."""
    strings = np.array(tree.strings, object)
    return pd.DataFrame(
        {
            "name": strings[tree.name],
            "module": strings[tree.module],
            "parent": tree.parent,
            "self_base": tree.self_base,
            "self_new": tree.self_new,
            "samples_base": tree.samples_base,
            "samples_new": tree.samples_new,
        }
    )
