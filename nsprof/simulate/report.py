"""The tables of `nsprof simulate`: exact totals per scenario, and which functions make the difference."""

from __future__ import annotations

import platform
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nsprof.render.tables import Cell, Column, Grid, Heading, Lines, Part
from nsprof.simulate import WORKLOADS, Measurement, SimulateOptions, iter_by_scenario
from nsprof.units import DENOMINATOR_NOUNS

__all__ = ["Group", "delta_rows", "document", "groups_of", "report_parts"]

_LINES = ("data-lines", "text-lines")
_MISSES = ("l1d-misses", "l1i-misses", "l2-misses")


@dataclass(frozen=True)
class Group:
    """All boots of one scenario on one kernel."""

    kernel: str
    scenario: str
    boots: tuple[Measurement, ...]

    @property
    def title(self) -> str:
        """kernel:scenario."""
        return f"{self.kernel}:{self.scenario}"

    @property
    def scale(self) -> float:
        """Repetitions a denominator: counts a repetition times this are counts a unit (KB, transaction, ...)."""
        first = self.boots[0]
        return first.repetitions / next(iter(first.denominators.values()))

    def per_unit(self, quantity: str) -> list[float]:
        """A quantity per unit, one value a boot."""
        unit = [next(iter(m.denominators.values())) for m in self.boots]
        if quantity == "instructions":
            return [m.sample.instructions / u for m, u in zip(self.boots, unit, strict=True)]
        return [m.sample.sum_of(quantity) / u for m, u in zip(self.boots, unit, strict=True)]

    def functions(self, quantity: str = "instructions") -> dict[str, float]:
        """Function -> self count per unit, the median over the boots."""
        each = [m.functions(quantity) for m in self.boots]
        names = dict.fromkeys(name for found in each for name in found)
        return {n: statistics.median(found.get(n, 0.0) for found in each) * self.scale for n in names}


def groups_of(measurements: Sequence[Measurement]) -> list[Group]:
    """The boots by kernel and scenario; kernels are called by release, or by SPEC where releases are equal."""
    found = list(iter_by_scenario(measurements))
    releases: dict[str, set[str]] = {}
    for spec, _, boots in found:
        releases.setdefault(boots[0].kernel.release, set()).add(spec)
    return [
        Group(
            boots[0].kernel.release if len(releases[boots[0].kernel.release]) == 1 else spec, scenario, tuple(boots)
        )
        for spec, scenario, boots in found
    ]


def delta_rows(base: Group, new: Group, quantity: str = "instructions") -> list[tuple[str, float, float, str]]:
    """(function, base, new, "new"/"gone"/"") of the functions that differ, by |delta|, then name."""
    old, now = base.functions(quantity), new.functions(quantity)
    rows = []
    for name in sorted({*old, *now}):
        a, b = old.get(name, 0.0), now.get(name, 0.0)
        if a != b:
            rows.append((name, a, b, "new" if name not in old else "gone" if name not in now else ""))
    return sorted(rows, key=lambda row: (-abs(row[2] - row[1]), row[0]))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:,.2f}"


def _signed(value: float) -> str:
    return "0" if value == 0 else ("+" if value > 0 else "-") + _number(abs(value))


def _spread(values: Sequence[float]) -> str:
    middle = _number(statistics.median(values))
    if len(values) == 1 or min(values) == max(values):
        return middle
    return f"{middle} ({_number(min(values))}..{_number(max(values))})"


def _noun(options: SimulateOptions) -> str:
    return "skb" if options.command else DENOMINATOR_NOUNS[WORKLOADS[options.workload][1]]


def report_parts(
    options: SimulateOptions, measurements: Sequence[Measurement], *, limit: int, estimate: Mapping[str, float]
) -> list[Part]:
    """Everything that is printed after a simulation."""
    groups = groups_of(measurements)
    what = " ".join(options.command) if options.command else f"{options.workload}, {options.bytes_each:,} bytes"
    noun = _noun(options)
    parts: list[Part] = [
        Heading(f"Modelled: exact kernel instructions per {noun}, {what}, IPv{options.family}", 1),
        Lines((_how(options, groups), *_elsewhere(groups))),
    ]
    kernels = list(dict.fromkeys(g.kernel for g in groups))
    for kernel in kernels:
        parts.append(_totals(kernel, [g for g in groups if g.kernel == kernel], estimate))
    if options.caches:
        parts.append(
            Lines(("Misses: median (least..most) over the boots; page placement moves them, even in sign.",))
        )
    parts += _background(groups, noun)
    parts += _warnings(groups)
    if len(kernels) > 1:
        parts += _patchset(groups, kernels, limit, noun)
    else:
        base = groups[0]
        for group in groups[1:]:
            parts += _function_deltas(base, group, limit, f"{group.scenario} - {base.scenario}")
    if len(groups) == 1:
        parts.append(_top(groups[0], limit, noun))
    return parts


