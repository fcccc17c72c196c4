"""Where two recordings were made under different conditions: what to warn of, and what to refuse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nsprof.model.profile import Profile

__all__ = ["differences", "refusal"]

#: Parts of the host snapshot that change by themselves and mean nothing for a comparison.
_VOLATILE = frozenset(
    {
        "uptime",
        "time",
        "date",
        "load",
        "loadavg",
        "load_average",
        "inode",
        "ifindex",
        "namespaces_left_out",
        "hostname",
        "nodename",
        "boot_id",
        "pid",
        "memory_free",
        "cmdline_initrd",
    }
)
_SHOWN = 12


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key in value:
            if str(key) not in _VOLATILE:
                yield from _leaves(value[key], f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)):
        yield path, tuple(str(v) for v in value)
    else:
        yield path, value


def differences(base: Profile, new: Profile, base_runs: Sequence[int], new_runs: Sequence[int]) -> list[str]:
    """One line for the kernels, one for the other metadata; keys that only one side has are not compared (another
    scenario has other devices)."""
    lines = []
    kernels = [
        sorted({p.runs[i].kernel for i in runs if p.runs[i].kernel})
        for p, runs in ((base, base_runs), (new, new_runs))
    ]
    if kernels[0] and kernels[1] and kernels[0] != kernels[1]:
        lines.append(f"different kernels: {', '.join(kernels[0])} against {', '.join(kernels[1])}")
    left, right = (dict(_leaves(p.meta.get("host"))) for p in (base, new))
    changed = [k for k in left if k in right and left[k] != right[k]]
    if changed:
        shown = [f"{k} ({_short(left[k])} / {_short(right[k])})" for k in changed[:_SHOWN]]
        more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
        lines.append(f"the hosts differ in {', '.join(shown)}{more}")
    hops = [
        "hop" in r.probes_on for p, runs in ((base, base_runs), (new, new_runs)) for r in (p.runs[i] for i in runs)
    ]
    if any(hops) and not all(hops):
        lines.append("hop probes were on in some of the runs only: their cost is in the difference")
    return lines


def _short(value: Any) -> str:
    text = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return text if len(text) <= 40 else text[:37] + "..."


def refusal(base: Profile, new: Profile) -> str:
    """Why the two must not be compared without `force`, or "": another CPU architecture runs other code."""
    machines = [_architecture(p.meta.get("host")) for p in (base, new)]
    if machines[0] and machines[1] and machines[0] != machines[1]:
        return f"different CPU architectures: {machines[0]} against {machines[1]}"
    return ""


def _architecture(host: Any) -> str:
    for path, value in _leaves(host):
        if path.rsplit(".", 1)[-1] in ("machine", "architecture", "arch"):
            return str(value)
    return ""
