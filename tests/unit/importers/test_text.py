"""perf script text, folded stacks, bpftrace maps, bcc's profile: known answers in all their forms."""
# ruff: noqa: E501 - lines of other tools' files stand as they are

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from nsprof.errors import ProfileFormatError, UsageError
from nsprof.model.profile import Context, FrameKind, Profile
from nsprof.store.importers import detect, import_file
from nsprof.store.importers.bpftrace import import_bcc_profile, import_bpftrace
from nsprof.store.importers.folded import import_folded
from nsprof.store.importers.perfscript import import_perf_script


def stacks(profile: Profile) -> dict[str, float]:
    """Folded stacks, root first, with weights."""
    made: Counter[str] = Counter()
    for stack, weight in zip(profile.samples.stack.tolist(), profile.samples.weight.tolist(), strict=True):
        made[";".join(profile.frames.name[f] for f in profile.stacks[stack][::-1])] += weight
    return dict(made)


def script(text: str | bytes) -> Profile:
    raw = text.encode() if isinstance(text, str) else text
    return import_perf_script(memoryview(raw), "t.txt")[0]


SAMPLE = "{head}\n\tffffffff81000010 udp_rcv+0x10 ([kernel.kallsyms])\n\tffffffff81000020 do_syscall_64+0x20 ([kernel.kallsyms])\n\t    7f0000 main (/usr/bin/app)\n"
HEADS = {
    "netperf 12 [001] 5.000001: 250 cycles: ": (12, "netperf", 1, 250, "cycles"),
    "netperf 12/13 [001] 5.000001: 250 cycles:u: ": (13, "netperf", 1, 250, "cycles:u"),
    "netperf 12 5.000001: 250 cycles:": (12, "netperf", 0xFFFF, 250, "cycles"),
    "Web Content 12/13 5.000001: cycles:ppp:": (13, "Web Content", 0xFFFF, 1, "cycles:ppp"),
    "java 12 cycles:": (12, "java", 0xFFFF, 1, "cycles"),
    "   swapper     0 [003]     0.000001: 1 cpu/mem-loads,ldlat=30/P: ": (
        0,
        "swapper",
        3,
        1,
        "cpu/mem-loads,ldlat=30/P",
    ),
    "a:b 12 [000] 5.000001: net:net_dev_xmit: dev=eth0 skbaddr=0xff len=66 rc=0": (
        12,
        "a:b",
        0,
        1,
        "net:net_dev_xmit",
    ),
    "x 12 [000] 5.000000001: 7 cpu-clock:pppH:": (12, "x", 0, 7, "cpu-clock:pppH"),
}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("end", ["\n\n", "\n", ""])
@pytest.mark.parametrize("crlf", [False, True])
def test_every_header_form_is_a_sample(head: str, end: str, crlf: bool) -> None:
    text = SAMPLE.format(head=head).rstrip("\n") + "\n\n" + SAMPLE.format(head=head).rstrip("\n") + end
    profile = script(text.replace("\n", "\r\n") if crlf else text)
    tid, comm, cpu, weight, event = HEADS[head]
    assert int(profile.samples.count.sum()) == 2
    assert (profile.tasks[0].pid, profile.tasks[0].comm) == (tid, comm)
    assert set(profile.samples.cpu.tolist()) == {cpu}
    assert profile.samples.weight.sum() == 2 * weight
    assert profile.events[0].name == event
    assert list(stacks(profile)) == ["main;do_syscall_64;udp_rcv"]
    kinds = [FrameKind(int(k)) for k in profile.frames.kind]
    assert kinds.count(FrameKind.KERNEL) == 2
    assert profile.meta["notes"] == []


