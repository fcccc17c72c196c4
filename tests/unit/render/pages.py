"""A report page's content made by hand: the small UDP_RR case of `trees`, complete in every section."""

from __future__ import annotations

import math
from dataclasses import replace

from nsprof.model.results import (
    CategoryRow,
    CostReport,
    DeltaRow,
    DiffReport,
    FunctionRow,
    Interval,
    ScenarioRow,
    ScenarioTable,
)
from nsprof.render.flamegraph_data import UnitScale
from nsprof.render.page_model import (
    Card,
    Facts,
    FlameView,
    LedgerEntry,
    PageContent,
    PointGroup,
    RunChart,
    TopologyBox,
    TopologyLink,
    TopologyPicture,
)
from tests.unit.render.trees import FINDINGS, NS, datapath, tree_of

NAN = float("nan")


def category(name: str) -> str:
    """Roughly nsprof's categories, enough for a picture."""
    for words, label in (
        (("br_", "fdb", "dev_queue"), "bridge"),
        (("veth",), "veth"),
        (("udp", "sock_def"), "UDP"),
        (("sched",), "scheduling"),
        (("copy",), "copy"),
        (("kmem",), "skb alloc/free"),
        (("lock",), "locking"),
        (("fq_",), "qdisc and xmit"),
        (("bpf",), "BPF"),
    ):
        if any(w in name for w in words):
            return label
    return "IP and routing"


def diff_report() -> DiffReport:
    """The differences of `datapath`, function by function and category by category."""
    functions: dict[str, DeltaRow] = {}
    for stack, new, base in datapath():
        module, _, name = stack[-1].removeprefix("b:").removeprefix("p:").rpartition("`")
        found = FINDINGS.get(name, {})
        functions[name] = DeltaRow(
            name,
            module,
            category(name),
            base,
            new,
            new - base,
            base_total=base,
            new_total=new,
            interval=Interval(found["low"], found["high"]) if found else None,
            q=found.get("q", NAN),
            verdict=found.get("verdict", ""),
            status="new" if not base else "gone" if not new else "",
            samples_base=int(base),
            samples_new=int(new),
        )
    rows = tuple(sorted(functions.values(), key=lambda r: -abs(r.delta)))
    groups: dict[str, list[DeltaRow]] = {}
    for row in rows:
        groups.setdefault(row.category, []).append(row)
    sums = tuple(
        DeltaRow(
            name,
            "",
            name,
            sum(r.base for r in g),
            sum(r.new for r in g),
            sum(r.delta for r in g),
            verdict="+" if sum(r.delta for r in g) > 50 else "~",
        )
        for name, g in groups.items()
    )
    base, new = sum(r.base for r in rows), sum(r.new for r in rows)
    total = DeltaRow(
        "total", "", "", base, new, new - base, interval=Interval(870, 960), p=0.0002, q=0.0003, verdict="+"
    )
    return DiffReport("host", "veth-bridge", NS, total, rows, sums, runs_base=8, runs_new=8)


def cost_report() -> CostReport:
    """The new side alone."""
    diff = diff_report()
    rows = tuple(
        FunctionRow(
            r.name,
            r.module,
            r.category,
            r.new,
            r.new_total,
            r.new / 3482,
            r.new_total / 3482,
            r.samples_new,
            skid_share=0.02,
            contexts={"softirq": 0.7, "task": 0.3},
        )
        for r in diff.functions
        if r.new
    )
    return CostReport(
        "veth-bridge",
        NS,
        rows,
        tuple(CategoryRow(c.name, c.new, c.new / 3482, int(c.new)) for c in diff.categories),
        total=3482,
        runs=8,
        samples=27_882,
        covered_share=0.971,
        skid_share=0.041,
        lost_share=0.003,
        own_share=0.008,
        notes=("Functions marked skid hold samples that came late.",),
    )


def scenarios() -> ScenarioTable:
    """Three lines of the document-000 table."""

    def row(name: str, cpu: float, change: float, rate: float, unit: float) -> ScenarioRow:
        base = name == "host"
        return ScenarioRow(
            name,
            "6.18",
            8,
            cpu,
            change,
            rate,
            "trans/s",
            (rate - 142_000) / 1420,
            unit,
            "ns/transaction",
            (unit - 2567) / 25.67,
            is_baseline=base,
            observation="" if base else "more softirq work per packet",
        )

    return ScenarioTable(
        "netperf UDP_RR, one container",
        "host",
        (
            row("host", 51.2, NAN, 142_000, 2567),
            row("veth-route", 58.3, 13.9, 128_400, 3010),
            row("veth-bridge", 63.0, 23.0, 119_800, 3482),
        ),
        notes=("CPU of the device under test only.",),
    )