def _how(options: SimulateOptions, groups: Sequence[Group]) -> str:
    first = groups[0].boots[0]
    seeds = f"{len(options.seeds)} boots each, " if len(options.seeds) > 1 else ""
    exact = " Counts of a user's command are not exact." if options.command else ""
    return (
        f"{seeds}{len(first.samples)} samples of {options.per_sample}, modal sample shown; "
        f"mitigations={options.mitigations}; no prefetch, speculation, page walks or coherence.{exact}"
    )


def _elsewhere(groups: Sequence[Group]) -> list[str]:
    """A line where what was simulated is not what runs here, of which recorded profiles are."""
    running = platform.release()
    others = dict.fromkeys(g.boots[0].kernel.release for g in groups if g.boots[0].kernel.release != running)
    return [f"Simulated {', '.join(others)}; this machine runs {running}."] if others else []


def _totals(kernel: str, groups: Sequence[Group], estimate: Mapping[str, float]) -> Grid:
    base = statistics.median(groups[0].per_unit("instructions"))
    present = [q for q in (*_LINES, *_MISSES) if any(sum(g.per_unit(q)) for g in groups)]
    several = len(groups) > 1
    columns = [Column("scenario", right=False), Column("instructions")]
    columns += [Column(f"vs {groups[0].scenario}"), Column("%")] if several else []
    columns += [Column("background", keep=2), Column("loads", keep=4), Column("stores", keep=4)]
    columns += [Column("rep iter.", keep=6), Column("skbs", keep=5), Column("alike", keep=3)]
    columns += [Column(q.replace("-", " "), keep=1) for q in present]
    if estimate:
        columns.append(Column("estimate ns"))
    rows = []
    for group in groups:
        total = statistics.median(group.per_unit("instructions"))
        first = group.boots[0]
        unit = next(iter(first.denominators.values()))
        row: list[Cell | str] = [group.scenario, Cell(_spread(group.per_unit("instructions")), "bold")]
        if several:
            row += ["", ""] if group is groups[0] else [_signed(total - base), f"{(total - base) / base:+.1%}"]
        row.append(_number(round(statistics.median(m.background for m in group.boots) * group.scale, 1)))
        row += [_spread(group.per_unit(q)) for q in ("loads", "stores", "rep-iterations")]
        row += [f"{first.denominators.get('skb', 0) / unit:g}", _alike(min(group.boots, key=lambda m: m.modal_share))]
        row += [_spread(group.per_unit(q)) for q in present]
        if estimate:
            row.append(_number(round(_estimate_ns(group, estimate), 1)))
        rows.append(tuple(row))
    return Grid(tuple(columns), tuple(rows), title=f"kernel {kernel}")


def _alike(m: Measurement) -> str:
    return f"{round(m.modal_share * len(m.samples))} of {len(m.samples)}"


def _background(groups: Sequence[Group], noun: str) -> list[Part]:
    """What the samples that are not the modal one have more, by kind; and what the column means."""
    lines = []
    one_kernel = len({g.kernel for g in groups}) == 1
    for group in groups:
        boots = group.boots
        other = sum(m.others.samples - m.others.alike for m in boots)
        kinds: Counter[str] = Counter()
        for m in boots:
            kinds.update({kind.name: kind.instructions for kind in m.others.kinds})
        if other:
            held = ", ".join(
                f"{name} {_signed(round(count / other))}" for name, count in kinds.most_common() if count
            )
            samples = sum(m.others.samples for m in boots)
            total = _signed(round(sum(kinds.values()) / other))
            name = group.scenario if one_kernel else group.title
            lines.append(f"{name}: {other} of {samples} samples hold {total} each: {held}")
    if not lines:
        return []
    meaning = (
        f"Background: what the mean sample has above the modal one, per {noun}. It comes by the guest's clock (an "
        "instruction takes 2 ns of it), not by the packet."
    )
    return [Lines((meaning,)), Lines(tuple(lines), bullet=True)]


def _estimate_ns(group: Group, estimate: Mapping[str, float]) -> float:
    """sum over the constants given: ns each x median count per unit (docs/simulate.md)."""
    names = {"instruction": "instructions", "l1d": "l1d-misses", "l1i": "l1i-misses", "l2": "l2-misses"}
    return sum(ns * statistics.median(group.per_unit(names[word])) for word, ns in estimate.items())


