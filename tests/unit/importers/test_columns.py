"""The parts that make imports fast give what plain loops give: numbers of equal values, text cut at any place, stacks
below roots, frames by the ends of lines."""

from __future__ import annotations

import random
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from nsprof.model.profile import Context, FrameKind, Profile
from nsprof.store.importers import ahead as ahead_module
from nsprof.store.importers import columns as c
from nsprof.store.importers.ahead import ahead
from nsprof.store.importers.assemble import grouped
from nsprof.store.importers.codes import Index, codes
from nsprof.store.importers.folded import import_folded
from nsprof.store.importers.perfdata import header as h
from nsprof.store.importers.perfdata import import_perf_data
from nsprof.store.importers.perfscript import import_perf_script
from tests.unit.importers.perfdata_file import USER, Event, PerfData, Sample


def stacks(profile: Profile) -> dict[str, float]:
    """Folded stacks, root first, with weights."""
    made: Counter[str] = Counter()
    for stack, weight in zip(profile.samples.stack.tolist(), profile.samples.weight.tolist(), strict=True):
        made[";".join(profile.frames.name[f] for f in profile.stacks[stack][::-1])] += weight
    return dict(made)


def kinds(profile: Profile) -> dict[str, set[tuple[FrameKind, str]]]:
    """Name -> (kind, module) of the frames that stacks use."""
    made: dict[str, set[tuple[FrameKind, str]]] = {}
    for index in set(profile.stacks.frames.tolist()):
        kind = FrameKind(int(profile.frames.kind[index]))
        made.setdefault(profile.frames.name[index], set()).add((kind, profile.frames.module[index]))
    return made


def test_an_index_numbers_values_as_a_dictionary_does_while_it_grows() -> None:
    draw = random.Random(5)
    pool = [0, 1, 2**64 - 1, *(draw.getrandbits(64) for _ in range(3000)), *(n << 52 for n in range(2, 300))]
    index, known = Index(bits=2), {1: 0}
    numbers, fresh = index.add(np.array([1], "u8"))
    assert (numbers.tolist(), fresh.tolist()) == ([0], [0])
    for _ in range(60):
        values = list(dict.fromkeys(draw.choices([v for v in pool if v], k=200)))
        before = len(known)
        expected = [known.setdefault(value, len(known)) for value in values]
        numbers, fresh = index.add(np.array(values, "u8"))
        assert numbers.tolist() == expected
        assert numbers[fresh].tolist() == list(range(before, len(known)))
    assert len(index) == len(known) > 1000
    assert index.add(np.array([0], "u8"))[0].tolist() == [0]  # 0 counts as 1


@pytest.mark.parametrize("length, values", [(0, 1), (1, 1), (7, 3), (20_000, 50), (20_000, 10**12)])
def test_codes_and_groups_are_those_of_a_loop(length: int, values: int) -> None:
    draw = random.Random(length + values)
    column = [draw.randrange(values) for _ in range(length)]
    number: dict[int, int] = {}
    expected = [number.setdefault(value, len(number)) for value in column]
    which, first = codes(np.array(column, "i8"))
    assert which.tolist() == expected
    assert [column[row] for row in first.tolist()] == list(number)
    seen, group = grouped(np.array(column, "u8"))
    assert [column[row] for row in seen.tolist()] == sorted(number)
    assert [column.index(column[row]) for row in seen.tolist()[:50]] == seen.tolist()[:50]
    assert np.array(column, "u8")[seen][group].tolist() == column


def test_pieces_up_to_separators_are_told_apart() -> None:
    text = np.frombuffer(b"a;b;a;\nbb;a;", "u1")
    ends = np.flatnonzero((text == 59) | (text == 10))
    wanted = text[ends] != 10
    which, pieces = c.between(text, ends, wanted)
    assert [pieces[number] for number in which[wanted].tolist()] == [b"a;", b"b;", b"a;", b"bb;", b"a;"]
    assert len(pieces) == 3
    known = c.Pieces.of([b"x;", b"b;", b"a", b"bb;"])
    which, more = c.between(text, ends, wanted, known)
    assert (which[wanted].tolist(), more.tolist()) == ([4, 1, 4, 3, 4], [b"a;"])
    which, more = c.between(text, ends, wanted, c.Pieces.of([b"a;", b"b;", b"bb;"]))
    assert (which[wanted].tolist(), more.tolist()) == ([0, 1, 0, 2, 0], [])


