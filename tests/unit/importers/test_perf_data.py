"""perf.data, read natively: known files back, every layout, damage, losses, whose symbols."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsprof import store
from nsprof.errors import ProfileFormatError
from nsprof.kernelnames import context_of
from nsprof.model.profile import Context, FrameKind, Profile
from nsprof.store.importers import detect, import_file
from nsprof.store.importers.assemble import context_column
from nsprof.store.importers.perfdata import header as h
from nsprof.store.importers.perfdata import import_perf_data
from tests.support import REPO
from tests.unit.importers.perfdata_file import KERNEL, USER, Event, PerfData, Sample

DATA = REPO / "tests" / "data" / "importers"
BASIC = h.IP | h.TID | h.TIME | h.CPU | h.PERIOD | h.CALLCHAIN


def read(raw: bytes, **options: Path) -> tuple[Profile, bool]:
    return import_perf_data(memoryview(raw), "test.data", **options)


def counts(profile: Profile) -> dict[str, int]:
    made: Counter[str] = Counter()
    for event, count in zip(profile.samples.event.tolist(), profile.samples.count.tolist(), strict=True):
        made[profile.events[event].name] += count
    return dict(made)


def folded(profile: Profile) -> dict[tuple[str, ...], int]:
    made: Counter[tuple[str, ...]] = Counter()
    for stack, count in zip(profile.samples.stack.tolist(), profile.samples.count.tolist(), strict=True):
        made[tuple(profile.frames.name[f] for f in profile.stacks[stack])] += count
    return dict(made)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("mode", ["file", "pipe"])
def test_23_samples_written_are_23_samples_read(order: str, mode: str) -> None:
    made = PerfData([Event(BASIC)], order)
    made.comm(10, 11, "netperf")
    for number in range(23):
        made.sample(Sample(time=number * 500_000_000, cpu=number % 2, chain=[KERNEL, 0xFFFFFFFF81000010]))
    profile, damaged = read(getattr(made, mode)())
    assert not damaged
    assert counts(profile) == {"cpu-clock": 23}
    assert profile.samples.weight.sum() == 23_000
    assert set(profile.samples.cpu.tolist()) == {0, 1}
    assert profile.tasks[0].comm == "netperf"
    assert (profile.tasks[0].tgid, profile.tasks[0].pid) == (10, 11)
    assert profile.samples.slice.max() == 11


FIELDS = [
    h.IDENTIFIER, h.ADDR, h.ID, h.STREAM_ID, h.CPU, h.PERIOD, h.READ, h.CALLCHAIN, h.RAW, h.BRANCH_STACK, h.REGS_USER,
    h.STACK_USER, h.WEIGHT, h.DATA_SRC, h.TRANSACTION, h.REGS_INTR, h.PHYS_ADDR, h.CGROUP, h.DATA_PAGE_SIZE,
    h.CODE_PAGE_SIZE, h.AUX, h.WEIGHT_STRUCT,
]  # fmt: skip


@st.composite
def layouts(draw: st.DrawFn) -> tuple[PerfData, list[Sample]]:
    kind = h.IP | h.TID | h.TIME
    for field in draw(st.lists(st.sampled_from(FIELDS), unique=True)):
        kind |= field
    event = Event(
        kind,
        read_format=draw(st.sampled_from([0, 3, 16, 8, 8 | 1, 8 | 16])),  # without ids: values stay unused
        branch_sample_type=draw(st.sampled_from([0, 1 << 17, 1 << 19, 1 << 17 | 1 << 19])),
        regs=draw(st.integers(0, 255)),
        size=draw(st.sampled_from([64, 72, 80, 96, 104, 112, 120, 128, 136])),
    )
    if event.size < 80:
        event.branch_sample_type = 0
    if event.size < 104:
        event.regs = 0
    samples = draw(
        st.lists(
            st.builds(
                Sample,
                ip=st.integers(1, 2**47),
                pid=st.integers(0, 2**22),
                tid=st.integers(0, 2**22),
                time=st.integers(0, 2**40),
                cpu=st.integers(0, 4095),
                period=st.integers(1, 2**40),
                chain=st.lists(st.integers(0xFFFFFFFF81000000, 0xFFFFFFFF81000040), max_size=6).map(
                    lambda c: [KERNEL, *c] if c else []
                ),
                branches=st.integers(0, 5),
                raw=st.binary(max_size=40),
                stack=st.integers(0, 5).map(lambda n: n * 8),
                values=st.lists(st.tuples(st.just(1), st.integers(0, 2**40)), min_size=1, max_size=3),
            ),
            min_size=1,
            max_size=30,
        )
    )
    made = PerfData([event], draw(st.sampled_from(["<", ">"])))
    for sample in samples:
        made.sample(sample)
    return made, samples


@settings(max_examples=80, deadline=None)
@given(layouts())
def test_every_sample_layout_comes_back_whole(case: tuple[PerfData, list[Sample]]) -> None:
    made, samples = case
    kind = made.events[0].sample_type
    profile, damaged = read(made.file())
    assert not damaged
    assert int(profile.samples.count.sum()) == len(samples)
    weights = sum(s.period for s in samples) if kind & h.PERIOD else 1000 * len(samples)
    assert profile.samples.weight.sum() == weights
    got: Counter[tuple[int, int, int]] = Counter()
    for task, cpu, count in zip(
        profile.samples.task.tolist(), profile.samples.cpu.tolist(), profile.samples.count.tolist(), strict=True
    ):
        got[profile.tasks[task].tgid, profile.tasks[task].pid, cpu] += count
    assert got == Counter((s.pid, s.tid, s.cpu if kind & h.CPU else 0xFFFF) for s in samples)
    if kind & h.CALLCHAIN:
        chains = Counter(len(s.chain) - 1 if s.chain else 1 for s in samples)
        assert Counter({len(k): 0 for k in folded(profile)}).keys() == chains.keys()
        assert profile.meta["source"].get("chain_addresses", 0) == sum(len(s.chain) for s in samples)
    if kind & h.BRANCH_STACK:
        assert profile.meta["source"].get("branch_entries", 0) == sum(s.branches for s in samples)


def test_samples_go_to_their_events_by_id_and_are_never_summed() -> None:
    kind = h.IP | h.TID | h.TIME | h.ID | h.PERIOD
    events = [Event(kind, [1, 2], 0, 0), Event(kind, [3], 0, 3), Event(kind, [4], 0, 1)]
    made = PerfData(events)
    for number, repeat in ((1, 3), (2, 2), (3, 7), (4, 11)):
        for _ in range(repeat):
            made.sample(Sample(id=number, period=number))
    made.sample(Sample(id=77))
    profile, _ = read(made.file())
    assert counts(profile) == {"cycles": 5, "cache-misses": 7, "instructions": 11}
    assert [e.unit for e in profile.events] == ["cycles", "misses", "instructions"]
    assert any("1 samples of an event that the file does not describe" in n for n in profile.meta["notes"])


def test_events_with_different_layouts_are_told_apart_by_identifier() -> None:
    one = Event(h.IDENTIFIER | h.IP | h.TID | h.TIME, [1], 0, 0)
    two = Event(h.IDENTIFIER | h.IP | h.TID | h.TIME | h.CALLCHAIN | h.PERIOD, [2], 1, 0)
    made = PerfData([one, two])
    for _ in range(5):
        made.sample(Sample(id=1))
        made.sample(Sample(id=2, period=7, chain=[KERNEL, 0xFFFFFFFF81000000, 0xFFFFFFFF81000001]), two)
    profile, _ = read(made.file())
    assert counts(profile) == {"cycles": 5, "cpu-clock": 5}
    assert profile.samples.weight[profile.samples.event == 1].sum() == 35


def test_group_read_gives_each_member_what_it_counted_since_the_last_sample() -> None:
    kind = h.IP | h.TID | h.TIME | h.ID | h.READ
    events = [Event(kind, [1], 0, 0, read_format=8 | 4), Event(kind, [2], 0, 3, read_format=8 | 4)]
    made = PerfData(events)
    for time, (cycles, misses) in enumerate(((100, 7), (250, 7), (450, 20))):
        made.sample(Sample(time=time, values=[(1, cycles), (2, misses)]))
    profile, _ = read(made.file())
    weight = {
        e.name: float(profile.samples.weight[profile.samples.event == i].sum()) for i, e in enumerate(profile.events)
    }
    assert weight == {"cycles": 450, "cache-misses": 20}
    assert counts(profile) == {"cycles": 3, "cache-misses": 2}


def test_comm_and_mappings_follow_exec_fork_and_time() -> None:
    made = PerfData([Event(BASIC)])
    made.comm(10, 10, "sh", 0)
    made.mmap(10, 0x1000, 0x1000, 0, "/bin/sh", 0)
    made.fork(20, 10, 20, 10, 100)
    made.sample(Sample(pid=20, tid=20, time=150, mode=2, chain=[USER, 0x1010]))
    made.comm(20, 20, "netperf", 200, execs=True)
    made.mmap(20, 0x1000, 0x1000, 0, "/usr/bin/netperf", 201)
    made.sample(Sample(pid=20, tid=20, time=300, mode=2, chain=[USER, 0x1010]))
    profile, _ = read(made.file())
    rows = {profile.tasks[t].comm: int(s) for t, s in zip(profile.samples.task, profile.samples.stack, strict=True)}
    module = {comm: profile.frames.module[int(profile.stacks[s][0])] for comm, s in rows.items()}
    assert module == {"sh": "sh", "netperf": "netperf"}


def test_network_namespaces_of_tasks_are_kept() -> None:
    made = PerfData([Event(BASIC)])
    made.record(16, made.pack("iiQ", 10, 11, 1) + made.pack("QQ", 4, 4026532999) + made.trailer(0))
    made.sample(Sample(time=5))
    made.sample(Sample(pid=12, tid=12, time=5))
    profile, _ = read(made.file())
    inode = {profile.tasks[t].pid: int(n) for t, n in zip(profile.samples.task, profile.samples.task_ns, strict=True)}
    assert profile.namespaces[0].inode == 4026532999
    assert inode == {11: 1, 12: 0}


def test_losses_and_throttling_are_counted_and_shown() -> None:
    made = PerfData([Event(BASIC)])
    made.sample(Sample())
    made.record(2, made.pack("QQ", 1, 40) + made.trailer(0))
    made.record(13, made.pack("Q", 2) + made.trailer(0))
    made.record(5, made.pack("QQQ", 0, 1, 1) + made.trailer(0))
    profile, _ = read(made.file())
    assert profile.runs[0].losses.lost_records == 42
    assert profile.runs[0].losses.throttled == 1
    assert any(n.startswith("lost: 40 records and 2 samples") for n in profile.meta["notes"])
    assert any(n.startswith("throttled: 1 times") for n in profile.meta["notes"])


def test_aux_data_is_stepped_over_with_its_payload() -> None:
    made = PerfData([Event(BASIC)])
    made.sample(Sample())
    made.records += made.pack("IHHQ", 71, 0, 48, 4096).ljust(48, b"\0") + b"\xff" * 4096
    made.sample(Sample())
    profile, damaged = read(made.file())
    assert (counts(profile), damaged) == ({"cpu-clock": 2}, False)
    assert profile.meta["source"]["aux_bytes_skipped"] == 4096


def test_damage_keeps_what_is_before_and_says_where(tmp_path: Path) -> None:
    made = PerfData([Event(BASIC)])
    for _ in range(7):
        made.sample(Sample())
    whole = made.pipe()
    at = len(whole)
    broken = whole + made.pack("IHH", 9, 0, 0) + whole
    profile, damaged = read(broken)
    assert damaged
    assert counts(profile) == {"cpu-clock": 7}
    assert any(f"damaged at {at:#x}" in n for n in profile.meta["notes"])
    file = tmp_path / "broken"
    file.write_bytes(broken)
    with pytest.raises(ProfileFormatError, match=f"damaged at {at:#x}"):
        import_file(file, strict=True)


def test_a_file_cut_anywhere_keeps_a_prefix_of_its_samples() -> None:
    made = PerfData([Event(BASIC)])
    for number in range(9):
        made.sample(Sample(time=number, chain=[KERNEL, 0xFFFFFFFF81000010 + number]))
    whole = made.pipe()
    seen = set()
    for length in range(160, len(whole), 8):
        profile, damaged = read(whole[:length])
        seen.add(int(profile.samples.count.sum()))
        assert damaged or (length - len(whole)) % 8 == 0
    assert seen == set(range(9))


@pytest.mark.parametrize("name", ["udp_rr.data", "udp_rr.zstd.data"])
def test_recorded_file_gives_samples_tasks_and_softirq_context(name: str) -> None:
    profile = import_file(DATA / name)
    assert detect(DATA / name) == "perf.data"
    assert profile.runs[0].command[:2] == ("/usr/bin/perf", "record")
    assert profile.runs[0].kernel
    assert any(t.comm == "netperf" for t in profile.tasks)
    assert profile.events[0].unit == "ns"
    assert profile.samples.count.sum() > 10
    kinds = {int(k) for k in profile.frames.kind}
    assert {FrameKind.KERNEL, FrameKind.USER} <= kinds


def test_recorded_file_and_its_perf_script_text_agree() -> None:
    data, text = import_file(DATA / "udp_rr.data"), import_file(DATA / "udp_rr.script.txt")
    assert data.samples.count.sum() == text.samples.count.sum()
    assert data.samples.weight.sum() == text.samples.weight.sum()
    lengths = [sorted(len(k) for k in folded(p)) for p in (data, text)]
    assert max(lengths[0]) == max(lengths[1])


KALLSYMS = b"""ffffffff81000000 T _text
ffffffff81000000 T _stext
ffffffff81000100 t __local_alias
ffffffff81000100 T udp_rcv
ffffffff81000200 T __do_softirq
ffffffff81000300 T do_syscall_64
ffffffffa0000000 t veth_xmit\t[veth]
ffffffffa0000100 t veth_poll\t[veth]
"""


def _kernel_file(reference: int = 0xFFFFFFFF81000000) -> PerfData:
    made = PerfData([Event(BASIC)])
    made.mmap(-1, 0xFFFFFFFF81000000, 0x1000000, reference, "[kernel.kallsyms]_text", misc=1)
    made.sample(
        Sample(chain=[KERNEL, 0xFFFFFFFFA0000010, 0xFFFFFFFF81000110, 0xFFFFFFFF81000210, 0xFFFFFFFF81000310])
    )
    return made


def test_given_kallsyms_name_image_and_modules(tmp_path: Path) -> None:
    (tmp_path / "kallsyms").write_bytes(KALLSYMS)
    profile, _ = read(_kernel_file().file(), kallsyms=tmp_path / "kallsyms")
    assert list(folded(profile)) == [("veth_xmit", "udp_rcv", "__do_softirq", "do_syscall_64")]
    assert profile.frames.module == ("", "", "", "veth") or "veth" in profile.frames.module
    assert profile.samples.context.tolist() == [Context.SOFTIRQ]


def test_kallsyms_of_another_boot_are_refused(tmp_path: Path) -> None:
    (tmp_path / "kallsyms").write_bytes(KALLSYMS)
    with pytest.raises(ProfileFormatError, match="another boot"):
        read(_kernel_file(0xFFFFFFFF93000000).file(), kallsyms=tmp_path / "kallsyms")


def test_hidden_kallsyms_are_refused(tmp_path: Path) -> None:
    (tmp_path / "kallsyms").write_bytes(b"0000000000000000 T _text\n0000000000000000 T udp_rcv\n")
    with pytest.raises(ProfileFormatError, match="kptr_restrict"):
        read(_kernel_file().file(), kallsyms=tmp_path / "kallsyms")


@pytest.mark.parametrize("build_ids", [None, {"[kernel.kallsyms]": b"\x01" * 20}])
def test_this_machines_symbols_are_not_used_without_proof(build_ids: dict[str, bytes] | None) -> None:
    profile, _ = read(_kernel_file().file(build_ids))
    assert all(name.startswith("0xffff") for name in profile.frames.name)
    assert profile.samples.context.tolist() == [Context.UNKNOWN]
    assert any("kernel symbols: none" in n for n in profile.meta["notes"])


def test_symbols_of_a_file_that_two_recordings_mapped_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from nsprof.store.importers.perfdata import resolve
    from nsprof.store.importers.symbols import ElfSymbols

    asked: list[tuple[str, bytes]] = []

    def proved(file: str, build_id: bytes) -> ElfSymbols | None:
        asked.append((file, build_id))
        column = np.array([0x1000], "u8")
        name = np.array([1], "u4")
        return ElfSymbols(column, column, name, strings=b"\0main\0", segments=[(0, 0, 1 << 20)], build_id=build_id)

    monkeypatch.setattr(resolve, "_FOUND", {})
    monkeypatch.setattr(resolve, "_proved", proved)
    made = PerfData([Event(BASIC)])
    made.mmap(10, 0x400000, 0x10000, 0, "/bin/x")
    made.sample(Sample(chain=[USER, 0x401010], time=5))
    for build_id in (b"1" * 20, b"1" * 20, b"2" * 20):
        profile, _ = read(made.file({"/bin/x": build_id}))
        assert list(folded(profile)) == [("main",)]
    assert asked == [("/bin/x", b"1" * 20), ("/bin/x", b"2" * 20)]


def test_vectorised_contexts_are_those_of_kernelnames() -> None:
    from nsprof.model.profile import Frames, Stacks

    names = ("default_idle", "udp_rcv", "handle_softirqs", "common_interrupt", "exc_nmi", "main", "tcp_ack")
    kinds = np.array([1, 1, 1, 1, 1, 2, 1], "u1")
    random = np.random.default_rng(7)
    rows = [random.integers(0, 7, random.integers(0, 6)).tolist() for _ in range(300)]
    plain, swapper = context_column(Frames(names, ("",) * 7, kinds), Stacks.from_lists(rows))
    for row, a, b in zip(rows, plain, swapper, strict=True):
        kernel = [names[f] for f in row if kinds[f] == FrameKind.KERNEL]
        user = any(kinds[f] == FrameKind.USER for f in row)
        assert a == context_of(kernel, has_user=user)
        assert b == context_of(kernel, has_user=user, swapper=True)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("weight_kind", [h.WEIGHT, h.WEIGHT_STRUCT])
@pytest.mark.parametrize("branch_type", [0, 1 << 17, 1 << 19])
def test_branches_weights_and_data_addresses_are_summed_up_and_said(
    order: str, weight_kind: int, branch_type: int
) -> None:
    kind = h.IP | h.TID | h.TIME | h.ADDR | h.PERIOD | h.BRANCH_STACK | weight_kind | h.DATA_SRC | h.CGROUP
    made = PerfData([Event(kind, branch_sample_type=branch_type)], order)
    flags = {"mispredicted": 1, "predicted": 2, "in_transaction": 4, "aborted": 8}
    l1_load_hit = 2 | (0x2 | 0x8) << 5 | 1 << 33
    ram_store_miss = 4 | (0x4 | 0x80) << 5
    entries = [(1, 2, flags["mispredicted"] | 300 << 4), (3, 4, flags["predicted"] | 23 << 4)]
    made.sample(Sample(entries=entries, weight=100, data_source=l1_load_hit))
    entries = [(1, 2, flags["in_transaction"] | flags["aborted"])]
    more = 5 << 32 if weight_kind == h.WEIGHT_STRUCT else 0  # var2_w, another latency
    made.sample(Sample(entries=entries, weight=23 | more, data_source=l1_load_hit))
    made.sample(Sample(address=0, weight=0, data_source=ram_store_miss))
    profile, damaged = read(made.file())
    source = profile.meta["source"]
    assert (int(profile.samples.count.sum()), damaged) == (3, False)
    assert profile.samples.weight.sum() == 3000  # periods: what a branch or a load weighs never gets into the costs
    assert source["branches"] == {"samples": 2, "entries": 3, "cycles": 323, **dict.fromkeys(flags, 1)}
    assert source["sample_weights"] == {"samples": 3, "sum": 123}
    assert source["data_addresses"] == 2
    assert source["data_sources"] == {"load L1 hit": 2, "store local RAM miss": 1}
    assert profile.meta["notes"][0] == (
        "kept as sums only (nsprof report --memory, --branches): 3 branch entries of 2 samples, the weights of 3 "
        "samples, the data addresses of 2 samples, the data sources of 3 samples"
    )


def test_weights_of_functions_are_told_with_their_percentiles() -> None:
    """A load's latency is no cost, but which functions wait for memory, and how long, can be asked for."""
    kind = h.IDENTIFIER | h.IP | h.TID | h.TIME | h.PERIOD | h.CALLCHAIN
    events = [Event(kind | h.WEIGHT, ids=[1], config=3), Event(kind, ids=[2], config=4)]
    made = PerfData(events)
    near, far, other = 0xFFFFFFFF81000010, 0xFFFFFFFF81000020, 0xFFFFFFFF81000030
    for weight in range(1, 201):
        made.sample(Sample(id=1, time=weight, chain=[KERNEL, near, other], weight=201 - weight))
    made.sample(Sample(id=1, time=300, chain=[KERNEL, far, near], weight=50_000))
    made.sample(Sample(id=2, time=301, chain=[KERNEL, other]), events[1])
    profile, damaged = read(made.file())
    assert (int(profile.samples.count.sum()), damaged) == (202, False)
    assert profile.samples.weight.sum() == 202_000
    assert profile.meta["source"]["weights_by_function"] == {
        profile.events[0].name: [
            {"function": f"{far:#018x}", "samples": 1, "mean": 50_000.0, "median": 50_000, "p99": 50_000},
            {"function": f"{near:#018x}", "samples": 200, "mean": 100.5, "median": 100, "p99": 198},
        ]
    }


