"""Which samples are skid, which losses are losses, and to whom a stack belongs: from made-up batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsprof.collect.hop.context import STANDING, Place, hop_columns, standing
from nsprof.collect.sampling.batch import RawBatch, Window, add_batch, after_interrupt_enable, losses
from nsprof.collect.sampling.maps import DUE_IDLE, SAMPLE_KEY, SAMPLE_VALUE, STACK, TALLY
from nsprof.collect.symbols.kernel import KernelSymbols
from nsprof.model.builder import ProfileBuilder
from nsprof.model.profile import Context, Direction, Event, FrameKind, Lateness, Profile, Run

PERIOD = 2_000_000
STI_NOP = bytes.fromhex("4889dfe853f4e500fb0f1f440000").rjust(16, b"\0")
PLAIN = bytes.fromhex("00008b5e2c4989d54531d20fcb458b01")

KALLSYMS = """\
ffffffff81001000 T finish_task_switch
ffffffff81002000 T udp_rcv
ffffffff81003000 T __netif_receive_skb_one_core
ffffffff81004000 T handle_softirqs
ffffffff81005000 T panic_like
ffffffff81005100 T asm_sysvec_call_function
ffffffff81006000 T interrupted
ffffffff81007000 T _etext
"""


@pytest.fixture
def symbols(tmp_path: Path) -> KernelSymbols:
    (tmp_path / "kallsyms").write_text(KALLSYMS)
    return KernelSymbols(tmp_path / "kallsyms", tmp_path / "none", program_bytes={})


def batch(rows: list[dict[str, Any]], stacks: dict[int, Any], **window: Any) -> RawBatch:
    keys = np.zeros(len(rows), SAMPLE_KEY)
    values = np.zeros(len(rows), SAMPLE_VALUE)
    for i, row in enumerate(rows):
        for name, value in row.items():
            if name in ("count", "weight"):
                values[name][i] = value
            else:
                keys[name][i] = np.frombuffer(value, "V16")[0] if name == "comm" else value
    windows = (made_window(**window),) if window else ()
    return RawBatch((Event("cpu-clock", "ns", period=PERIOD),), (PERIOD,), keys, values, stacks, windows)


def made_window(
    *, due: list[int], hits: list[int], idle_s: list[float], seconds: float = 2.0, **tally: int
) -> Window:
    tallies = np.zeros((1, len(due)), TALLY)
    tallies["hits"][0] = hits
    for name, value in tally.items():
        tallies[name][0][0] = value
    return Window(
        0,
        int(seconds * 1e9),
        np.array([[d * PERIOD for d in due]], "u8"),
        np.array([0]),
        tallies,
        dict(enumerate(idle_s)),
        0.0,
    )


def stack(*addresses: int, code: bytes = PLAIN) -> Any:
    record = np.zeros(1, STACK)[0]
    record["length"] = len(addresses)
    record["address"][: len(addresses)] = addresses
    record["code"] = np.frombuffer(code, "V16")[0]
    return record


def built(raw: RawBatch, symbols: KernelSymbols) -> Profile:
    builder = ProfileBuilder()
    builder.runs.append(Run("x"))
    add_batch(builder, raw, 0, symbols=symbols)
    return builder.build()


@pytest.mark.parametrize(
    ("code", "skid"),
    [
        ("fb0f1f440000", True),  # sti; 5-byte nop (6.x paravirt)
        ("fb660f1f440000", True),  # sti; 6-byte nop (older paravirt calls)
        ("fb90", True),
        ("9d", True),  # popf
        ("9d90", True),
        ("fbf4", False),  # sti; hlt: the idle loop's own way, no skid
        ("0f1f440000", False),
        ("fb0f1f44", False),
    ],
)
def test_the_instruction_behind_an_interrupt_enable_is_known(code: str, skid: bool) -> None:
    before = bytes.fromhex("48" * 8)
    assert after_interrupt_enable((before + bytes.fromhex(code))[-16:].rjust(16, b"\x48")) is skid


def test_unreadable_text_is_no_skid() -> None:
    assert not after_interrupt_enable(bytes(16))


def test_a_tick_held_back_is_skid_though_its_function_is_not_listed(symbols: KernelSymbols) -> None:
    raw = batch(
        [
            {"kernel_stack": 1, "count": 3, "weight": 3 * PERIOD, "pid": 7},
            {"kernel_stack": 2, "count": 5, "weight": 5 * PERIOD, "pid": 7},
            {"kernel_stack": 2, "count": 2, "weight": 2 * PERIOD, "pid": 7, "lateness": Lateness.SKID},
            {"kernel_stack": 2, "count": 1, "weight": PERIOD, "pid": 7, "lateness": Lateness.UNKNOWN},
        ],
        {1: stack(0xFFFFFFFF81001093, code=STI_NOP), 2: stack(0xFFFFFFFF81001050)},
    )
    profile = built(raw, symbols)
    assert [Lateness(x) for x in profile.samples.lateness] == [
        Lateness.SKID,
        Lateness.ON_TIME,
        Lateness.SKID,
        Lateness.UNKNOWN,
    ]
    assert profile.samples.weight.sum() == 11 * PERIOD


def test_a_return_address_behind_a_function_s_end_belongs_to_the_caller(symbols: KernelSymbols) -> None:
    # panic_like calls something that never returns as its last instruction: the return address is the next symbol.
    raw = batch(
        [{"kernel_stack": 1, "count": 1, "weight": 1, "pid": 1}],
        {1: stack(0xFFFFFFFF81002010, 0xFFFFFFFF81005100, 0xFFFFFFFF81004010)},
    )
    profile = built(raw, symbols)
    assert [profile.frames.name[f] for f in profile.stacks[0]] == ["udp_rcv", "panic_like", "handle_softirqs"]


def test_the_instruction_that_an_interrupt_hit_is_taken_as_it_is(symbols: KernelSymbols) -> None:
    raw = batch(
        [{"kernel_stack": 1, "count": 1, "weight": 1, "pid": 1}],
        {1: stack(0xFFFFFFFF81002010, 0xFFFFFFFF81005110, 0xFFFFFFFF81006000)},
    )
    profile = built(raw, symbols)
    assert [profile.frames.name[f] for f in profile.stacks[0]][-1] == "interrupted"


def test_user_mode_missing_stacks_and_unknown_addresses_are_three_things(symbols: KernelSymbols) -> None:
    raw = batch(
        [
            {"user_mode": 1, "count": 1, "weight": 1, "pid": 1},
            {"stack_state": 1, "count": 1, "weight": 1, "pid": 1},
            {"kernel_stack": 1, "count": 1, "weight": 1, "pid": 1},
        ],
        {1: stack(0xFFFFFFFFC0DE0010)},
    )
    profile = built(raw, symbols)
    leaf = [profile.stacks[int(s)][0] for s in profile.samples.stack]
    assert [FrameKind(profile.frames.kind[f]) for f in leaf] == [FrameKind.USER, FrameKind.UNKNOWN, FrameKind.UNKNOWN]
    assert [Context(c) for c in profile.samples.context][:2] == [Context.USER, Context.UNKNOWN]
    assert len({profile.frames.name[f] for f in leaf}) == 3


def test_any_bytes_in_a_comm_survive_as_text(symbols: KernelSymbols) -> None:
    raw = batch(
        [
            {"user_mode": 1, "count": 1, "weight": 1, "pid": 1, "comm": b'\xff<b>"\n x'.ljust(16, b"\0")},
            {"user_mode": 1, "count": 1, "weight": 1, "pid": 1, "comm": b"other".ljust(16, b"\0")},
        ],
        {},
    )
    assert {t.comm for t in built(raw, symbols).tasks} == {'\\xff<b>"\n x', "other"}


# ---- losses ----


def test_nothing_is_lost_when_every_due_tick_was_seen() -> None:
    raw = batch([{"count": 2000, "weight": 1, "pid": 5}], {}, due=[1000, 1000], hits=[1000, 1000], idle_s=[0, 0])
    found = losses(raw)
    assert (found.expected, found.seen, found.lost_share) == (2000, 2000, 0.0)


def test_ticks_that_an_idle_cpu_swallowed_are_not_expected() -> None:
    raw = batch([{"count": 1000, "weight": 1, "pid": 5}], {}, due=[1000, 1000], hits=[1000, 0], idle_s=[0, 2.0])
    assert losses(raw).expected == 1000


def test_ticks_missing_on_a_busy_cpu_are_lost_and_counted() -> None:
    raw = batch([{"count": 900, "weight": 1, "pid": 5}], {}, due=[1000], hits=[900], idle_s=[0])
    found = losses(raw)
    assert (found.expected, found.seen, found.lost_records, found.map_full) == (1000, 900, 100, 0)
    assert found.lost_share == pytest.approx(0.1)


def test_samples_without_room_are_lost_and_counted_apart() -> None:
    raw = batch(
        [{"count": 940, "weight": 1, "pid": 5}], {}, due=[1000], hits=[1000], idle_s=[0], map_full=60, stack_full=7
    )
    found = losses(raw)
    assert (found.expected - found.seen, found.map_full, found.stack_collisions) == (60, 60, 7)


def test_chance_on_a_half_idle_cpu_is_no_loss_but_a_real_gap_is() -> None:
    # 1000 ticks due, half the time idle with swallowed ticks: 500 +- 16 (one sigma) busy ticks are seen by chance.
    assert losses(batch([], {}, due=[1000], hits=[470], idle_s=[1.0])).lost_records == 0
    assert losses(batch([], {}, due=[1000], hits=[300], idle_s=[1.0])).lost_records == 200


def test_a_tick_that_was_due_while_the_cpu_slept_is_idle_time_wherever_it_landed(symbols: KernelSymbols) -> None:
    rows = [
        {"kernel_stack": 1, "count": 30, "weight": 30, "pid": 5},
        {"kernel_stack": 1, "count": 12, "weight": 12, "pid": 5, "lateness": DUE_IDLE},
        {"kernel_stack": 1, "count": 7, "weight": 7, "lateness": DUE_IDLE},
    ]
    samples = built(batch(rows, {1: stack(0x1010)}), symbols).samples
    idle = samples.context == Context.IDLE
    assert (int(samples.count[idle].sum()), int(samples.count[~idle].sum())) == (19, 30)
    assert set(samples.lateness[idle].tolist()) == {Lateness.SKID}


def test_ticks_due_in_idle_time_are_told_from_the_idle_tasks_own_work() -> None:
    # 1000 due, half of them in idle time. 400 of those were seen, so 100 were swallowed; the idle task's other 250
    # samples are softirqs that interrupted it: busy ticks, of which 500 - 250 - 150 = 100 are missing.
    rows = [
        {"count": 400, "weight": 1, "lateness": DUE_IDLE},
        {"count": 250, "weight": 1},
        {"count": 150, "weight": 1, "pid": 5},
    ]
    found = losses(batch(rows, {}, due=[1000], hits=[800], idle_s=[1.0]))
    assert (found.expected, found.lost_records) == (900, 100)


def test_busy_time_known_finer_is_used() -> None:
    raw = batch([], {}, due=[1000], hits=[300], idle_s=[0.0])
    assert losses(raw, busy_s={0: 0.6}).lost_records == 0
    assert losses(raw).lost_records == 700


# ---- to whom a stack belongs ----

SOFT = ("handle_softirqs", "do_softirq", "__dev_queue_xmit")


@pytest.mark.parametrize(
    ("frames", "context", "place"),
    [
        (("veth_xmit", "dev_hard_start_xmit", "__dev_queue_xmit"), Context.TASK, Place.TRANSMIT),
        (("dev_hard_start_xmit", "__dev_queue_xmit"), Context.TASK, Place.TASK),
        (("udp_rcv", "__netif_receive_skb_one_core", "process_backlog", *SOFT), Context.SOFTIRQ, Place.RECEIVE),
        (("fib", "ip_forward", "__netif_receive_skb_one_core", *SOFT), Context.SOFTIRQ, Place.FORWARD),
        (("macvlan_handle_frame", "__netif_receive_skb_core.constprop.0", *SOFT), Context.SOFTIRQ, Place.MOVING),
        (("__netif_receive_skb_core.constprop.0", "process_backlog", *SOFT), Context.SOFTIRQ, Place.NOBODY),
        (("process_backlog", "__napi_poll", *SOFT), Context.SOFTIRQ, Place.NOBODY),
        (("bpf_trace_run2", "dev_hard_start_xmit"), Context.TASK, Place.PROBING),
        # The task below the softirq transmits; the softirq itself does not.
        (("process_backlog", "handle_softirqs", "veth_xmit", "dev_hard_start_xmit"), Context.SOFTIRQ, Place.NOBODY),
        (("tun_get_user", "vfs_write"), Context.TASK, Place.TASK),
        (("udp_rcv", "__netif_receive_skb_one_core", "tun_get_user"), Context.TASK, Place.RECEIVE),
        ((), Context.USER, Place.TASK),
        (("default_idle",), Context.IDLE, Place.NOBODY),
        (("handle_irq_event",), Context.HARDIRQ, Place.NOBODY),
    ],
)
def test_places(frames: tuple[str, ...], context: Context, place: Place) -> None:
    assert standing(frames, context)[0] == place


def test_a_hop_is_known_only_where_probe_and_stack_agree() -> None:
    keys = np.zeros(6, SAMPLE_KEY)
    keys["task_ns"], keys["tx_ns"], keys["rx_ns"] = 1, 2, 3
    keys["tx_depth"] = [1, 0, 0, 0, 0, 1]
    keys["rx_state"] = [1, 1, 3, 2, 0, 1]
    places = [Place.TRANSMIT, Place.RECEIVE, Place.RECEIVE, Place.FORWARD, Place.TRANSMIT, Place.TASK]
    where = np.array([(p, int(p == Place.TRANSMIT), 0) for p in places], STANDING)
    hop = hop_columns(keys, where)
    assert hop["inode"].tolist() == [2, 3, 0, 3, 0, 1]
    assert [Direction(d) for d in hop["direction"]] == [
        Direction.TX,
        Direction.RX,
        Direction.UNKNOWN,
        Direction.FORWARD,
        Direction.UNKNOWN,
        Direction.TASK,
    ]
