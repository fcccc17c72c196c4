"""The ledger's arithmetic on made-up lines: per unit, per KB, callers, verdicts, and where fragmentation starts."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from nsprof.analyse.ledger import ledger
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
    assert report.alarms == ("queue: shed 1.0 s after the window began: ...",)
    assert report.notes == ("not counted: skb_clone, skb_copy: no kprobes",)


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