def _directory(tmp_path: Path, *, cut: int = 0) -> Path:
    """As `perf record --threads` writes it: the header and what is no sample in `data`, samples in others."""
    made = PerfData([Event(h.IP | h.TID | h.TIME | h.CALLCHAIN)])
    made.comm(10, 11, "late", time=2_000_000_000)
    made.comm(10, 11, "early", time=0)
    place = tmp_path / "t.dir"
    place.mkdir()
    (place / "data").write_bytes(made.file())
    for number, times in enumerate(([1, 5_000_000_000], [2, 3_000_000_000, 4], [])):
        made.records = b""
        for time in times:
            made.sample(Sample(time=time, cpu=number, chain=[KERNEL, 0xFFFFFFFF81000000 + number]))
        (place / f"data.{number}").write_bytes(made.records[: len(made.records) - (cut if number == 1 else 0)])
    (place / "data.old").write_bytes(b"no records")
    return place


def test_a_directory_of_threads_is_one_recording(tmp_path: Path) -> None:
    place = _directory(tmp_path)
    profile = import_file(place)
    assert profile.meta["source"]["files"] == 3
    assert not profile.meta["source"]["damaged"]
    assert int(profile.samples.count.sum()) == 5
    comms: Counter[str] = Counter()
    for task, count in zip(profile.samples.task.tolist(), profile.samples.count.tolist(), strict=True):
        comms[profile.tasks[task].comm] += count
    assert comms == {"early": 3, "late": 2}
    assert int(store.open_any(place).samples.count.sum()) == 5


def test_damage_in_a_file_of_a_directory_names_the_file(tmp_path: Path) -> None:
    profile = import_file(_directory(tmp_path, cut=8))
    assert profile.meta["source"]["damaged"]
    assert int(profile.samples.count.sum()) == 4
    assert any(n.startswith("damaged at data.1, 0x") for n in profile.meta["notes"])


def test_a_directory_without_perfs_header_is_no_recording(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"a;b 3\n")
    for call in (import_file, store.open_any):
        with pytest.raises(ProfileFormatError, match="is a directory"):
            call(tmp_path)