def picture() -> TopologyPicture:
    """Container, host and remote end."""
    return TopologyPicture(
        (
            TopologyBox(
                "c0",
                "container",
                (("eth0 (veth), MTU 1500", "rx 1.00, tx 1.00 skbs/transaction"),),
                "1.21 us/transaction",
            ),
            TopologyBox(
                "host",
                "host",
                (
                    ("v0 (veth), MTU 1500", "rx 1.00, tx 1.00 skbs/transaction"),
                    ("br0 (bridge)", "rx 1.00, tx 1.00 skbs/transaction"),
                    ("w0 (veth), MTU 1500", "rx 1.00, tx 1.00 skbs/transaction"),
                ),
                "2.27 us/transaction",
            ),
            TopologyBox("remote", "remote", (("w1 (veth), MTU 1500", "rx 1.00, tx 1.00 skbs/transaction"),)),
        ),
        (TopologyLink((0, 0), (1, 0)), TopologyLink((1, 2), (2, 0))),
        "skbs of the device counters for each transaction; CPU from the runs with hop probes.",
    )


def content() -> PageContent:
    """A page with every section filled."""
    rows = datapath()
    units = (UnitScale("ns/KB", "ns", "KB", 0.5, 0.25),)
    soft = [(s, n, b) for s, n, b in rows if "net_rx_action" in s]
    views = (
        FlameView("difference", tree_of(rows, differential=True, findings=FINDINGS, ns_per_tick=1), units),
        FlameView("veth-bridge", tree_of(rows), units),
        FlameView("veth-bridge: softirq only", tree_of(soft)),
    )
    steady = tuple(3482 + 12 * math.sin(n) for n in range(8))
    return PageContent(
        "netperf UDP_RR: veth-bridge against host",
        report=cost_report(),
        diff=diff_report(),
        table=scenarios(),
        views=views,
        ledger=(
            LedgerEntry("copy", "skb_copy_datagram_iter", "c0", 1, 1, 64, 64),
            LedgerEntry("checksum", "software", "c0: eth0", 0, 1),
        ),
        ledger_per="transaction",
        charts=(
            RunChart(
                "Unit cost",
                "ns/transaction",
                (
                    PointGroup("host", tuple(v - 915 for v in steady), 2567, Interval(2555, 2580)),
                    PointGroup("veth-bridge", steady, 3482, Interval(3470, 3494)),
                ),
                "interval: 95 %, over runs",
            ),
            RunChart("Throughput", "trans/s", (PointGroup("host", (142_000, 141_200, 143_100), 142_000),)),
        ),
        topology=picture(),
        environment=(
            Facts(
                "Machine",
                ("host", "veth-bridge"),
                (("kernel", ("6.12.1", "6.12.1")), ("governor", ("powersave", "performance"))),
            ),
        ),
        losses=Facts(
            "Losses",
            ("host", "veth-bridge"),
            (("ticks expected on busy CPUs", ("20,140", "27,970")), ("lost", ("0.2 %", "0.3 %"))),
        ),
        not_measurable=("Hardware counters: this machine has no PMU, so there are no cycles or cache misses.",),
        cards=(Card("The bridge", ("+780 ns/transaction in br_handle_frame and below; absent from the baseline.",)),),
        created="2026-01-01 12:00",
        version="0.1.0",
    )


def hostile(word: str) -> PageContent:
    """The page with `word` in every name that comes from outside."""
    page = content()
    assert page.diff and page.report and page.table and page.topology
    rows = [((*s[:-1], s[-1] + word), n, b) for s, n, b in datapath()]
    found = {name + word: row for name, row in FINDINGS.items()}
    diff = replace(
        page.diff,
        new_title="new" + word,
        base_title="base" + word,
        functions=tuple(replace(r, name=r.name + word, module=word, category=word) for r in page.diff.functions),
        categories=tuple(replace(r, name=r.name + word) for r in page.diff.categories),
        warnings=("warned" + word,),
        notes=(word,),
    )
    box = TopologyBox("ns" + word, word, (("dev" + word, "x" + word),), word)
    return replace(
        page,
        title="title" + word,
        diff=diff,
        table=replace(
            page.table,
            title=word,
            rows=tuple(replace(r, scenario=r.scenario + word, observation=word) for r in page.table.rows),
        ),
        views=(
            FlameView("view" + word, tree_of(rows, differential=True, findings=found, title=word, notes=(word,))),
        ),
        ledger=(LedgerEntry(word, word, word, 1, 2),),
        charts=(RunChart("chart" + word, "u" + word, (PointGroup("group" + word, (1.0, 2.0), 1.5),), word),),
        topology=TopologyPicture((box,), (), word),
        environment=(Facts("facts" + word, ("a" + word, "b"), ((word, (word, word)),), word),),
        not_measurable=(word,),
        cards=(Card(word, (word,)),),
    )
