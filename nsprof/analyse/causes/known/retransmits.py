"""TCP sends again what was lost."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nsprof.analyse.causes.case import Case, Side
from nsprof.analyse.causes.look import more, moves, slower
from nsprof.analyse.causes.rule import Rule, Seen, Try

#: Below one segment in a thousand loss does not limit throughput of a short path (Mathis: rate ~ 1/sqrt(p)).
_LEAST = 0.001
#: Without a lower throughput, three times base's share: what any start of a connection loses varies. With one in
#: every run, half as many again, which by the same law costs 18 % of the rate.
_ALONE, _SLOW = 3.0, 1.5
_SLOWER = slower()

#: A handful are repeated at any start or end of a connection (tail loss probes).
_FEW = 20


def _lost(side: Side) -> NDArray[np.float64]:
    """By run, segments repeated without those that the receiver reports to have had already (RFC 2883): not lost."""
    repeated = side.total("Tcp.RetransSegs", scope="netns") - side.total("TcpExt.TCPDSACKRecv", scope="netns")
    return np.maximum(repeated, 0.0)


def _look(case: Case) -> Seen | None:
    by_run = []
    for side in (case.base, case.new):
        by_run.append(_lost(side) / np.maximum(side.total("Tcp.OutSegs", scope="netns"), 1.0))
    shares = [float(run.mean()) for run in by_run]
    least = max(_LEAST, (_SLOW if _SLOWER.look(case) else _ALONE) * shares[0])
    if _lost(case.new).sum() < _FEW or shares[1] < least or not moves(*by_run):
        return None
    place = case.moved("Tcp.RetransSegs", scope="netns").place
    return Seen(
        "counters",
        f"{shares[1]:.2%} of the segments were lost and sent again (base: {shares[0]:.2%})",
        place,
        shares[1],
    )


RULE = Rule(
    name="retransmits",
    title="lost packets are sent again (TCP retransmits)",
    what="Loss on the path makes TCP slow down and repeat itself; the time goes into waiting, not into CPU.",
    checks=(
        more(
            _look,
            "counters",
            f"at least {_LEAST:.1%} of the segments are repeated, and 3 times base's share, or 1.5 times with less "
            "throughput (Mathis: a rate 18 % lower)",
            must=True,
        ),
        _SLOWER,
    ),
    not_cpu=True,
    tries=(
        Try(
            "find the drop: device, qdisc and softnet counters",
            "nstat -az TcpRetransSegs; tc -s qdisc; ip -s -s link",
        ),
    ),
    source="RFC 5681; Mathis et al. 1997 (rate ~ 1/sqrt(loss))",
    threshold=f"{_LEAST:.1%} of the segments",
)
