"""The ledger's arithmetic on made-up lines: per unit, per KB, callers, verdicts, and where fragmentation starts."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import pytest
from rich.console import Console

from nsprof.analyse.ledger import ledger
from nsprof.analyse.ledger_shed import MARK
from nsprof.errors import EvidenceError
from nsprof.model.builder import ProfileBuilder
from nsprof.model.profile import Counter, Device, LedgerLine, Losses, Namespace, ProbeInfo, Profile, Run
from nsprof.render.ledger import ledger_parts
from nsprof.render.tables import markdown, print_parts


def made(
    *rows: tuple[str, str, str, int, int],
    mibs: dict[tuple[str, str], int] | None = None,
    skbs: float = 100,
    kb: float = 50,
    stack: tuple[str, ...] = (),
    scenario: str = "pod",
    probes: tuple[ProbeInfo, ...] = (),
) -> Profile:
    """A counting pass with lines (what, detail, "ns:device", calls, bytes) and MIBs by (namespace, name)."""
    builder = ProfileBuilder()
    denominators = {name: value for name, value in (("skb", skbs), ("kb", kb)) if value}
    builder.runs.append(Run(scenario, duration_s=2.0, cpus=2, denominators={"skb": 5.0}))
    builder.runs.append(
        Run(
            scenario,
            duration_s=2.0,
            cpus=2,
            denominators=denominators,
            probes_on=("ledger",),
            own_cpu_s=0.04,
            losses=Losses(map_full=0),
        )
    )
    index = builder.stack([builder.frame(name) for name in stack]) if stack else -1

    def space(name: str) -> int:
        return builder.namespace(Namespace(sum(name.encode()), name=name))

    for what, detail, place, calls, size in rows:
        name, _, device = place.partition(":")
        number = space(name)
        dev = builder.device(Device(number, 1, device)) if device else 0
        builder.ledger.append(LedgerLine(1, what, detail, number, dev, index, calls, size))
    for (name, mib), delta in (mibs or {}).items():
        builder.counters.append(Counter(1, "netns", space(name), "", -1, mib, 0.0, float(delta)))
    builder.probes.extend(probes)
    return builder.build()


def test_figures_are_per_unit_and_per_kb_of_the_counting_pass() -> None:
    report = ledger(made(("copy from user", "", "c", 25, 51_200)))
    (row,) = report.events
    assert (report.per, row.new, row.new_bytes, row.new_bytes_per_kb) == ("skb", 0.25, 512.0, 1024.0)
    assert report.cost_share == pytest.approx(0.01)
    assert math.isnan(row.base)


def test_without_packets_the_unit_is_the_second() -> None:
    report = ledger(made(("drop", "NO_SOCKET", "c", 10, 0), skbs=0))
    assert (report.per, report.events[0].new) == ("second", 5.0)


def test_unit_that_was_not_counted_is_refused() -> None:
    with pytest.raises(EvidenceError, match="no count of transactions"):
        ledger(made(("drop", "", "c", 1, 0)), per="transaction")


def test_baseline_stands_beside_it_and_absent_events_are_zero() -> None:
    base = made(("drop", "NO_SOCKET", "c", 10, 0), skbs=200, scenario="host")
    report = ledger(made(("head realloc", "", "c", 100, 6_400)), baseline=base)
    rows = {row.what: row for row in report.events}
    assert (rows["head realloc"].base, rows["head realloc"].new) == (0.0, 1.0)
    assert (rows["drop"].base, rows["drop"].new) == (0.05, 0.0)
    assert report.base_title == "host"


def test_caller_is_who_asked_not_the_function_itself_nor_who_freed() -> None:
    asked = made(("head realloc", "", "h:pr", 1, 0), stack=("pskb_expand_head", "ip_forward", "ip_rcv", "x"))
    assert ledger(asked).places[0].caller == "ip_forward < ip_rcv"
    dropped = made(("drop", "", "h", 1, 0), stack=("sk_skb_reason_drop", "kfree_skb_reason", "__udp4_lib_rcv", "y"))
    assert ledger(dropped).places[0].caller == "__udp4_lib_rcv < y"


def test_no_fragments_is_said_with_how_many_packets_were_seen() -> None:
    report = ledger(made(("skb tx", "MTU 1500", "c:eth0", 23, 0), ("skb rx", "MTU 1500", "h:pc", 23, 0)))
    assert report.fragmentation == "No fragmentation: none of 46 packets seen at 2 devices was an IP fragment."
    assert ledger(made(("drop", "", "c", 1, 0))).fragmentation.startswith("Fragmentation is unknown")


def test_fragmentation_starts_where_the_kernel_made_the_fragments() -> None:
    profile = made(
        ("fragments tx", "MTU 1400", "c:eth0", 69, 0),
        ("fragments rx", "MTU 1500", "h:pc", 69, 0),
        ("fragments tx", "MTU 1500", "h:pr", 69, 0),
        mibs={("c", "Ip.FragCreates"): 69, ("c", "Ip.FragOKs"): 23, ("h", "Ip.FragCreates"): 0},
    )
    told = ledger(profile).fragmentation
    assert told == (
        "Fragmentation starts at eth0 in c (MTU 1400): 23 datagrams leave as 69 fragments; pc in h receives 69."
    )


def test_fragments_that_only_pass_are_not_said_to_start_there() -> None:
    profile = made(("fragments tx", "MTU 1500", "h:pr", 9, 0), ("fragments rx", "MTU 1500", "h:pc", 9, 0))
    assert "made outside the namespaces" in ledger(profile).fragmentation


@pytest.mark.parametrize(("kernel", "verdict"), [(69, "yes"), (72, "edges"), (690, "no"), (60, "no")])
def test_verdicts_against_the_kernels_counter(kernel: int, verdict: str) -> None:
    profile = made(("fragments tx", "", "c:eth0", 69, 0), mibs={("c", "Ip.FragCreates"): kernel})
    (row,) = ledger(profile).reconciled
    assert (row.counted, row.kernel, row.verdict) == (69, kernel, verdict)
    assert bool(row.why) is (verdict != "yes")


def test_retransmitted_segments_are_not_new_ones() -> None:
    profile = made(
        ("TCP segments sent", "", "c:eth0", 105, 0),
        ("TCP retransmission", "", "c", 5, 0),
        mibs={("c", "Tcp.OutSegs"): 100, ("c", "Tcp.RetransSegs"): 5},
    )
    assert {row.what: row.verdict for row in ledger(profile).reconciled} == {
        "TCP segments sent": "yes",
        "TCP retransmission": "yes",
    }


def test_shed_and_refused_probes_are_told() -> None:
    shed = ProbeInfo("queue", "net_dev_queue", "tp_btf", "shed", "shed 1.0 s after the window began: ...")
    refused = [ProbeInfo(n, n, "none", "refused", f"no kprobes; not counted: {n}") for n in ("skb_clone", "skb_copy")]
    report = ledger(made(("drop", "", "c", 1, 0), probes=(shed, *refused)))
    assert report.alarms == ("probe queue was shed over its budget 1 s after the window began",)
    assert report.notes == ("not counted: skb_clone, skb_copy: no kprobes",)


def shed(name: str, target: str, after_s: float) -> ProbeInfo:
    reason = f"{after_s} s after the window began: over its budget; counted until then only: packets"
    return ProbeInfo(name, target, "tp_btf", "shed", reason)


STREAM = (
    ("UDP sent", "", "c:eth0", 12, 1_200),
    ("copy from user", "bytes that sockets took (sock_send_length)", "c", 50, 5_000),
    ("skb tx", "MTU 1400", "c:eth0", 36, 3_600),
    ("fragments tx", "MTU 1400", "c:eth0", 36, 3_600),
    ("fragments rx", "MTU 1500", "h:v0", 72, 7_200),
)
SHED = (shed("queue", "net_dev_queue", 0.5), shed("xmit", "net_dev_start_xmit", 1.0))


def test_counts_of_a_shed_probe_have_no_rate_and_others_keep_theirs() -> None:
    report = ledger(made(*STREAM, probes=SHED))
    rows = {row.what: row for row in report.events}
    assert (rows["UDP sent"].calls, rows["UDP sent"].shed_s) == (12, 0.5)
    assert all(math.isnan(v) for v in (rows["UDP sent"].new, rows["UDP sent"].new_bytes_per_kb))
    assert (rows["copy from user"].new, rows["fragments rx"].new) == (0.5, 0.72)
    assert math.isnan(rows["copy from user"].shed_s)
    places = {row.what: row for row in report.places}
    assert math.isnan(places["UDP sent"].per_unit) and places["UDP sent"].shed_s == 0.5
    assert places["copy from user"].per_unit == 0.5
    hop = report.hops[0]
    assert (hop.queued_shed_s, hop.sent_shed_s, math.isnan(hop.received_shed_s)) == (0.5, 1.0, True)


def test_where_fragmentation_starts_is_not_told_from_counts_that_stopped_early() -> None:
    told = ledger(made(*STREAM, mibs={("c", "Ip.FragCreates"): 108}, probes=SHED)).fragmentation
    assert told == (
        "Where fragmentation starts is unknown: probes that see it were shed (xmit at 1 s); "
        "the kernel counts 108 fragments made."
    )


def test_a_shed_probe_is_not_compared_with_the_kernel() -> None:
    mibs = {("c", "Udp.OutDatagrams"): 50, ("init", "Udp.OutDatagrams"): 32, ("c", "Tcp.RetransSegs"): 4}
    rows = {(r.what, r.namespace): r for r in ledger(made(*STREAM, mibs=mibs, probes=SHED)).reconciled}
    assert [(r.verdict, r.why) for (what, _), r in rows.items() if what == "UDP sent"] == [
        ("shed", "its probe was shed at 0.5 s")
    ] * 2
    assert rows["TCP retransmission", "c"].verdict == "edges"


def test_no_reason_is_given_for_a_difference_that_nothing_explains() -> None:
    row = ledger(made(*STREAM, mibs={("init", "Udp.OutDatagrams"): 32_000})).reconciled[0]
    assert (row.counted, row.kernel, row.verdict, row.why) == (0, 32_000, "no", "differs; cause not known")
    gone = ProbeInfo("queue", "net_dev_queue", "none", "refused", "lockdown; not counted: packets")
    refused = ledger(made(*STREAM, mibs={("init", "Udp.OutDatagrams"): 32_000}, probes=(gone,))).reconciled[0]
    assert refused.why == "probe queue was refused"


def test_a_shed_side_of_a_comparison_has_no_difference() -> None:
    whole = made(("UDP sent", "", "c:eth0", 50, 5_000), scenario="host")
    report = ledger(made(*STREAM, probes=SHED), baseline=whole)
    row = next(row for row in report.events if row.what == "UDP sent")
    assert (row.base, math.isnan(row.new)) == (0.5, True)
    text = markdown(ledger_parts(report))
    assert "UDP sent (until 0.5 s)" in text
    swapped = ledger(whole, baseline=made(*STREAM, probes=SHED))
    row = next(row for row in swapped.events if row.what == "UDP sent")
    assert (math.isnan(row.base), row.new, row.base_shed_s) == (True, 0.5, 0.5)


def test_an_event_that_a_shed_probe_never_counted_is_not_zero_per_unit() -> None:
    whole = made(("UDP sent", "", "c:eth0", 50, 5_000), scenario="host")
    report = ledger(made(("drop", "", "c", 1, 0), probes=SHED), baseline=whole)
    assert math.isnan(next(row.new for row in report.events if row.what == "UDP sent"))


def test_each_pass_tells_its_own_shedding() -> None:
    """The profile's probes are of all passes; another scenario's shedding is not this one's."""
    profile = made(*STREAM, probes=SHED)
    marked = replace(profile, ledger=(*profile.ledger, LedgerLine(0, MARK, "queue at 0.5 s", 0, 0, -1, 0, -1)))
    assert next(row.new for row in ledger(marked).events if row.what == "UDP sent") == 0.12
    own = replace(profile, ledger=(*profile.ledger, LedgerLine(1, MARK, "queue at 0.7 s", 0, 0, -1, 0, -1)))
    report = ledger(own)
    assert [row.what for row in report.events if row.shed_s == 0.7] == ["UDP sent"]
    assert MARK not in {row.what for row in (*report.events, *report.places)}


