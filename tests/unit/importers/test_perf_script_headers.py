"""Headers of `perf script` with any of its fields: what a number is, is told or said to be unknown."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from nsprof.model.profile import Profile
from nsprof.store.importers import detect
from nsprof.store.importers.perfscript import import_perf_script
from nsprof.store.importers.scriptheads import _digits
from nsprof.store.importers.scriptlayout import AMBIGUOUS, Layout, layout_of

FIELDS = ("comm", "pid", "tid", "cpu", "time", "period")
STACK = "\tffffffff81000010 udp_rcv+0x10 ([kernel.kallsyms])\n\t          7f0000 main (/usr/bin/app)\n\n"
FLAT = " ffffffff81000010 udp_rcv+0x10 ([kernel.kallsyms])\n"
#: comm, pid, tid, cpu, period of every sample
TASKS = (("sh", 7, 7), ("Web Content", 4321, 4322), ("swapper", 0, 0), ("CPU 0/KVM", 123456, 123457))
SAMPLES = [(*TASKS[n % 4], n % 3, 250_000 + n % 5) for n in range(60)]


def header(fields: tuple[str, ...], sample: tuple[str, int, int, int, int], number: int, *, pid_width: int) -> str:
    """As perf writes it: builtin-script.c, perf_sample__fprintf_start and process_event."""
    comm, pid, tid, cpu, period = sample
    made = f"{comm} " if "comm" in fields else ""
    if "pid" in fields and "tid" in fields:
        made += f"{pid:{pid_width}d}/{tid:<{pid_width}d} "
    elif "pid" in fields or "tid" in fields:
        made += f"{pid if 'pid' in fields else tid:{pid_width}d} "
    made += f"[{cpu:03d}] " if "cpu" in fields else ""
    made += f"{39894:5d}.{number:06d}: " if "time" in fields else ""
    made += f"{period:10d} " if "period" in fields else ""
    return f"{made}cycles: "


def script(text: str) -> Profile:
    profile, damaged = import_perf_script(memoryview(text.encode()), "t.txt")
    assert not damaged
    return profile


@pytest.mark.parametrize("pid_width", [5, 7])
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("fields", [f for n in range(7) for f in itertools.combinations(FIELDS, n)], ids=",".join)
def test_every_choice_of_fields_is_read_right(fields: tuple[str, ...], flat: bool, pid_width: int) -> None:
    lines = [header(fields, sample, n, pid_width=pid_width) for n, sample in enumerate(SAMPLES)]
    text = "".join(line + (FLAT if flat else f"\n{STACK}") for line in lines)
    assert detect(text.encode()) == "perf-script"
    profile = script(text)
    assert int(profile.samples.count.sum()) == len(SAMPLES)
    total = sum(sample[4] for sample in SAMPLES) if "period" in fields else len(SAMPLES)
    assert profile.samples.weight.sum() == total
    assert [(e.name, e.unit) for e in profile.events] == [("cycles", "cycles" if "period" in fields else "count")]
    pids = {sample[1] if "pid" in fields and "tid" not in fields else sample[2] for sample in SAMPLES}
    comms = {sample[0] for sample in SAMPLES} if "comm" in fields else {""}
    assert {t.pid for t in profile.tasks} == (pids if {"pid", "tid"} & set(fields) else {-1})
    assert {t.comm for t in profile.tasks} == comms
    cpus = {sample[3] for sample in SAMPLES} if "cpu" in fields else {0xFFFF}
    assert set(profile.samples.cpu.tolist()) == cpus
    assert set(profile.frames.name) <= {"udp_rcv", "main", "[unknown]"}
    assert profile.meta["notes"] == []


def squeezed(*rows: tuple[str, int]) -> str:
    """Samples `comm number cycles:` from which something took perf's blanks away."""
    stack = "\tffffffff81000010 udp_rcv+0x10 ([kernel.kallsyms])\n\n"
    return "".join(f"{comm} {number} cycles:\n{stack}" for comm, number in rows)


