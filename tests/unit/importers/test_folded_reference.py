"""Folded stacks come out as a plain loop over lines has them, whatever the lines repeat and wherever they are cut."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from math import ceil

import numpy as np
import pytest

from nsprof.kernelnames import context_of
from nsprof.model.profile import Context, FrameKind, Profile
from nsprof.store.importers import columns as c
from nsprof.store.importers import foldedstacks
from nsprof.store.importers import text as text_module
from nsprof.store.importers.folded import import_folded
from nsprof.store.importers.foldedcounts import counts
from nsprof.store.importers.text import KERNEL_ENTRY

_NUMBER = re.compile(rb"[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?")
_MARKS = {b"_[k]": FrameKind.KERNEL, b"_[j]": FrameKind.USER, b"_[w]": FrameKind.USER, b"_[i]": FrameKind.UNKNOWN}
_DSOS = {
    b"f ([kernel.kallsyms])": ("f", "", FrameKind.KERNEL),
    b"nft_do_chain (/lib/modules/6.1/nf_tables.ko)": ("nft_do_chain", "nf_tables", FrameKind.KERNEL),
    b"gettime ([vdso])": ("gettime", "[vdso]", FrameKind.USER),
}
_Frame = tuple[str, str, FrameKind]
_Stack = tuple[tuple[_Frame, ...], Context]


def frame_of(text: bytes) -> _Frame:
    """(name, module, kind) of a frame by itself."""
    if text in _DSOS:
        return _DSOS[text]
    bare = text[:-4] if text[-4:] in _MARKS else text
    name = bare.strip().decode("utf-8", "backslashreplace")
    return name or "[unknown]", "", _MARKS.get(text[-4:], FrameKind.UNKNOWN)


def plainly(text: bytes) -> tuple[dict[_Stack, float], int]:
    """({stack, root first, with its context: weight}, lines left out): the loop."""
    made: Counter[_Stack] = Counter()
    bad = 0
    for line in text.split(b"\n"):
        if not line.strip() or line.startswith((b"#", b"//")):
            continue
        stack, _, count = line.rpartition(b" ")
        if not stack.strip() or len(count) > 40 or not _NUMBER.fullmatch(count) or float(count) == float("inf"):
            bad += 1
            continue
        frames: list[_Frame] = []
        kernel = False
        for name, module, kind in map(frame_of, stack.split(b";")):
            kernel = kernel or name in KERNEL_ENTRY
            frames.append((name, module, FrameKind.KERNEL if kernel else kind))
        inside = [name for name, _, kind in reversed(frames) if kind == FrameKind.KERNEL]
        context = context_of(inside, has_user=any(kind == FrameKind.USER for _, _, kind in frames))
        if inside and all(name.startswith(("[unknown", "0x")) for name in inside):
            context = Context.UNKNOWN
        made[tuple(frames), context] += float(count)
    return dict(made), bad


def imported(profile: Profile) -> dict[_Stack, float]:
    """What `plainly` gives, of a profile; a stack stands in it once."""
    made: dict[_Stack, float] = {}
    f, s = profile.frames, profile.samples
    for stack, context, weight, count in zip(
        s.stack.tolist(), s.context.tolist(), s.weight.tolist(), s.count.tolist(), strict=True
    ):
        rows = profile.stacks[stack][::-1].tolist()
        key = tuple((f.name[i], f.module[i], FrameKind(int(f.kind[i]))) for i in rows), Context(context)
        assert key not in made
        assert count == ceil(min(weight, 2**53))
        made[key] = weight
    return made


NAMES = [
    *(b"worker_%d" % n for n in range(25)),
    *(b"x" * n for n in range(1, 12)),
    *(b"entry_SYSCALL_64_after_hwframe", b"do_syscall_64", b"asm_common_interrupt", b"asm_exc_nmi", b"nmi"),
    *(b"__do_softirq", b"net_rx_action", b"tcp_sendmsg", b"common_interrupt", b"ret_from_fork", b"handle_softirqs"),
    *(b"tcp_rcv_[k]", b"0xffffffff81_[k]", b"[unknown]_[k]", b"jitted_[j]", b"waiting_[w]", b"inlined_[i]"),
    *(
        b"",
        b" ",
        b"std::map<int, long>",
        b"a b c",
        b"caf\xc3\xa9",
        b"\xfe\x80\xff",
        b"[unknown]",
        b"-",
        b"123",
        b"_[k]",
    ),
    *_DSOS,
]
ODD = [
    b"",
    b"  ",
    b"# a remark;here 3",
    b"// and 4",
    b"no count",
    b"a;b 1e999",
    b" ;; 3",
    b" 7",
    b"a;b -3",
    b"a;b 1x",
]
ODD += [
    b" leading;blank 4",
    b"\tby;tab 6",
    b"a;b 12e2",
    b"a;b 1.5E-1",
    b"/usr/bin/x;main 8",
    b"a;b .5",
    b"a;b 3.",
    b";;; 2",
]
ODD += [b"a;b 1.2.3", b"a;b 12345678901234567890", b"a;b 9007199254740993.5", b"a;b 00000000000000000007", b"a;b 5 "]


def whole(draw: random.Random) -> bytes:
    return b"%d" % draw.choice([1, draw.randrange(10), draw.randrange(10**7), draw.randrange(10**8), 10**15 + 7])


def fraction(draw: random.Random) -> bytes:
    return draw.choice([b"%.6f", b"%.1f", b"%.9f", b"%.0f", b"%.3f"]) % (10 ** draw.randrange(9) * draw.random())


def shape_of(draw: random.Random) -> Callable[[], bytes]:
    """A way in which the stacks of a text are related."""
    names = draw.sample(NAMES, draw.randint(2, len(NAMES)))

    def stack() -> bytes:
        return b";".join(draw.choices(names, k=draw.randint(1, 12)))

    some = [stack() for _ in range(draw.randint(2, 30))]
    roots = [b"process-%d" % n for n in range(40)]
    return draw.choice(
        [
            stack,
            lambda: draw.choice(some),
            lambda: draw.choice(roots) + b";" + draw.choice(some),
            lambda: draw.choice(roots) + b";" + (stack() if draw.random() < 0.1 else draw.choice(some)),
        ]
    )


@pytest.mark.parametrize("seed", range(60))
def test_a_loop_over_lines_gives_the_same(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    draw = random.Random(seed)
    monkeypatch.setattr(text_module, "_STRETCH", draw.choice([1 << 10, 1 << 12, 1 << 14, 8 << 20]))
    count, odd = draw.choice([whole, fraction]), draw.choice([0.0, 0.0, 0.02])
    lines = []
    for _ in range(draw.randint(1, 3)):  # what they have in common may change within a text
        shape = shape_of(draw)
        for _ in range(draw.choice([3, 200, 700])):
            lines.append(draw.choice(ODD) if draw.random() < odd else shape() + b" " + count(draw))
    if draw.random() < 0.3:
        lines.sort()
    text = b"\n".join(lines) + draw.choice([b"", b"\n", b"\n\n"])
    expected, bad = plainly(text)
    sent = text.replace(b"\n", b"\r\n") if draw.random() < 0.2 else text
    profile, damaged = import_folded(memoryview(sent), "x")
    made = imported(profile)
    assert set(made) == set(expected)
    assert all(made[stack] == pytest.approx(weight, rel=1e-12) for stack, weight in expected.items())
    assert damaged == bool(bad)
    notes = [note for note in profile.meta["notes"] if "left out" in note]
    assert (int(notes[0].split()[0]) if notes else 0) == bad


@pytest.mark.parametrize("order", ["by root", "shuffled", "reversed"])
def test_every_stack_once_below_many_roots(monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    monkeypatch.setattr(text_module, "_STRETCH", 1 << 14)
    draw = random.Random(order)
    names = [b"a", b"do_syscall_64", b"__do_softirq", b"worker_1", b"tcp_sendmsg_[k]", b"", b"read"]
    below = sorted({b";".join(draw.choices(names, k=draw.randint(1, 9))) for _ in range(200)})
    lines = [b"process-%d;%s %d" % (n, stack, draw.randrange(9)) for n in range(40) for stack in below]
    lines.insert(5000, b"somebody else 3")
    if order != "by root":
        lines = draw.sample(lines, len(lines)) if order == "shuffled" else lines[::-1]
    text = b"\n".join(lines)
    profile, _ = import_folded(memoryview(text), "x")
    assert imported(profile) == plainly(text)[0]


def test_many_stretches_come_out_the_same_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_module, "_STRETCH", 1 << 13)
    shape = shape_of(random.Random(8))
    text = b"\n".join(shape() + b" 1" for _ in range(20_000))
    first, _ = import_folded(memoryview(text), "x")
    for _ in range(5):
        again, _ = import_folded(memoryview(text), "x")
        assert (again.frames.name, again.frames.kind.tolist()) == (first.frames.name, first.frames.kind.tolist())
        assert again.stacks.frames.tolist() == first.stacks.frames.tolist()
        assert again.samples.weight.tolist() == first.samples.weight.tolist()


def test_counts_are_those_that_python_reads() -> None:
    draw = random.Random(1)
    numbers = [b"%d" % draw.randrange(10**n) for n in range(1, 15) for _ in range(40)]
    numbers += [
        b"%.*f" % (places, draw.random() * 10**n) for n in range(7) for places in range(1, 8) for _ in range(8)
    ]
    numbers += [b"0", b"00000001", b"0.0", b"9999999", b"99999999", b"9999999.9999999", b"0000000.0000001", b"1."]
    others = [b"", b".5", b"1.2.3", b"-3", b"12a", b"1e3", b"\xb1", b"a"]
    lines = [b"a;" + b"b" * draw.randrange(12) + b" " + each for each in [*numbers, *others]]
    text = np.frombuffer(b"\n".join(lines), "u1")
    end = c.newlines(text)
    start = np.concatenate([[0], end[:-1] + 1])
    value, stop = counts(text, start, end)
    for line, at, low, high, each in zip(
        lines, stop.tolist(), start.tolist(), end.tolist(), [*numbers, *others], strict=True
    ):
        if each in others:
            assert at == -1, line
        else:
            assert at == high - len(each) - 1, line
            assert value[high == end][0] == float(each), line
            assert low < at
    assert len(value) == len(numbers) + len(others)


@pytest.mark.parametrize("often", [0.0, 0.01, 0.07, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("length", [0, 1, 2, 9, 5001])
def test_marked_places_are_those_of_numpy(often: float, length: int) -> None:
    mask = np.random.default_rng(4).random(length) < often
    assert c.marked(mask).tolist() == np.flatnonzero(mask).tolist()
    mask[1::2] = False  # never both of a pair
    assert c.marked(mask).tolist() == np.flatnonzero(mask).tolist()


def test_pieces_are_found_among_others() -> None:
    text = np.frombuffer(b"one two three two four one ", "u1")
    start = np.array([0, 4, 8, 14, 18, 23])
    end = np.array([4, 8, 14, 18, 23, 27])
    pieces = c.Pieces.of([b"two ", b"one ", b"on"])
    assert c.found(text, start, end, pieces).tolist() == [1, 0, -1, 0, -1, 1]
    assert c.found(text, start[:2], end[:2], pieces).tolist() == [1, 0]
    assert c.found(text, start[:2], end[:2] - 1, pieces).tolist() == [-1, -1]


@pytest.mark.parametrize("length", [0, 1, 1000, 600_000])
def test_separators_are_a_byte_and_the_places_given(length: int) -> None:
    draw = np.random.default_rng(length)
    text = draw.choice(np.frombuffer(b"abcdefghij;", "u1"), length)
    also = np.flatnonzero(draw.random(length) < 0.01)
    also = also[text[also] != 59]
    mask = text == 59
    mask[also] = True
    assert c.separators(text, 59, also).tolist() == np.flatnonzero(mask).tolist()


def test_stretches_that_repeat_the_first_are_not_taken_apart_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted by the texts of frames that are looked up."""
    asked: list[int] = []
    local = foldedstacks.Known.local

    def counted(self: foldedstacks.Known, texts: list[bytes]) -> foldedstacks.Local:
        asked.append(len(texts))
        return local(self, texts)

    monkeypatch.setattr(foldedstacks.Known, "local", counted)
    monkeypatch.setattr(text_module, "_STRETCH", 1 << 15)
    names = [b"function_%d" % n for n in range(60)]
    draw = random.Random(2)
    below = [b";".join(draw.choices(names, k=8)) for _ in range(20)]
    once = [b";".join(draw.choices(names, k=8)) for _ in range(8000)]
    for stacks in (below * 400, [b"p%d;%s" % (n, each) for n in range(400) for each in below], once):
        asked.clear()
        import_folded(memoryview(b"\n".join(stack + b" 1" for stack in stacks)), "x")
        stretches = sum(len(stack) + 3 for stack in stacks) / (1.5 * (1 << 15))
        assert stretches > 8
        # The first two in full. What is asked for the others are roots, about 30 in each.
        assert sum(number > 45 for number in asked) == 2