@pytest.mark.parametrize("lines", [1, 40])
@pytest.mark.parametrize(
    ("who", "pid"),
    [
        ("23908", 23908),
        ("  812", 812),
        (" 14062", 14062),
        ("                 14062", 14062),
        ("23908/23909", 23909),
        ("23908 [003]", 23908),
        ("1234 23908", 23908),
    ],
)
def test_a_header_without_comm_keeps_its_period(who: str, pid: int, lines: int) -> None:
    head = f"{who} 30862.{{:06d}}:    5025125 cpu-clock:pppH: "
    text = "".join(SAMPLE.format(head=head.format(n)) + "\n" for n in range(34 * lines))
    profile = script(text)
    assert [(e.name, e.unit) for e in profile.events] == [("cpu-clock:pppH", "ns")]
    assert int(profile.samples.count.sum()) == 34 * lines
    assert profile.samples.weight.sum() == 34 * lines * 5025125
    assert {t.comm for t in profile.tasks} == {"1234" if who.startswith("1234 ") else ""}
    assert {t.pid for t in profile.tasks} == {pid}
    assert set(profile.samples.cpu.tolist()) == {3 if "[003]" in who else 0xFFFF}
    assert profile.meta["notes"] == []


def test_tasks_with_and_without_a_comm_share_one_event() -> None:
    text = "".join(
        SAMPLE.format(head=f"{' 14062' if n % 3 else 'sh 14061'} 5.{n:06d}:  5025125 cpu-clock:pppH: ") + "\n"
        for n in range(34)
    )
    profile = script(text)
    assert [(e.name, e.unit) for e in profile.events] == [("cpu-clock:pppH", "ns")]
    assert profile.samples.weight.sum() == 34 * 5025125
    assert {(t.pid, t.comm) for t in profile.tasks} == {(14061, "sh"), (14062, "")}


@pytest.mark.parametrize("lines", [1, 40])
@pytest.mark.parametrize(
    ("who", "comm"), [("sh ", "sh"), ("", ""), ("Web Content ", "Web Content"), ("a [003] ", "a")]
)
def test_a_header_without_pid_keeps_its_period(who: str, comm: str, lines: int) -> None:
    head = f"{who}32111.{{:06d}}:    5025125 cpu-clock:pppH: "
    text = "".join(SAMPLE.format(head=head.format(n)) + "\n" for n in range(23 * lines))
    assert detect(text.encode()) == "perf-script"
    profile = script(text)
    assert [(e.name, e.unit) for e in profile.events] == [("cpu-clock:pppH", "ns")]
    assert int(profile.samples.count.sum()) == 23 * lines
    assert profile.samples.weight.sum() == 23 * lines * 5025125
    assert [(t.pid, t.comm) for t in profile.tasks] == [(-1, comm)]
    assert set(profile.samples.cpu.tolist()) == {3 if "[003]" in who else 0xFFFF}
    assert profile.meta["notes"] == []


def test_lines_of_ftrace_are_no_samples() -> None:
    text = "<idle>-0 [001] d..1 123.456789: sched_switch: prev_comm=swapper\n" * 40
    assert detect(text.encode()) == ""
    assert len(script(text).samples) == 0


@pytest.mark.parametrize("comm", ["sh ", ""])
def test_stack_lines_without_dso_are_frames_however_short_their_address(comm: str) -> None:
    stack = (
        "\tffffffff81000010 tcp_ack+0x10\n\tffffffff81000020 do_syscall_64\n"
        "\t            1365f operator()(int)\n\t               b [unknown]\n\t               0 [unknown]\n\t              17\n"
    )
    text = "".join(f"{comm}13979 32111.{n:06d}: cpu-clock:pppH: \n{stack}\n" for n in range(23))
    assert detect(text.encode()) == "perf-script"
    profile, damaged = import_perf_script(memoryview(text.encode()), "t")
    assert stacks(profile) == {"[unknown];[unknown];[unknown];operator()(int);do_syscall_64;tcp_ack": 23}
    kinds = [FrameKind(int(profile.frames.kind[f])) for f in profile.stacks[int(profile.samples.stack[0])]]
    assert kinds == [FrameKind.KERNEL] * 2 + [FrameKind.USER] * 4
    assert not damaged
    assert profile.meta["notes"] == []