@pytest.mark.parametrize("period", [1, 9, 333, 5000])
def test_repeats_are_seen_whatever_distance_they_have(period: int) -> None:
    texts = [b"%07d" % (n % period) for n in range(50_000)]
    buf = np.frombuffer(b"".join(texts), "u1")
    start = np.arange(len(texts), dtype="i8") * 7
    assert c.repeats(buf, start, start + 7, 2)
    once = np.frombuffer(b"".join(b"%07d" % n for n in range(50_000)), "u1")
    assert not c.repeats(once, start, start + 7, 2)
    assert not c.repeats(once, start[:0], start[:0])


def test_work_done_ahead_comes_in_order_in_other_threads_and_hands_errors_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ahead_module, "WORKERS", 2)
    threads = set()

    def square(number: int) -> int:
        threads.add(threading.current_thread())
        if number == 30:
            raise ValueError("30")
        return number * number

    assert list(ahead(square, range(20))) == [n * n for n in range(20)]
    assert threading.current_thread() not in threads
    threads.clear()
    assert list(ahead(square, [3])) == [9] and list(ahead(square, [])) == []
    assert threads == {threading.current_thread()}
    with pytest.raises(ValueError, match="30"):
        list(ahead(square, range(40)))
    assert next(ahead(square, range(9))) == 0  # left before its end


