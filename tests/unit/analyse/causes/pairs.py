"""Pairs of synthetic profiles for the causes: the host path, and the same with one more thing on it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from nsprof.analyse.causes import explain
from nsprof.model.builder import ProfileBuilder
from nsprof.model.profile import Counter, LedgerLine, Profile, Value
from nsprof.model.results import Explanation, Finding
from tests.profiles import HOST_COSTS, one_run

TX = "__ip_finish_output < ip_output < ip_send_skb < udp_send_skb < udp_sendmsg < __sys_sendto < do_syscall_64"
RX = (
    "ip_rcv < __netif_receive_skb_one_core < process_backlog < __napi_poll < net_rx_action < handle_softirqs < "
    "do_softirq < __local_bh_enable_ip < ip_finish_output2 < ip_output < udp_sendmsg < do_syscall_64"
)


def pair(
    extra: Mapping[str, float],
    *,
    runs: int = 4,
    counters: Mapping[tuple[str, str], tuple[float, float]] | None = None,
    facts: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {}),
    ledger: Mapping[str, float] | None = None,
    seed: int | None = 1,
    spread: float = 0.02,
    fields: tuple[Mapping[str, Any], ...] = ({}, {}),
    base: Mapping[str, float] | None = None,
    **common: Any,
) -> Profile:
    """Scenarios "clean" and "fault": `extra` are ns a transaction on top, by call path; `counters` maps (scope, name)
    to what a transaction moves on either side; `facts` is what the snapshot says of namespace "host"; `base` are
    costs of both sides instead of none besides the host's, and `extra` replaces costs of the same path."""
    builder = ProfileBuilder()
    noise = None if seed is None else np.random.default_rng(seed)
    for _ in range(runs):
        for name in ("clean", "fault"):
            costs = {**HOST_COSTS, **(base or {}), **(extra if name == "fault" else {})}
            run = one_run(
                builder,
                name,
                costs,
                noise=noise,
                spread=spread,
                **{"transactions": 200_000.0, **common},
                **fields[int(name == "fault")],
            )
            units = builder.runs[run].denominators.get("transaction", 20_000.0)
            for (scope, key), values in (counters or {}).items():
                moved = values[int(name == "fault")] * units
                device = "w0" if scope == "device" else ""
                builder.counters.append(Counter(run, scope, 1, device, -1, key, 0.0, moved))
            builder.counters.append(Counter(run, "netns", 1, "", -1, "Udp.InDatagrams", 0.0, 2 * units))
            for what, calls in (ledger or {}).items():
                counted = int(calls * units) if name == "fault" else 0
                builder.ledger.append(LedgerLine(run, what, "", 1, 0, -1, counted))
    builder.meta["topology"] = {name: {"namespaces": {"host": facts[i]}} for i, name in enumerate(("clean", "fault"))}
    return builder.build()


def explained(extra: dict[str, float], **more: Any) -> tuple[Explanation, dict[str, Finding]]:
    """What explain says of a `pair`, and its findings by cause."""
    profile = pair(extra, **more)
    e = explain(profile, profile, base_scenario="clean", new_scenario="fault")
    return e, {f.cause: f for f in e.findings}


def throughput(base: float, new: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields of the runs of either side."""
    one, two = ({"values": (Value("throughput", v, "Mbit/s", "netperf"),)} for v in (base, new))
    return one, two


def functions_line(finding: Finding) -> str:
    """The line of evidence that names functions."""
    return next(x.text for x in finding.evidence if x.kind == "functions")


def own_parts(text: str) -> float:
    """The named functions' own parts, added up."""
    return sum(
        float(n.replace(",", "")) for n in re.findall(r" \+([\d,.]+)", text.partition(" with what they call")[0])
    )
