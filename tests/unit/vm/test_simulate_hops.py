"""For whose packet the simulated kernel worked, and what of its work was the clock's: known trees, known answers."""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nsprof.errors import VmError
from nsprof.model.profile import Context, Direction
from nsprof.model.scenario import TopologySpec
from nsprof.render.tables import markdown
from nsprof.simulate import Measurement, SimulateOptions
from nsprof.simulate.background import OWN_PATH, background_of, kind_of
from nsprof.simulate.hops import Hop, hop_of, hops_are_known
from nsprof.simulate.plans import plan_for
from nsprof.simulate.report import document, report_parts
from nsprof.vm.guest_minimal import GuestJob, _scripts
from nsprof.vm.tcg_machine import _check_modules
from nsprof.vm.tcg_output import parse

NODES = """\
N 2 0 1 100 10 entry_SYSCALL_64
N 3 2 2 181 20 dev_hard_start_xmit
N 4 2 3 0 30 net_rx_action
N 5 4 4 101 40 __netif_receive_skb_one_core
N 6 5 2 182 20 dev_hard_start_xmit
N 7 4 4 102 40 __netif_receive_skb_one_core
N 8 0 1 200 10 entry_SYSCALL_64
N 9 8 2 281 20 dev_hard_start_xmit
N 10 8 3 0 30 net_rx_action
N 11 10 4 201 40 __netif_receive_skb_one_core
N 12 11 2 282 20 dev_hard_start_xmit
N 13 10 4 202 40 __netif_receive_skb_one_core
N 14 6 5 0 50 veth_xmit
N 15 5 6 0 60 asm_sysvec_apic_timer_interrupt
N 16 0 7 0 70 ret_from_fork_asm
N 17 2 8 0 80 rcu_core
N 18 5 9 0 90 ip_forward
N 19 18 10 0 a0 ip_output
N 20 4 11 0 b0 __netif_receive_skb
"""


def _sample(index: int, counts: dict[int, int], calls: dict[int, int] | None = None) -> str:
    rows = "".join(f"S {n} {(calls or {}).get(n, 2)} {c} 0 0 0 0 0 0 0 0\n" for n, c in counts.items())
    return f"R 1 {index} executed={sum(counts.values())} repeats=0 user=5 unmatched=0 interrupt_unmatched=0\n{rows}"


USUAL = dict.fromkeys(range(2, 15), 10)


def _measured(shape: str, text: str) -> Measurement:
    output = parse(text + NODES + "Z\n")
    values: dict[str, Any] = dict.fromkeys(Measurement.__dataclass_fields__)
    values.update(plan=plan_for(TopologySpec(shape)), output=output, repetitions=2, scenario=shape)
    values.update(sample=output.samples[0], samples=tuple(output.samples), placements=(12.0, 10.5))
    return Measurement(**values)


def test_every_node_has_the_device_of_its_packet() -> None:
    m = _measured("veth-route", _sample(0, USUAL))
    assert hops_are_known(m)
    found = {n: hop_of(m, n, Context.SOFTIRQ) for n in (3, 4, 5, 6, 7, 9, 11, 12, 13, 14)}
    assert found == {
        3: Hop("c0", "eth0", Direction.TX),
        4: Hop("", "", Direction.BETWEEN),
        5: Hop("host", "v0", Direction.RX),
        6: Hop("host", "w0", Direction.TX),
        7: Hop("remote", "eth0", Direction.RX),
        9: Hop("remote", "eth0", Direction.TX),
        11: Hop("host", "w0", Direction.RX),
        12: Hop("host", "v0", Direction.TX),
        13: Hop("c0", "eth0", Direction.RX),
        14: Hop("host", "w0", Direction.TX),
    }
    assert hop_of(m, 19, Context.SOFTIRQ) == Hop("host", "v0", Direction.FORWARD)
    assert hop_of(m, 20, Context.SOFTIRQ).direction == Direction.UNKNOWN
    assert hop_of(m, 2, Context.TASK) == Hop("c0", "", Direction.TASK)
    assert hop_of(m, 8, Context.TASK) == Hop("remote", "", Direction.TASK)
    assert hop_of(m, 16, Context.SCHED).direction == Direction.UNKNOWN


def test_one_packet_more_than_the_devices_say_and_no_hop_is_claimed() -> None:
    assert not hops_are_known(_measured("veth-route", _sample(0, USUAL, {7: 3})))
    assert not hops_are_known(_measured("host", _sample(0, USUAL)))
    assert not hops_are_known(_measured("macvlan", _sample(0, USUAL)))


