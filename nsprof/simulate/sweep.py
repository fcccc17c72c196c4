"""`nsprof simulate --sweep containers=1,10,50`: does a packet cost more with more of them, and how much."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from nsprof.errors import UsageError
from nsprof.render.tables import Column, Grid, Lines, Part
from nsprof.simulate import Measurement, SimulateOptions, measure_each
from nsprof.simulate.report import Group, delta_rows, groups_of

__all__ = ["SWEEPABLE", "Sweep", "options_at", "parse_sweep", "slope", "sweep", "sweep_parts"]

SWEEPABLE = ("containers", "rules", "routes", "bridge-ports", "size", "mtu", "container-mtu")


@dataclass(frozen=True)
class Sweep:
    """One point of the curve: the value and the groups measured there."""

    value: int
    groups: tuple[Group, ...]


def parse_sweep(text: str) -> tuple[str, tuple[int, ...]]:
    """ "containers=1,10,50" -> ("containers", (1, 10, 50)). Raises UsageError."""
    name, separator, values = text.partition("=")
    if name not in SWEEPABLE or not separator:
        raise UsageError(f"--sweep {text}", "NAME=1,10,50 with NAME one of " + ", ".join(SWEEPABLE))
    try:
        numbers = tuple(int(word) for word in values.split(","))
    except ValueError:
        raise UsageError(f"--sweep {text}: whole numbers are wanted after the =") from None
    if len(set(numbers)) < 2 or min(numbers) < 0:
        raise UsageError(f"--sweep {text}: two different values at least, none negative")
    return name, numbers


def options_at(options: SimulateOptions, name: str, value: int) -> SimulateOptions:
    """The options with one thing set."""
    if name in ("containers", "size", "mtu"):
        return replace(options, **{name: value})  # type: ignore[arg-type]
    inner = {"container-mtu": "mtu"}.get(name, name.replace("-", "_"))
    return replace(options, perturbations=replace(options.perturbations, **{inner: value}))  # type: ignore[arg-type]


def sweep(
    options: SimulateOptions, name: str, values: Sequence[int], progress: Callable[[str], None] | None = None
) -> tuple[list[Sweep], list[Measurement]]:
    """Measure every value. The measurements' scenarios are called like "veth-bridge containers=10"."""
    points, everything = [], []
    every = measure_each([options_at(options, name, value) for value in values], progress)
    for value, measured in zip(values, every, strict=True):
        points.append(Sweep(value, tuple(groups_of(measured))))
        everything += [replace(m, scenario=f"{m.scenario} {name}={value}") for m in measured]
    return points, everything


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Least squares: instructions per unit for one more of what was swept."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    above = sum((x - mean_x) * (y - mean_y) for x, y in points)
    return above / sum((x - mean_x) ** 2 for x, _ in points)


def sweep_parts(name: str, points: Sequence[Sweep], limit: int) -> list[Part]:
    """The curve, its slope, and what differs between its ends."""
    columns = [Column("scenario", right=False), *(Column(f"{name}={p.value}") for p in points)]
    columns.append(Column("slope"))
    rows, parts = [], []
    for at, group in enumerate(points[0].groups):
        totals = [p.groups[at].per_unit("instructions")[0] for p in points]
        steep = slope([(p.value, total) for p, total in zip(points, totals, strict=True)])
        rows.append((group.scenario, *(f"{total:,.10g}" for total in totals), f"{steep:+,.3g} per {name}"))
        differing = delta_rows(group, points[-1].groups[at])[:limit]
        if differing:
            shown = ", ".join(f"{n} {b - a:+,.6g}" for n, a, b, _ in differing)
            parts.append(Lines((f"{group.scenario}, {name}={points[0].value} to {points[-1].value}: {shown}",)))
        else:
            parts.append(Lines((f"{group.scenario}: no function differs",)))
    title = f"Instructions by {name} (modelled, exact)"
    return [Grid(tuple(columns), tuple(rows), title=title), *parts]
