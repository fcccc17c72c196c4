"""TCP sends again what was lost."""

from __future__ import annotations

from nsprof.analyse.causes.case import Case, Side
from nsprof.analyse.causes.look import more, slower
from nsprof.analyse.causes.rule import Rule, Seen, Try

#: Below one segment in a thousand loss does not limit throughput of a short path (Mathis: rate ~ 1/sqrt(p)).
_LEAST = 0.001

#: A handful are repeated at any start or end of a connection (tail loss probes).
_FEW = 20


def _lost(side: Side) -> float:
    """Segments repeated, without those that the receiver reports to have had already (RFC 2883): nothing was lost."""
    repeated = side.total("Tcp.RetransSegs", scope="netns") - side.total("TcpExt.TCPDSACKRecv", scope="netns")
    return max(0.0, float(repeated.sum()))


def _look(case: Case) -> Seen | None:
    shares = []
    for side in (case.base, case.new):
        sent = float(side.total("Tcp.OutSegs", scope="netns").sum())
        shares.append(_lost(side) / sent if sent else 0.0)
    if _lost(case.new) < _FEW or shares[1] < _LEAST or shares[1] < 3 * shares[0]:
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
            f"at least {_LEAST:.1%} of the segments are repeated, and 3 times base's share",
            must=True,
        ),
        slower(),
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