def test_datagrams_of_one_direction_are_enough() -> None:
    one_way = dict.fromkeys((2, 3, 4, 5, 6, 7, 14), 10)
    assert hops_are_known(_measured("veth-bridge", _sample(0, one_way)))


def test_background_is_told_by_kind_and_adds_up() -> None:
    ticked = USUAL | {15: 700, 16: 50, 7: 13}
    other = USUAL | {17: 40}
    m = _measured("veth-route", "".join(_sample(i, c) for i, c in enumerate((USUAL, ticked, USUAL, other))))
    found = background_of(m.output, m.sample, m.samples)
    assert (found.alike, found.samples, found.instructions) == (2, 4, 700 + 50 + 3 + 40)
    assert [(k.name, k.samples, k.instructions) for k in found.kinds] == [
        ("timers", 1, 700),
        ("kernel threads", 1, 50),
        ("RCU", 1, 40),
        (OWN_PATH, 1, 3),
    ]
    assert m.background == pytest.approx(found.instructions / 4 / 2)
    assert m.bad_luck == 0


def test_the_leafmost_function_that_tells_decides() -> None:
    receiving = ("ip_rcv", "net_rx_action", "asm_sysvec_apic_timer_interrupt", "ret_from_fork")
    assert kind_of(receiving) == OWN_PATH
    assert kind_of(("update_curr", *receiving[2:])) == "timers"
    assert kind_of(("chacha_permute", "crng_fast_key_erasure", "get_random_u32", "ip_rcv")) == "random numbers"
    assert kind_of(("rcu_gp_fqs_loop", "[unknown]")) == "RCU"
    assert kind_of(("pick_next_task", "__schedule", "entry_SYSCALL_64")) == "kernel threads"
    assert kind_of(("ip_rcv", "entry_SYSCALL_64")) == OWN_PATH
    assert kind_of(()) == OWN_PATH


def test_report_says_what_the_background_is_and_that_another_kernel_runs() -> None:
    ticked = USUAL | {15: 700, 16: 50}
    m = _measured("veth-route", "".join(_sample(i, c) for i, c in enumerate((USUAL, ticked, USUAL, USUAL))))
    kernel: Any = SimpleNamespace(spec="debian:6.1", release="6.1.0-none")
    m = replace(m, kernel=kernel, modal_share=0.75, denominators={"transaction": 2.0, "skb": 4.0}, seed=1)
    text = markdown(report_parts(SimulateOptions(kernels=("debian:6.1",)), [m], limit=0, estimate={}))
    assert "veth-route: 1 of 4 samples hold +750 each: timers +700, kernel threads +50" in text
    assert "3 of 4" in text
    assert f"Simulated 6.1.0-none; this machine runs {platform.release()}." in text
    assert "It comes by the guest's clock" in text
    (row,) = document(SimulateOptions(kernels=("debian:6.1",)), [m])["scenarios"]
    assert row["background"] == [750 / 4 / 2]
    assert row["background_kinds"] == [
        {"timers": {"samples": 1, "instructions": 700}, "kernel threads": {"samples": 1, "instructions": 50}}
    ]


def test_a_luckier_network_that_was_seen_is_told() -> None:
    m = replace(_measured("host", _sample(0, USUAL)), placements=(10.5, 12.0))
    assert m.bad_luck == 1.5


def test_networks_are_built_again_until_one_serves() -> None:
    script = _scripts(GuestJob(plan_for(TopologySpec("host")), ("workload=udp-rr",), tries=3))["start"]
    assert "while :; do" in script
    assert 'traffic workload=udp-rr tries=3 attempt="$attempt"' in script
    assert "3) /usr/bin/ip -batch /job/remove" in script


def test_modules_elsewhere_than_in_the_symbols_boot_are_refused(tmp_path: Path) -> None:
    table = tmp_path / "6.1-key.kallsyms"
    (tmp_path / "6.1-key.kallsyms.modules").write_text("veth 0xffffffffc0201000\n")
    kernel: Any = type("Kernel", (), {"spec": "debian:6.1"})
    _check_modules(kernel, table, [("module", "veth", "0xffffffffc0201000"), ("done",)])
    with pytest.raises(VmError, match="did not lie where they lay"):
        _check_modules(kernel, table, [("module", "veth", "0xffffffffc0202000")])
