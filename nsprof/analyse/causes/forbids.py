"""What the input does not allow, which class the answer is of, and what one more recording would settle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nsprof.analyse import categories
from nsprof.analyse.causes.case import Case
from nsprof.analyse.causes.rule import Rule
from nsprof.analyse.selection import View
from nsprof.analyse.stacks import StackTable, row_categories
from nsprof.model.profile import Context, FrameKind
from nsprof.model.results import DeltaRow, Finding

__all__ = ["Limits", "answer_of", "limits_of", "next_steps"]

#: With fewer samples a side a function of 2 % has fewer than 2 samples: nothing can be said of functions.
FEW_SAMPLES = 100
#: From here on more samples lie in the wrong place, or nowhere, than in the right one.
MOST = 0.5
#: From here on those that are left are too few to stand for the rest.
NEARLY_ALL = 0.9
#: A kernel that nsprof's table of names does not know, or the symbols of another one: measured coverage of right
#: symbols is above 0.9 on 6.1 to 6.18.
FOREIGN = 0.3


@dataclass(frozen=True, slots=True)
class Limits:
    """`functions`: no conclusion from functions; `alone`: none from functions alone; `counters`: none from counters
    per unit; `lines` say why."""

    functions: bool = False
    alone: bool = False
    counters: bool = False
    lines: tuple[str, ...] = ()


def limits_of(case: Case, samples: tuple[float, float]) -> Limits:
    """Look at both sides for what makes conclusions impossible."""
    lines: list[str] = []
    functions = alone = counters = False
    measure = case.sides.measure
    exact = measure.kind in ("modelled", "counted")
    for number, (chosen, table) in enumerate(zip(case.sides.views, case.sides.tables, strict=True)):
        why = _function_limits(chosen, table, samples[number], exact=exact)
        if why:
            functions = True
            lines += [f"{case.sides.titles[number]}: {w}; no cause is concluded from functions" for w in why]
        skid = float(chosen.weight[chosen.skid].sum() / (chosen.weight.sum() or 1.0))
        if MOST < skid <= NEARLY_ALL:
            alone = True
            lines.append(
                f"{case.sides.titles[number]}: {skid:.0%} of the samples arrived late (skid), so that the "
                "time of their functions is not known; no cause is concluded from functions alone"
            )
    if measure.per in ("share", "second", "") and not exact:
        counters = True
        what = "shares are compared" if measure.per == "share" else f"cost is per {measure.per or 'recording'}"
        lines.append(
            f"no transactions, packets or bytes were counted ({what}): how often something happened per unit of "
            "work is not known, so no conclusion from counters"
        )
    return Limits(functions, alone, counters, tuple(lines))


def _function_limits(chosen: View, table: StackTable, samples: float, *, exact: bool) -> list[str]:
    why = []
    if not exact and samples < FEW_SAMPLES:
        why.append(f"only {samples:,.0f} samples (fewer than {FEW_SAMPLES})")
    weight = chosen.weight.sum() or 1.0
    kernel = chosen.column("context") != int(Context.USER)
    kernel_weight = float(chosen.weight[kernel].sum())
    if kernel_weight <= 0:
        return [*why, "no sample in the kernel (kernel stacks were not recorded, or nothing ran there)"]
    skid = float(chosen.weight[chosen.skid].sum() / weight)
    if skid > NEARLY_ALL:
        why.append(f"{skid:.0%} of the samples arrived late (skid) and lie outside the code that cost the time")
    stack = chosen.column("stack")
    bare = _no_names(chosen)[stack] & kernel
    unnamed = float(chosen.weight[bare].sum() / kernel_weight)
    if unnamed > MOST:
        why.append(f"{unnamed:.0%} of the kernel samples have no symbol")
    else:
        known = ~np.isin(row_categories(chosen, table), [categories.ALL.index(c) for c in ("other", "unknown")])
        covered = float(chosen.weight[kernel & known].sum() / kernel_weight)
        if covered < FOREIGN:
            why.append(f"only {covered:.0%} of the kernel samples have names of a Linux datapath (foreign symbols?)")
    for run in chosen.run_objects:
        if run.losses.lost_share > MOST:
            why.append(f"{run.losses.lost_share:.0%} of the samples of a run were lost")
            break
    return why


def _no_names(chosen: View) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Per stack: whether its leaf is an address or nothing."""
    profile = chosen.profile
    nameless = np.array(
        [
            (not name or name.startswith(("0x", "[unknown", "unknown")) or _is_hex(name)) and kind != FrameKind.USER
            for name, kind in zip(profile.frames.name, profile.frames.kind.tolist(), strict=True)
        ],
        bool,
    )
    offsets = profile.stacks.offsets
    made = np.ones(len(profile.stacks), bool)
    full = np.diff(offsets) > 0
    if full.any():
        made[full] = nameless[profile.stacks.frames[offsets[:-1][full]]]
    return made


def _is_hex(name: str) -> bool:
    return len(name) >= 12 and all(c in "0123456789abcdef" for c in name)


def answer_of(
    case: Case, findings: Sequence[Finding], total: DeltaRow, share: float, limits: Limits
) -> tuple[str, list[str]]:
    """(class of answer, reasons)."""
    reasons: list[str] = []
    sure = [f for f in findings if f.certainty == "found"]
    around = total.interval
    level = around is not None and around.low <= 0 <= around.high
    if level:
        reasons.append("the total cost is not shown to differ: 0 lies in its 95 % interval")
    if not findings and (limits.functions or min(total.samples_base, total.samples_new) < FEW_SAMPLES):
        return "not enough data", [*limits.lines, *reasons]
    if sure and sure[0].not_cpu:
        return "not cpu", reasons
    if findings and math.isnan(share):
        return "partly explained", reasons
    if findings:
        return ("explained" if share < 0.25 else "partly explained"), reasons
    if around is None and abs(total.delta) < 0.1 * max(total.base, 1e-12):
        reasons.append("one run a side and less than 10 % apart: run-to-run spread alone does this")
        return "no difference", reasons
    if level:
        wide = (around.high - around.low) / 2 if around is not None else 0.0
        if total.base > 0 and wide > 0.1 * total.base:
            reasons.append(
                f"the runs of one side differ so much that changes below {wide / total.base:.0%} cannot be seen"
            )
            return "not enough data", reasons
        return "no difference", reasons
    return "not explained", reasons


def next_steps(
    case: Case, findings: Sequence[Finding], rules: Sequence[Rule], limits: Limits, runs: Sequence[int]
) -> tuple[str, ...]:
    """What one more recording would settle."""
    steps: list[str] = []
    exact = case.sides.measure.kind == "modelled"
    if not exact and min(runs) < 2:
        steps.append("nsprof record --runs 8 ...: with several runs a side the shares get intervals")
    if not exact and not (case.base.counted and case.new.counted):
        steps.append("nsprof record -- COMMAND: counters before and after confirm or refute what functions suggest")
    if limits.counters and not exact:
        steps.append("nsprof record -- netperf ... (or --per DEV): cost per transaction, KB or packet")
    by_name = {r.name: r for r in rules}
    for finding in findings:
        if finding.certainty == "possible":
            needs = dict.fromkeys(c.needs for c in by_name[finding.cause].checks if c.needs)
            steps += [f"{need}: would settle '{finding.title}'" for need in needs]
    return tuple(dict.fromkeys(steps))