@pytest.mark.parametrize(
    ("what", "detail", "name", "target"),
    [
        ("checksum", "csum_partial", "csum_partial", "csum_partial"),
        ("head realloc", "pskb_expand_head: cloned", "pskb_expand_head", "pskb_expand_head"),
        ("netfilter hook", "IPv4 forward", "nf_hook_slow", "nf_hook_slow"),
        ("checksum", "made while copying from user (seen from tracepoints)", "queue", "net_dev_queue"),
        ("copy from user", "bytes that sockets took (sock_send_length)", "sent", "sock_send_length"),
        ("backlog", "", "backlog", "netif_rx"),
        ("GSO tx", "", "xmit", "net_dev_start_xmit"),
    ],
)
def test_a_line_is_known_to_be_of_its_probe(what: str, detail: str, name: str, target: str) -> None:
    line = (what, detail, "c:eth0", 5, 500)
    assert math.isnan(ledger(made(line, probes=(shed(name, target, 1.5),))).events[0].new)
    other = ledger(made(line, probes=(shed("resend", "tcp_retransmit_skb", 1.5),)))
    assert other.events[0].new == 0.05


def test_only_the_scenarios_own_namespaces_are_counted_unless_all_are_wanted() -> None:
    profile = made(
        ("backlog", "", "c:eth0", 3, 0),
        ("backlog", "", "init:lo", 900, 0),
        ("skb tx", "MTU 65536", "init:lo", 900, 0),
        mibs={("c", "Udp.OutDatagrams"): 1, ("init", "Udp.OutDatagrams"): 450},
    )
    spaces = tuple(replace(s, role="watched") if s.name == "c" else s for s in profile.namespaces)
    profile = replace(profile, namespaces=spaces)
    report = ledger(profile)
    assert [(row.what, row.calls) for row in report.events] == [("backlog", 3)]
    assert {row.namespace for row in (*report.places, *report.hops, *report.reconciled)} <= {"c"}
    assert report.notes == ("left out: 1 namespace beside the scenario's, which sent 900 packets (--everyone)",)
    everyone = ledger(profile, everyone=True)
    assert next(row.calls for row in everyone.events if row.what == "backlog") == 903
    assert everyone.notes == ()
    assert [(row.namespace, row.sent) for row in ledger(profile, namespaces=["init"]).hops] == [("init", 900)]