@pytest.mark.parametrize(
    ("line", "name", "module", "kind"),
    [
        ("\tffffffffc0000010 veth_xmit+0x1 ([veth])", "veth_xmit", "veth", FrameKind.KERNEL),
        ("\tffffffffc0000010 veth_xmit (/lib/modules/6.1/kernel/net/veth.ko.xz)", "veth_xmit", "veth", FrameKind.KERNEL),
        ("\tffffffff81000010 tcp_ack (/usr/lib/debug/boot/vmlinux-6.1)", "tcp_ack", "", FrameKind.KERNEL),
        ("\tffffffff81000010 [unknown] ([kernel.kallsyms])", "0xffffffff81000010", "", FrameKind.KERNEL),
        ("\tffffffff81000010 [unknown] ([unknown])", "0xffffffff81000010", "", FrameKind.KERNEL),
        ("\t    7ff000 operator()(int (*)(char)) const (/opt/My App (x86)/lib.so)", "operator()(int (*)(char)) const", "lib.so", FrameKind.USER),
        ("\t    7ff000 [unknown] (/memfd:doublemapper (deleted))", "[unknown]", "memfd:doublemapper (deleted)", FrameKind.USER),
        ("\t    7ff000 foo ([JIT] tid 99)", "foo", "[JIT] tid 99", FrameKind.USER),
        ("\t    7ff000 bar+0x10", "bar", "", FrameKind.USER),
        ("\tffffffffc0000010 bpf_prog_6deef7357e7b4530_sd_fw+0x4 (bpf_prog_6deef7357e7b4530)", "bpf_prog_6deef7357e7b4530_sd_fw", "bpf", FrameKind.BPF),
    ],
)  # fmt: skip
def test_every_stack_line_form_is_a_frame(line: str, name: str, module: str, kind: FrameKind) -> None:
    profile = script(f"app 1 [000] 1.000000: 1 cycles:\n{line}\n\n")
    frames = profile.frames
    leaf = profile.stacks[int(profile.samples.stack[0])][0]
    assert (frames.name[leaf], frames.module[leaf], frames.kind[leaf]) == (name, module, kind)


def test_samples_without_callchain_take_the_frame_of_their_line() -> None:
    line = "app 1 [000] {}.000000: 10 cycles:  ffffffff81000010 tcp_ack+0x1 ([kernel.kallsyms])\n"
    profile = script("".join(line.format(n) for n in range(23)))
    assert stacks(profile) == {"tcp_ack": 230}
    assert profile.samples.slice.max() == 22


@pytest.mark.parametrize("lines", [1, 23, 500])
@pytest.mark.parametrize("who", ["app 1", "1", "                 1"])
def test_samples_without_callchain_and_dso_take_the_frame_of_their_line(who: str, lines: int) -> None:
    line = "{} {}.000000: 10 cycles: {:>17} {}\n"
    text = "".join(
        line.format(who, n, "ffffffff81000010", "tcp_ack") + line.format(who, n, "55de8c43a17c", "op(int)")
        for n in range(lines)
    )
    profile = script(text)
    assert stacks(profile) == {"tcp_ack": 10 * lines, "op(int)": 10 * lines}
    assert int(profile.samples.count.sum()) == 2 * lines
    kinds = {profile.frames.name[i]: FrameKind(int(profile.frames.kind[i])) for i in range(len(profile.frames))}
    assert (kinds["tcp_ack"], kinds["op(int)"]) == (FrameKind.KERNEL, FrameKind.USER)
    assert profile.meta["notes"] == []


def test_interleaved_words_of_perf_are_counted_not_fatal() -> None:
    text = (
        SAMPLE.format(head="a 1 [000] 1.000000: 5 cycles:")
        + "\nWarning: something\n"
        + SAMPLE.format(head="a 1 [000] 1.500000: 5 cycles:")
    )
    profile, damaged = import_perf_script(memoryview(text.encode()), "t")
    assert int(profile.samples.count.sum()) == 2
    assert damaged
    assert "1 lines that are neither a sample nor a frame" in profile.meta["notes"][0]


def test_many_windows_give_the_same_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(
        SAMPLE.format(head=f"app{n % 3} {n % 3 + 1} [00{n % 2}] {n // 100}.{n % 100:06d}: {n} cycles:") + "\n"
        for n in range(500)
    )
    whole = script(text)
    monkeypatch.setattr("nsprof.store.importers.text._STRETCH", 777)
    pieces = script(text)
    assert stacks(whole) == stacks(pieces)
    assert whole.samples.count.sum() == pieces.samples.count.sum() == 500
    assert whole.samples.weight.sum() == sum(range(500))