def _warnings(groups: Sequence[Group]) -> list[Part]:
    lines = []
    for group in groups:
        share = min(m.modal_share for m in group.boots)
        if share < 0.5:
            lines.append(
                f"{group.title}: only {share:.0%} of the samples are alike; take more --samples or --packets"
            )
        unlucky = max(m.bad_luck for m in group.boots)
        if unlucky:
            lines.append(
                f"{group.title}: {_number(unlucky)} instructions above the cheapest network that was tried: its hash "
                "buckets are fuller; take more --rounds"
            )
        unmatched = max(m.sample.unmatched for m in group.boots)
        if unmatched:
            lines.append(f"{group.title}: {unmatched} unmatched returns in the modal sample (under [unknown])")
    return [Lines(tuple(lines), "yellow")] if lines else []


def _function_deltas(base: Group, new: Group, limit: int, title: str) -> list[Part]:
    rows = delta_rows(base, new)
    total = sum(b - a for _, a, b, _ in rows)
    if not rows:
        return [Lines((f"{title}: no function differs (0 instructions)",))]
    shown = rows[:limit] if limit else rows
    grid = Grid(
        (
            Column("function", right=False, wrap=True),
            Column(base.scenario if base.kernel == new.kernel else base.kernel),
            Column(new.scenario if base.kernel == new.kernel else new.kernel),
            Column("delta"),
            Column("", right=False, keep=1),
        ),
        tuple((name, _number(a), _number(b), _signed(b - a), status) for name, a, b, status in shown),
        title=f"{title}: {_signed(total)} instructions in {len(rows)} functions",
    )
    rest = total - sum(b - a for _, a, b, _ in shown)
    return [grid, *([Lines((f"{len(rows) - len(shown)} more functions: {_signed(rest)}",))] if rows != shown else [])]


def _patchset(groups: Sequence[Group], kernels: Sequence[str], limit: int, noun: str) -> list[Part]:
    """Per scenario the kernels' totals, then the functions that changed against the first kernel."""
    scenarios = list(dict.fromkeys(g.scenario for g in groups))
    by = {(g.kernel, g.scenario): g for g in groups}
    columns = [Column("scenario", right=False), Column(kernels[0])]
    for kernel in kernels[1:]:
        columns += [Column(kernel), Column("delta"), Column("%", keep=1)]
    rows, parts = [], []
    for scenario in scenarios:
        base = by[kernels[0], scenario]
        before = statistics.median(base.per_unit("instructions"))
        row = [scenario, _number(before)]
        for kernel in kernels[1:]:
            after = statistics.median(by[kernel, scenario].per_unit("instructions"))
            row += [_number(after), _signed(after - before), f"{(after - before) / before:+.2%}"]
            parts += _function_deltas(base, by[kernel, scenario], limit, f"{scenario}: {kernel} - {kernels[0]}")
        rows.append(tuple(row))
    return [Grid(tuple(columns), tuple(rows), title=f"Kernel against kernel, instructions per {noun}"), *parts]


def _top(group: Group, limit: int, noun: str) -> Grid:
    functions = sorted(group.functions().items(), key=lambda item: (-item[1], item[0]))
    total = sum(count for _, count in functions)
    calls = group.boots[0].calls()
    per = group.boots[0].repetitions / group.scale
    rows = [
        (name, _number(count), f"{count / total:.1%}", _number(calls.get(name, 0) / per))
        for name, count in (functions[:limit] if limit else functions)
    ]
    columns = (Column("function", right=False, wrap=True), Column("self"), Column("%"), Column("calls"))
    return Grid(columns, tuple(rows), title=f"Functions, instructions per {noun}")


def document(options: SimulateOptions, measurements: Sequence[Measurement]) -> dict[str, Any]:
    """The same as JSON types."""
    groups = groups_of(measurements)
    return {
        "workload": options.workload,
        "per": _noun(options),
        "kind": "modelled",
        "running_kernel": platform.release(),
        "scenarios": [
            {
                "kernel": g.kernel,
                "scenario": g.scenario,
                "instructions": g.per_unit("instructions"),
                "background": [m.background * g.scale for m in g.boots],
                "minimum": [m.minimum * g.scale for m in g.boots],
                "worst": [m.worst.instructions / m.repetitions * g.scale for m in g.boots],
                "background_kinds": [
                    {
                        kind.name: {"samples": kind.samples, "instructions": kind.instructions}
                        for kind in m.others.kinds
                    }
                    for m in g.boots
                ],
                "samples": [len(m.samples) for m in g.boots],
                "modal_share": [m.modal_share for m in g.boots],
                "hash_bad_luck": [m.bad_luck for m in g.boots],
                "unmatched_returns": [m.sample.unmatched for m in g.boots],
                "denominators": dict(g.boots[0].denominators),
                "functions": g.functions(),
                **{
                    q: g.per_unit(q)
                    for q in ("rep-iterations", "loads", "stores", *_LINES, *_MISSES)
                    if sum(g.per_unit(q))
                },
            }
            for g in groups
        ],
    }