def test_long_names_do_not_push_figures_out() -> None:
    name = "kubelet-net-0123456789abcdef0123456789abcdef"
    out = io.StringIO()
    report = ledger(made(("drop", "NO_SOCKET", f"{name}:eth0", 11, 660)))
    print_parts(ledger_parts(report), Console(file=out, width=80, highlight=False, markup=False, emoji=False))
    assert f"eth0 in {name[:12]}…{name[-11:]}" in out.getvalue()
    row = next(line for line in out.getvalue().splitlines() if "eth0 in" in line)
    assert "0.110" in row and "660" in row


def test_costs_do_not_come_from_counting_passes() -> None:
    profile = made(("drop", "", "c", 1, 0))
    assert (profile.runs_of("pod"), profile.ledger_runs_of("pod")) == ((0,), (1,))


@pytest.mark.parametrize("width", [60, 80, 160])
def test_tables_fit_the_terminal_and_never_send_a_names_escapes(width: int) -> None:
    profile = made(("drop", "NO_SOCKET", "evil\x1b[2J:eth0", 1, 60), ("skb tx", "MTU 1500", "c:eth0", 23, 9_000))
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, markup=False, emoji=False)
    print_parts(ledger_parts(ledger(profile)), console)
    assert max(map(len, out.getvalue().splitlines())) <= width
    assert "\x1b" not in out.getvalue()
    assert "\x1b" not in markdown(ledger_parts(ledger(profile)))


def test_one_device_is_not_devices() -> None:
    report = ledger(made(("skb tx", "MTU 1500", "c:eth0", 1, 100)))
    assert report.fragmentation == "No fragmentation: none of 1 packet seen at 1 device was an IP fragment."


def test_a_probe_shed_in_the_last_second_is_told_shortly() -> None:
    late = ledger(
        made(*STREAM, probes=(shed("queue", "net_dev_queue", 1.6), shed("xmit", "net_dev_start_xmit", 0.5)))
    )
    assert late.alarms == (
        "probe queue was shed in the window's last second: no rates",
        "probe xmit was shed over its budget 0.5 s after the window began; counted until then only: packets",
    )
    assert math.isnan(next(row.new for row in late.events if row.what == "UDP sent"))