def test_a_mapped_file_that_is_let_go_of_on_the_way_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_text = "".join(SAMPLE.format(head=f"app {n % 3 + 1} 5.{n:06d}: 3 cycles:") + "\n" for n in range(500))
    folded_text = "".join(f"a;b{n % 7};c{n} {n}\n" for n in range(5000))
    monkeypatch.setattr("nsprof.store.importers.text._STRETCH", 20_000)
    for name, text, samples in (("s", script_text, 500), ("f", folded_text, 4999 * 2500)):
        file = tmp_path / name
        file.write_text(text)
        assert int(import_file(file).samples.count.sum()) == samples


def test_columns_and_lines_read_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of the usual form are read as columns; a remark inside sends each through the line-by-line reader."""
    lines = (
        "\tffffffff81000010 udp_rcv+0x{n:x} ([kernel.kallsyms])",
        "\tffffffffc0000010 veth_xmit+0x1 ([veth])",
        "\t    7f00aa0012{n:02x} [unknown] (/usr/lib/libc.so.6)",
        "\tffffffff810000{n:02x} [unknown] ([kernel.kallsyms])",
        "\t    7f00aa0012{n:02x} [unknown] ([unknown])",
        "\t          4012{n:02x} operator+(A, B)+0x1{n:x} (/opt/My App (x86)/lib.so)",
        "\t          4012{n:02x} main (/usr/bin/app)",
        "\t          4012{n:02x} foo+0x2 ([unknown])",
        "\tffffffff810000{n:02x} foo+0x2 ([unknown])",
        "\t          4012{n:02x} a+0x1+0x2 (/usr/bin/app)",
        "\t          4012{n:02x} [0x1{n:x}] (perf-1.map)",
    )
    heads = (
        "netperf 12/13 [001]  7.{n:06d}:  {n}0001 cycles: ",
        "Web Content 12 16000000{n:02d}.{n:09d}: net:net_dev_xmit: dev=eth{n} len={n}",
        "a: b 1 [000] {n}.000001: 250 cpu-clock:pppH: ",
        "x 1 [000] 5.001: 1 cycles:",
    )
    samples = [
        [heads[n % 4].format(n=n)]
        + [lines[(n + k * (1 + n % 3)) % len(lines)].format(n=n % 7) for k in range(1 + n % 5)]
        for n in range(97)
    ]
    columns = script("\n\n".join("\n".join(s) for s in samples))
    one_by_one = script("\n\n".join("\n".join([*s[:-1], "# x", s[-1]]) for s in samples))
    assert columns.meta["notes"] == one_by_one.meta["notes"] == []
    assert stacks(columns) == stacks(one_by_one)
    for each in (columns, one_by_one):
        assert int(each.samples.count.sum()) == 97
        assert each.runs[0].duration_s == columns.runs[0].duration_s
    assert keyed(columns) == keyed(one_by_one)


@pytest.mark.parametrize("first", ["5.000001", "1600000000.123456789", "999999999999.123456"])
def test_times_of_any_length_are_read_or_clipped_but_never_wrap(first: str) -> None:
    heads = [f"app 1 [000] {time}: 1 cycles: " for time in (first, "4.000001")]
    profile = script("".join(SAMPLE.format(head=head) + "\n" for head in heads))
    assert int(profile.samples.count.sum()) == 2
    expected = min(float(first), (2**64 - 2) / 1e9) - 4.000001
    assert profile.runs[0].duration_s == pytest.approx(expected, rel=1e-12)


def test_lines_that_are_samples_by_themselves_read_the_same_as_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = (
        "{n}0 cycles:  ffffffff810000{n:02x} udp_rcv+0x{n:x} ([kernel.kallsyms])",
        "1 cycles:            4012{n:02x} main (/usr/bin/app)",
        "1 cycles:            4012{n:02x} [unknown] ([unknown])",
        "1 cycles:  ffffffff810000{n:02x} [unknown] ([kernel.kallsyms])",
        "net:net_dev_xmit: dev=eth{n} skbaddr=0xff rc=0",
        "cpu-clock:pppH:",
        "7 cycles: 4012 tight (/usr/bin/app)",
        "1 cycles:  ffffffff81000010 no_dso",
    )
    text = "".join(f"app {n % 3 + 1} [000] {n}.{n:06d}: " + ends[n % 8].format(n=n) + "\n" for n in range(10, 90))
    text = text.replace("app 2 [000] 40", "# remark\nsome words of perf\napp 2 [000] 40", 1)
    columns = script(text)
    monkeypatch.setattr("nsprof.store.importers.scriptcolumns._MANY", 10**9)
    lines = script(text)
    assert int(columns.samples.count.sum()) == 80
    assert keyed(columns) == keyed(lines)
    assert columns.meta["notes"] == lines.meta["notes"]
    assert columns.runs[0].losses == lines.runs[0].losses


def keyed(profile: Profile) -> Counter[tuple[object, ...]]:
    made: Counter[tuple[object, ...]] = Counter()
    s = profile.samples
    names = list(zip(profile.frames.name, profile.frames.module, profile.frames.kind.tolist(), strict=True))
    for row in range(len(s)):
        stack = tuple(names[f] for f in profile.stacks[int(s.stack[row])])
        event, task = profile.events[int(s.event[row])], profile.tasks[int(s.task[row])]
        made[event, task, int(s.cpu[row]), int(s.slice[row]), stack, int(s.context[row]), s.weight[row]] += int(
            s.count[row]
        )
    return made


frame_names = st.text(
    st.characters(codec="utf-8", exclude_characters=";\n\r", exclude_categories=["Cc", "Cs", "Z"]),
    min_size=1,
    max_size=12,
).filter(
    lambda s: (
        not s.endswith(("_[k]", "_[j]", "_[i]", "_[w]")) and not s.startswith(("#", "//")) and not s.endswith(")")
    )
)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.lists(frame_names, min_size=1, max_size=8), st.integers(1, 10**6)), min_size=1, max_size=30)
)
def test_folded_lines_come_back_added_up(rows: list[tuple[list[str], int]]) -> None:
    text = "".join(f"{';'.join(frames)} {count}\n" for frames, count in rows)
    expected: Counter[str] = Counter()
    for frames, count in rows:
        expected[";".join(frames)] += count
    assert stacks(import_folded(memoryview(text.encode()), "t")[0]) == dict(expected)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_folded_encodings(encoding: str, newline: str, tmp_path: Path) -> None:
    file = tmp_path / "any.name"
    file.write_bytes(newline.join(["a;b;ç 1", "a;b;ç 2.5", "", "# remark", "a;b 4"]).encode(encoding))
    assert detect(file) == "folded"
    assert stacks(import_file(file)) == {"a;b;ç": 3.5, "a;b": 4}


def test_folded_kernel_frames_by_mark_and_by_entry_function() -> None:
    text = "dd;read;system_call_[k];vfs_read_[k] 3\nwrk;entry_SYSCALL_64_after_hwframe;do_syscall_64;udp_sendmsg 4\nwrk;main 1\n"
    profile = import_folded(memoryview(text.encode()), "t")[0]
    kind = dict(zip(profile.frames.name, profile.frames.kind.tolist(), strict=True))
    assert kind["vfs_read"] == kind["udp_sendmsg"] == kind["do_syscall_64"] == FrameKind.KERNEL
    assert kind["wrk"] == kind["main"] == FrameKind.UNKNOWN
    contexts: Counter[Context] = Counter()
    for context, count in zip(profile.samples.context.tolist(), profile.samples.count.tolist(), strict=True):
        contexts[Context(context)] += count
    assert contexts == {Context.TASK: 7, Context.UNKNOWN: 1}


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("number", [1, 3, 5000])
def test_folded_lines_with_two_counts_are_refused(number: int, newline: str, tmp_path: Path) -> None:
    file = tmp_path / "both.folded"
    lines = [f"main;foo{n} {n} {n + 10}" for n in range(number)]
    file.write_bytes(newline.join(["# before after", *lines, ""]).encode())
    with pytest.raises(ProfileFormatError, match="two counts a line") as caught:
        import_file(file)
    assert "one side" in caught.value.hint
    assert "\n" not in caught.value.message


def test_a_frame_that_ends_in_a_number_is_no_second_count() -> None:
    text = "main;foo 10 20\n" + "".join(f"main;bar{n} {n}\n" for n in range(1, 5))
    assert stacks(import_folded(memoryview(text.encode()), "t")[0]) == {
        "main;foo 10": 20,
        **{f"main;bar{n}": n for n in range(1, 5)},
    }


@pytest.mark.parametrize("count", [2**53, 2**53 + 2, 10**30])
def test_counts_that_samples_cannot_hold_are_told(count: int) -> None:
    profile, damaged = import_folded(memoryview(f"a;b {count}\na;c 3\n".encode()), "t")
    assert not damaged
    assert stacks(profile) == {"a;b": float(count), "a;c": 3}
    assert sorted(profile.samples.count.tolist()) == [3, 2**53]
    told = ["counts above 9,007,199,254,740,992: weights are kept as they are, sample counts are held at that"]
    assert profile.meta["notes"] == (told if count > 2**53 else [])


def test_a_count_that_no_number_holds_is_left_out() -> None:
    profile, damaged = import_folded(memoryview(b"a;b 1e999\na;c 3\n"), "t")
    assert damaged
    assert stacks(profile) == {"a;c": 3}
    assert profile.meta["notes"] == ["1 lines that are no `frames count`, left out (the first is line 1)"]


def test_folded_deep_stacks_do_not_recurse() -> None:
    deep = ";".join(f"f{n % 7}" for n in range(5000))
    profile = import_folded(memoryview(f"{deep} 2\n{deep};leaf 3\n".encode()), "t")[0]
    assert sorted(len(profile.stacks[i]) for i in range(2)) == [5000, 5001]


BPFTRACE = """Attaching 1 probe...