@pytest.mark.parametrize("stretch", [150, 401, 3000, 1 << 20])
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_samples_at_the_border_of_stretches_count_once(
    stretch: int, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stacks that are met often and stacks that are met once, cut at every place."""
    draw = random.Random(stretch)
    expected: Counter[str] = Counter()
    text = ""
    for n in range(600):
        functions = [f"f{draw.randrange(5)}" for _ in range(draw.randint(1, 6))]
        if n % 3 == 0:
            functions[0] = f"once{n}"
        text += f"app{n % 3} {n % 3 + 1} [00{n % 2}] {n // 100}.{n % 100:06d}: {n} cycles: \n"
        text += "".join(f"\tffffffff{0x81000000 + draw.randrange(999):x} {f}+0x{n:x} ([k])\n" for f in functions)
        text += "\n"
        expected[";".join(reversed(functions))] += n
    monkeypatch.setattr("nsprof.store.importers.text._STRETCH", stretch)
    profile, damaged = import_perf_script(memoryview(text.replace("\n", ends).encode()), "t")
    assert not damaged
    assert stacks(profile) == expected
    assert int(profile.samples.count.sum()) == 600
    assert profile.runs[0].duration_s == pytest.approx(5.000099)


def test_lines_that_end_alike_are_one_frame_unless_their_address_decides() -> None:
    lines = {
        "\tffffffff81000010 udp_rcv+0x10 ([kernel.kallsyms])": ("udp_rcv", FrameKind.KERNEL, ""),
        "\tffffffff81000099 udp_rcv+0x99 ([kernel.kallsyms])": ("udp_rcv", FrameKind.KERNEL, ""),
        "\t    7f0000001010 main+0x10 (/usr/bin/my app (deleted))": ("main", FrameKind.USER, "my app (deleted)"),
        "\t    7f0000002020 [unknown] (/usr/lib/libc.so.6)": ("[unknown]", FrameKind.USER, "libc.so.6"),
        "\t    7f0000003030 [unknown] ([unknown])": ("[unknown]", FrameKind.USER, ""),
        "\tffffffffc0003030 [unknown] ([unknown])": ("0xffffffffc0003030", FrameKind.KERNEL, ""),
        "\tffffffffc0004040 [unknown] ([unknown])": ("0xffffffffc0004040", FrameKind.KERNEL, ""),
        "\tffffffffc0005050 [unknown] ([kernel.kallsyms])": ("0xffffffffc0005050", FrameKind.KERNEL, ""),
        "\tffffffffc0006060 bpf_prog_6deef7357e7b4530+0x1c (bpf_prog_6deef7357e7b4530)": (
            "bpf_prog_6deef7357e7b4530",
            FrameKind.BPF,
            "bpf",
        ),
        "\t    7f0000007070 operator+0x1 ([vdso])": ("operator", FrameKind.USER, "[vdso]"),
        "\t          401000 std::a<b (c)>::d+0x1f (/usr/bin/app)": ("std::a<b (c)>::d", FrameKind.USER, "app"),
        "\t          402000 plain (/usr/bin/app)": ("plain", FrameKind.USER, "app"),
        "\t          403000 odd+0xzz (/usr/bin/app)": ("odd+0xzz", FrameKind.USER, "app"),
    }
    text = "".join(f"a 1 [000] 1.{n:06d}: 1 cycles: \n{line}\n\n" for n, line in enumerate(lines))
    profile, damaged = import_perf_script(memoryview(text.encode()), "t")
    assert not damaged
    got = Counter(
        (profile.frames.name[f], FrameKind(int(profile.frames.kind[f])), profile.frames.module[f])
        for f, n in zip(
            (int(profile.stacks[s][0]) for s in profile.samples.stack.tolist()),
            profile.samples.count.tolist(),
            strict=True,
        )
        for _ in range(n)
    )
    assert got == Counter(lines.values())


@pytest.mark.parametrize("stretch", [97, 1000, 1 << 20])
def test_folded_stacks_below_many_roots_are_those_of_a_loop(
    stretch: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    draw = random.Random(stretch)
    below = [";".join(draw.choices("abcdef", k=draw.randint(1, 9))) for _ in range(40)]
    expected: Counter[str] = Counter()
    text = ""
    for n in range(4000):
        stack = f"process-{n % 50};{draw.choice(below)}"
        expected[stack] += n
        text += f"{stack} {n}\n"
        if n % 700 == 0:
            text += "# a remark; with semicolons 12\n\nno number\n"
    monkeypatch.setattr("nsprof.store.importers.text._STRETCH", stretch)
    profile, damaged = import_folded(memoryview((text + "last;one 5").encode()), "t")
    assert damaged
    assert profile.meta["notes"] == ["6 lines that are no `frames count`, left out (the first is line 4)"]
    assert stacks(profile) == {**expected, "last;one": 5}
    assert len(profile.stacks) == len(expected) + 1


@pytest.mark.parametrize("root", ["process-{}", "ret_from_fork", "{}_[k]"])
def test_roots_decide_about_the_frames_below_them(root: str) -> None:
    """A root that is kernel code makes kernel code of what it calls; a process does not."""
    text = "".join(f"{root.format(n)};__do_softirq;net_rx_action;f{n % 3} 1\n" for n in range(900))
    profile, _ = import_folded(memoryview(text.encode()), "t")
    assert profile.samples.count.sum() == 900
    got = kinds(profile)
    if root == "ret_from_fork":
        assert got["f0"] == got["ret_from_fork"] == {(FrameKind.KERNEL, "")}
    elif root == "process-{}":
        assert got["f0"] == {(FrameKind.KERNEL, "")}  # __do_softirq is an entry itself
        assert got["process-7"] == {(FrameKind.UNKNOWN, "")}
        assert set(profile.samples.context.tolist()) == {Context.SOFTIRQ}
    else:
        assert got["7"] == {(FrameKind.KERNEL, "")}


def test_one_place_of_a_file_is_one_frame_wherever_processes_map_it() -> None:
    made = PerfData([Event(h.IP | h.TID | h.TIME | h.CPU | h.PERIOD | h.CALLCHAIN)])
    for pid in range(10, 14):
        made.mmap(pid, pid << 20, 0x4000, 0x1000, "/usr/lib/none/libx.so", 0)
    time = 0
    for pid in range(10, 14):
        for offset in (0x10, 0x20, 0x9000):  # the last one is behind the mapping
            time += 1
            made.sample(Sample(pid=pid, tid=pid, time=time, chain=[USER, (pid << 20) + offset, 0x77], mode=2))
    profile, damaged = import_perf_data(memoryview(made.file()), "t")
    assert not damaged
    assert profile.samples.count.sum() == 12
    assert kinds(profile) == {"[unknown]": {(FrameKind.USER, "libx.so"), (FrameKind.USER, "")}}
    modules = Counter[tuple[str, ...]]()
    for stack, count in zip(profile.samples.stack.tolist(), profile.samples.count.tolist(), strict=True):
        modules[tuple(profile.frames.module[f] for f in profile.stacks[stack])] += count
    assert modules == {("libx.so", ""): 8, ("", ""): 4}


@pytest.mark.parametrize("again", ["5", "5e0", "5.0"])
def test_a_stack_is_one_however_its_lines_are_read(again: str) -> None:
    """Read below its root, as an odd line, or in a later stretch of another kind: the key is the same."""
    lines = [f"proc{n % 100};main;fn{n // 100};leaf{n // 100} 1" for n in range(10_000)]
    text = "\n".join([*lines, f"proc0;main;fn0;leaf0 {again}"]) + "\n"
    profile, _ = import_folded(memoryview(text.encode()), "x")
    assert len(profile.stacks) == 10_000
    assert profile.samples.weight.sum() == 10_005
    assert profile.samples.weight[0] == 6
