"""A receive buffer too small for the bursts that come."""

from __future__ import annotations

import numpy as np

from nsprof.analyse.causes.case import Case
from nsprof.analyse.causes.look import STREAM, more, moves, read_share
from nsprof.analyse.causes.rule import Rule, Seen, Spread, Try

#: A reader that keeps up with its sender loses less than this; where base loses more, it is flooded.
_LEAST = 0.01
#: A flood loses now more, now less: so much more is not chance.
_MORE = 0.1
#: Where base loses a tenth already, more is sent than the reader can read, whatever its buffer.
_FLOODED = 0.1


def _worse(base: float, new: float) -> bool:
    """Whether a share of lost datagrams is more than chance makes of base's."""
    return new >= (max(_LEAST, 3 * base) if base < _LEAST else base + _MORE)


def _look(case: Case) -> Seen | None:
    names = ("Udp.RcvbufErrors", "Udp6.RcvbufErrors")
    by_run = []
    for side in (case.base, case.new):
        got = side.total("Udp.InDatagrams", "Udp6.InDatagrams", scope="netns")
        lost = side.total(*names, scope="netns")
        by_run.append(lost / np.maximum(lost + got, 1.0))
    shares = [float(run.mean()) for run in by_run]
    if not _worse(*shares) or not moves(*by_run) or shares[0] >= _FLOODED:
        return None
    place = case.moved(*names, scope="netns").place
    return Seen(
        "counters",
        f"{shares[1]:.1%} of the datagrams dropped at the socket (base: {shares[0]:.1%})",
        place,
        shares[1],
    )


def _sent_per_read(case: Case) -> float:
    """How many times as many datagrams are sent for one that is read, where it is those that are counted."""
    base, new = read_share(case.base), read_share(case.new)
    return base / new if case.per == "datagram" and base > 0 and new > 0 else 1.0


def _lost(case: Case) -> Seen | None:
    shares = [read_share(side) for side in (case.base, case.new)]
    if not _worse(max(0.0, 1 - shares[0]), 1 - shares[1]):
        return None
    return Seen(
        "workload", f"{shares[1]:.1%} of the datagrams sent are read (base: {shares[0]:.1%})", "", 1 - shares[1]
    )


RULE = Rule(
    name="socket-buffer",
    title="the receiving socket's buffer is full: datagrams are dropped",
    what="The reader is slower than the bursts, and the buffer too small to bridge them; what is dropped has already "
    "cost the whole path.",
    checks=(
        more(
            _look,
            "counters",
            "RcvbufErrors: one datagram in a hundred and three times base's share; where base loses one in a hundred "
            "already (a flood), a tenth of them more",
            must=True,
        ),
        more(_lost, "workload", "as much less of what is sent is read"),
    ),
    not_cpu=True,
    spread=Spread(
        _sent_per_read,
        "the whole path of the datagrams that are dropped, paid for by those that are read",
        (*STREAM, "UDP", "user"),
    ),
    tries=(Try("raise the receive buffer (SO_RCVBUF) and its limit", "sysctl -w net.core.rmem_max=8388608"),),
    source="net/ipv4/udp.c __udp_enqueue_schedule_skb(); udp(7)",
    threshold="one datagram in a hundred, where base loses fewer; else a tenth of them more",
)