@[
    udp_rcv+1
    ip_local_deliver+110
    __do_softirq+5
, netperf, 42]: 7
@[kfree_skb+1, x]: 1
@start[12]: 99
@[
    a+1
]: 3
"""


def test_bpftrace_maps_of_stacks_with_comm_and_pid() -> None:
    assert detect(BPFTRACE.encode()) == "bpftrace"
    profile = import_bpftrace(memoryview(BPFTRACE.encode()), "t")[0]
    got = stacks(profile)
    assert got["__do_softirq;ip_local_deliver;udp_rcv"] == 7
    assert got["a"] == 3
    assert any((t.pid, t.comm) == (42, "netperf") for t in profile.tasks)
    softirq = profile.samples.take(profile.samples.context == Context.SOFTIRQ)
    assert softirq.count.sum() == 7


BCC = """Sampling at 49 Hertz of all threads by user + kernel stack... Hit Ctrl-C to end.

    copy_user_enhanced_fast_string
    do_syscall_64
    entry_SYSCALL_64_after_hwframe
    read
    -                dd (25036)
        4

    idle
    -                swapper/1 (0)
        19
"""


def test_bcc_profile_blocks() -> None:
    assert detect(BCC.encode()) == "bcc-profile"
    profile = import_bcc_profile(memoryview(BCC.encode()), "t")[0]
    assert stacks(profile) == {
        "read;entry_SYSCALL_64_after_hwframe;do_syscall_64;copy_user_enhanced_fast_string": 4,
        "idle": 19,
    }
    assert {(t.pid, t.comm) for t in profile.tasks} == {(25036, "dd"), (0, "swapper/1")}


@pytest.mark.parametrize(
    "pack", [gzip.compress, zstandard.compress, lambda x: gzip.compress(x[:9]) + gzip.compress(x[9:])]
)
def test_packed_files_are_unpacked_whatever_their_name(pack: object, tmp_path: Path) -> None:
    file = tmp_path / "x.data"
    file.write_bytes(pack(b"a;b 3\na;c 4\n"))  # type: ignore[operator]
    assert stacks(import_file(file)) == {"a;b": 3, "a;c": 4}


def test_packets_become_a_denominator(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("a;b 3\n")
    assert import_file(file, packets=23).runs[0].denominators == {"skb": 23.0}
    with pytest.raises(UsageError):
        import_file(file, packets=0)


def test_what_is_no_profile_is_said_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "f"
    for content in (b"", b"hello world\n", b"\x7fELF" + bytes(100), b"{}", bytes(5000)):
        file.write_bytes(content)
        with pytest.raises(ProfileFormatError) as caught:
            import_file(file)
        assert str(file) in caught.value.message
        assert "\n" not in caught.value.message
    with pytest.raises(ProfileFormatError, match="No such file"):
        import_file(tmp_path / "absent")
    with pytest.raises(ProfileFormatError, match="directory"):
        import_file(tmp_path)
