"""One rung of the hop probes under a known load, for the plain and the locked-down guest alike."""

from __future__ import annotations

from collections.abc import Callable

from nsprof.collect.sampling.sampler import Sampler, SamplerConfig
from tests.root.hop_bed import Bed, Flow, Seen, judge, observe, rows, run_flows

Truth = Callable[[str, Seen], set[str] | None]

#: Enough to tell 99 % from less, and how long a slow guest may take to get them.
WANTED, ROUNDS, SECONDS = 300, 4, 6.0


#: Neighbour discovery, which goes the other way and to the bridge as well.
NEIGHBOURS = ("arp_", "ndisc_", "icmpv6_rcv", "neigh_")


def _truth(said: str, row: Seen) -> set[str] | None:
    """IPv4 goes to c1, IPv6 to c2, both from the remote end through the host's bridge."""
    if any(frame.startswith(NEIGHBOURS) for frame in row.frames):
        return None
    return {"bridge": {"h:vr"}, "tx": {"h:vc1", "h:vc2"}, "v4": {"c1:eth0"}, "v6": {"c2:eth0"}}.get(said)


def _truth_by_name(said: str, row: Seen) -> set[str] | None:
    """The same where devices are known by name only: whose eth0 it is, is not claimed."""
    if any(frame.startswith(NEIGHBOURS) for frame in row.frames):
        return None
    return {"bridge": {"*:vr"}, "tx": {"*:vc1", "*:vc2"}, "v4": {"*:eth0"}, "v6": {"*:eth0"}}.get(said)


def judged(sampler: Sampler, made: Bed, flows: list[Flow], truth: Truth, keep: Callable[[Seen], bool]) -> list[Seen]:
    """Samples of those flows into c1 and c2, as many rounds as it takes to judge: at least 95 % of those that can be
    judged have the right label, less than 1 % a wrong one. `keep` says which rows are this bed's."""
    seen: list[Seen] = []
    for _ in range(ROUNDS):
        run_flows(made, flows, ["c1", "c2"], SECONDS, observe(sampler, SECONDS))
        seen += [row for row in rows(made, sampler) if keep(row)]
        verdict = judge(seen, truth)
        if verdict.decidable >= WANTED:
            break
    print(verdict)
    assert verdict.decidable >= WANTED / 3
    assert verdict.right >= 0.95 * verdict.decidable, str(verdict)
    assert verdict.wrong < 0.01 * verdict.decidable, str(verdict)
    return seen


def check_rung(rung: str, made: Bed) -> None:
    """At least 95 % of the samples that can be judged have the right label, less than 1 % a wrong one."""
    with Sampler(SamplerConfig(frequency_hz=499, hop=True, hop_rungs=(rung,))) as sampler:
        infos = {info.name: info for info in sampler.probe_infos()}
        print({name: (info.rung, info.target, info.reason) for name, info in infos.items() if name != "sampler"})
        assert {infos[name].rung for name in ("hop_tx", "hop_rx")} == {rung}
        assert infos["hop_gro"].rung in ((rung, "none") if rung == "tracepoint" else (rung,))
        own = {f"*:{label.split(':')[1]}" for label in made.devices().values()}
        seen = judged(
            sampler,
            made,
            [Flow("r", "198.18.9.2"), Flow("r", "fd09::3")],
            _truth_by_name if rung == "tracepoint" else _truth,
            # Of a device known by name only nothing but the name says that it is another's.
            lambda row: not row.label.startswith("*:") or row.label in own,
        )
    assert not [row for row in seen if "c3" in row.label], "the idle container got samples"