@pytest.mark.parametrize(
    ("rows", "number"),
    [
        ([("sh", 5_000_000)] * 3, "period"),  # no pid is so large
        ([("sh", 4000), ("swapper", 4000)], "period"),  # the idle task's pid is 0
        ([("sh", 4000), ("swapper", 0)], ""),
        ([("sh", 4000)] * 3 + [("perl", 5000)] * 3, ""),  # each program has its own, always the same
        ([("sh", 12)] * 3, ""),  # no period of cycles
        ([("sh", 40000)] * 3 + [("perl", 40000)] * 3, "unknown"),
        ([("sh", 40000 + n) for n in range(30)], "unknown"),
        ([("sh", 40000)] * 3, "unknown"),
    ],
)
def test_what_a_number_is_follows_from_all_headers_or_is_said_to_be_unknown(
    rows: list[tuple[str, int]], number: str
) -> None:
    text = squeezed(*rows)
    layout = layout_of(memoryview(text.encode()))
    assert layout == Layout(comm=True, pid=not number, cpu=False, number=number)
    profile = script(text)
    assert int(profile.samples.count.sum()) == len(rows)
    assert profile.samples.weight.sum() == (sum(n for _, n in rows) if number == "period" else len(rows))
    assert {t.pid for t in profile.tasks} == ({n for _, n in rows} if not number else {-1})
    assert profile.events[0].unit == ("cycles" if number == "period" else "count")
    assert profile.meta["notes"] == ([AMBIGUOUS] if number == "unknown" else [])


def test_the_evidence_is_looked_for_in_the_whole_text() -> None:
    """The first hundred kilobytes would allow both."""
    stack = "\tffffffff81000010 udp_rcv+0x10 ([kernel.kallsyms])\n\n"
    text = f"sh 40000 cycles:\n{stack}" * 5000 + f"swapper 0 cycles:\n{stack}" * 1000
    assert layout_of(memoryview(text.encode())) == Layout(comm=True, pid=True, cpu=False, number="")


@pytest.mark.parametrize("codec", ["utf-16", "utf-8-sig"])
def test_a_text_with_a_byte_order_mark_is_understood_as_one_without(codec: str) -> None:
    text = squeezed(*[("sh", 5_000_000)] * 3)
    profile, _ = import_perf_script(memoryview(text.encode(codec)), "t.txt")
    assert profile.samples.weight.sum() == 15_000_000


def test_windows_line_ends_change_nothing() -> None:
    fields = ("comm", "period")
    text = "".join(header(fields, s, n, pid_width=5) + f"\n{STACK}" for n, s in enumerate(SAMPLES))
    profile = script(text.replace("\n", "\r\n"))
    assert profile.samples.weight.sum() == sum(sample[4] for sample in SAMPLES)


def test_a_text_with_times_needs_no_layout() -> None:
    for fields in (("comm", "time"), ("time",), ("comm", "pid", "cpu", "time", "period")):
        text = "".join(header(fields, s, n, pid_width=5) + f"\n{STACK}" for n, s in enumerate(SAMPLES))
        assert layout_of(memoryview(text.encode())) is None


def test_headers_without_a_pid_are_read_as_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    from nsprof.store.importers import perfscript

    slow: list[bytes] = []
    monkeypatch.setattr(perfscript, "_slowly", lambda tables, piece, follows: slow.append(piece))
    for fields in (("comm", "time"), ("time", "period"), ("comm", "period"), ("cpu",), (), ("pid", "period")):
        text = "".join(header(fields, s, n, pid_width=5) + f"\n{STACK}" for n, s in enumerate(SAMPLES))
        assert int(script(text).samples.count.sum()) == len(SAMPLES)
    assert slow == []


@pytest.mark.parametrize(
    "text",
    [
        "Warning: 3 samples lost\nsee dmesg: it\n",
        "main;foo: 12\nmain;bar 3\n",
        "note: this\n  0123 is text (really)\n",
        "a: b\n\n\tindented text (x)\n",
    ],
)
def test_other_text_with_colons_is_no_perf_script(text: str) -> None:
    assert detect(text.encode()) != "perf-script"


def test_hostile_headers_take_no_time() -> None:
    for line in (" " * 4000 + "x", "a " * 2000, "1 " * 2000 + "c:", ":" * 4000, "a:" * 2000, "[1] " * 1000 + "c: "):
        layout_of(memoryview((f"{line}\n{STACK}" * 40).encode()))


@pytest.mark.parametrize("width", range(1, 20))
def test_digits_are_read_by_words(width: int) -> None:
    numbers = [n * 7919**3 % 10**width for n in range(50)]
    text = np.frombuffer("".join(f"{n:0{width}d}" for n in numbers).encode(), "u1")
    value, good = _digits(text, np.arange(50) * width, width)
    assert good.all()
    assert value.tolist() == numbers
    for byte in range(256):
        raw = bytearray(b"7" * width)
        raw[width // 2] = byte
        assert _digits(np.frombuffer(bytes(raw), "u1"), np.array([0]), width)[1][0] == bool(
            re.fullmatch(rb"[0-9]", bytes([byte]))
        )
