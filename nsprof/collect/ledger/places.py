"""Where the ledger's probes would stand on this kernel, found by attaching them: for `nsprof doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nsprof.collect.ledger.counting import Ledger
from nsprof.collect.ledger.probes import Probe

__all__ = ["Places", "places"]

#: Stands for a place's name in a reason; no kernel's or verifier's words have it.
_NAME = "\0"


@dataclass(frozen=True, slots=True)
class Places:
    """Probes that share a rung and a reason.

    `rung` is "none" where they were refused; `names` are the tracepoints and functions, `reason` why it is not a
    better rung ("" where it is the best), `lost` what is not counted without them.
    """

    rung: str
    names: tuple[str, ...]
    reason: str = ""
    lost: tuple[str, ...] = ()


def places() -> Iterator[Places]:
    """All places of the ledger, attached once and detached. Raises PreflightError or ProbeError when none is had."""
    with Ledger(budget_share=0, calibrate=False) as ledger:
        ledger.start()
        ledger.stop()
        found: dict[tuple[str, str], list[Probe]] = {}
        for probe in ledger.probes:
            found.setdefault((probe.rung, _common(probe)), []).append(probe)
    for (rung, reason), probes in sorted(found.items(), key=lambda row: (row[0][0] == "none", row[0][1] != "")):
        lost: dict[str, list[str]] = {}
        for probe in probes if rung == "none" else ():
            lost.setdefault(_lost(probe), []).append(probe.target)
        words = tuple(f"{what} ({', '.join(names)})" for what, names in lost.items())
        others = f" (and {len(probes) - 1} more)" if len(probes) > 1 else ""
        told = reason.replace(_NAME, f"{probes[0].target}{others}")
        yield Places(rung, tuple(probe.target for probe in probes), told, words)


def _lost(probe: Probe) -> str:
    if probe.function is None:
        return probe.lost
    return probe.function.what + (" of failed calls" if probe.function.user_copy else "")


def _common(probe: Probe) -> str:
    """The probe's reason with a placeholder for its own name, so that those refused for one reason are one place."""
    reason = probe.reason.removeprefix(f"function {probe.target} cannot be probed: ")
    return reason.replace(f"nsprof_{probe.name.strip('_')}", _NAME).replace(probe.target, _NAME)
