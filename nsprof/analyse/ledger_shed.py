"""Which counts stopped early: probes that were shed over their budget, and the ledger lines that came from them.

A line does not name its probe, but its event and its detail tell it. What a shed probe counted is a part of the
window, and how much traffic that part had is not known: its counts have no rate, and nothing is concluded from them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from nsprof.model.profile import LedgerLine, Profile

__all__ = ["MARK", "Sheds", "sheds_of"]

#: A line of this event says when a probe of its run was shed, in its detail: "queue at 0.5 s".
MARK = "probe shed"
_MARKED = re.compile(r"(\S+) at (\d+(?:\.\d+)?) s")
#: What a profile without such lines has: the reason of the probe's own row, over all passes.
_REASON = re.compile(r"(?:shed )?(\d+(?:\.\d+)?) s after the window began")

#: Events that one tracepoint's probe counts, by the probe's name.
_PROBES_BY_EVENT = {
    "TCP retransmission": ("resend",),
    "TCP segments sent": ("queue",),
    "UDP sent": ("queue",),
    "backlog (netif_rx)": ("backlog",),
    "checksum left to device": ("xmit",),
    "drop": ("drop",),
    "requeue": ("busy",),
    "skb read by user": ("to_user",),
    "GRO": ("gro_in", "gro_out"),
}
#: The same, of the places that a packet passes, by the last word of the event.
_PROBES_BY_PLACE = {"queued": ("queue",), "tx": ("xmit",), "rx": ("receive",)}
#: Events that functions count too, of which the tracepoint's lines are those without a detail.
_PROBES_WITHOUT_DETAIL = {"backlog": ("backlog",), "copy to user": ("to_user",)}


@dataclass(frozen=True, slots=True)
class Sheds:
    """When which probe was shed: run -> name -> seconds after the window began. `targets`: name -> its function.

    `untimed` are probes that were shed nobody knows when.
    """

    by_run: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    targets: Mapping[str, str] = field(default_factory=dict)
    untimed: tuple[str, ...] = ()

    def first_s(self, runs: Iterable[int], names: Iterable[str]) -> float:
        """The earliest of some probes' times in some runs; nan when none of them was shed."""
        wanted = tuple(names)
        times = [self.by_run[run][n] for run in runs if run in self.by_run for n in wanted if n in self.by_run[run]]
        return min(times, default=math.nan)

    def line_s(self, line: LedgerLine) -> float:
        """When the probe of a line was shed; nan when it counted to the end."""
        shed = self.by_run.get(line.run)
        return self.first_s((line.run,), self._probes(line, shed)) if shed else math.nan

    def events(self, runs: Sequence[int]) -> dict[str, float]:
        """Events that only shed probes count, even if they counted none, and when the first of these was shed."""
        times = {what: self.first_s(runs, names) for what, names in _PROBES_BY_EVENT.items()}
        return {what: time_s for what, time_s in times.items() if not math.isnan(time_s)}

    def of(self, lines: Iterable[LedgerLine]) -> float:
        """The earliest time for some lines together; nan when all of them were counted to the end."""
        return min((time for line in lines if not math.isnan(time := self.line_s(line))), default=math.nan)

    def _probes(self, line: LedgerLine, shed: Mapping[str, float]) -> Sequence[str]:
        known = _PROBES_BY_EVENT.get(line.what) or _PROBES_BY_PLACE.get(line.what.rpartition(" ")[2])
        if known:
            return known
        if "seen from tracepoints" in line.detail:
            return ("queue", "xmit")
        if line.what.startswith("netfilter hook"):
            return ("nf_hook_slow",)
        if line.what == "nft rules in chains entered":
            return ("nft_do_chain",)
        if not line.detail:
            return _PROBES_WITHOUT_DETAIL.get(line.what, ())
        words = set(re.findall(r"\w+", line.detail))
        return [name for name in shed if {name, self.targets.get(name, name)} & words]


def sheds_of(profile: Profile, runs: Sequence[int]) -> Sheds:
    """What was shed in some counting passes, from the profile's marks, else from the probes' own rows."""
    targets = {probe.name: probe.target for probe in profile.probes}
    marked: dict[int, dict[str, float]] = {}
    for line in profile.ledger:
        if line.what == MARK and (found := _MARKED.fullmatch(line.detail)):
            marked.setdefault(line.run, {})[found[1]] = float(found[2])
    if marked:
        return Sheds({run: marked[run] for run in runs if run in marked}, targets)
    told = {
        probe.name: float(found[1])
        for probe in profile.probes
        if probe.state == "shed" and (found := _REASON.match(probe.reason))
    }
    untimed = dict.fromkeys(p.name for p in profile.probes if p.state == "shed" and p.name not in told)
    return Sheds(dict.fromkeys(runs, told) if told else {}, targets, tuple(untimed))
