"""Traffic is shaped: a qdisc holds packets back."""

from __future__ import annotations

import numpy as np

from nsprof.analyse.causes.case import Case
from nsprof.analyse.causes.look import device_fact, more, moves, slower
from nsprof.analyse.causes.rule import Rule, Seen, Try

_SHAPERS = {"tbf", "htb", "hfsc", "cake", "netem", "cbq", "etf", "taprio"}

#: netem counts no overlimits, but it exists only to delay, lose or limit.
_EMULATES = device_fact(
    lambda f: "netem" if "netem" in {f.get("qdisc"), *(f.get("qdiscs") or ())} else "",
    lambda space, name, now, before: f"{now} on {name} in {space} delays, loses or limits by design",
    "netem",
)


_SLOWER = slower()


def _more_often(case: Case) -> bool:
    """Where both sides are shaped: whether more of the packets sent wait. By itself that varies by a tenth."""
    parts = []
    for side in (case.base, case.new):
        sent = side.total("tx_packets", scope="device")
        parts.append(side.total("qdisc.overlimits", scope="device") / np.maximum(sent, 1.0))
    return bool(parts[1].mean() >= 1.25 * parts[0].mean()) and moves(parts[0], parts[1])


def _held(case: Case) -> Seen | None:
    moved = case.moved("qdisc.overlimits", scope="device")
    if moved.delta <= 0 or not moves(moved.base, moved.new):
        return _EMULATES.look(case)
    if moved.base.mean() > 0 and not (_more_often(case) and _SLOWER.look(case)):
        return None
    return Seen("counters", f"a qdisc held packets back {moved.new.mean():.3g} times a {case.per}", moved.place)


RULE = Rule(
    name="shaped",
    title="traffic is shaped (a qdisc limits the rate or adds delay)",
    what="A rate limit or a delay keeps packets waiting; no CPU time is spent on it.",
    checks=(
        device_fact(
            lambda f: tuple(sorted(_SHAPERS & {f.get("qdisc"), *(f.get("qdiscs") or ())})),
            lambda space, name, now, before: f"{', '.join(now)} on {name} in {space} (base: none)",
            "a shaping qdisc that base has not",
        ),
        more(
            _held,
            "counters",
            "overlimits of a qdisc go up in every run: it delayed packets; or it is netem, which does nothing else",
            must=True,
        ),
        _SLOWER,
    ),
    # A shaper that holds back drops when its queue is full; what follows from the drops follows from the shaper.
    subsumes=("device-drops", "retransmits", "window-limited"),
    not_cpu=True,
    tries=(Try("raise the rate, or look whether it is meant", "tc -s qdisc show dev DEV"),),
    source="tc-tbf(8), tc-htb(8); net/sched/sch_tbf.c",
    threshold="overlimits in every run",
)
