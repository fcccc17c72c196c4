"""Mutated and hostile input ends, in bounded memory, with a profile or a ProfileFormatError."""
# ruff: noqa: E501 - lines of other tools' files stand as they are

from __future__ import annotations

import gzip
import json
import struct
import time
import tracemalloc
from functools import cache

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nsprof.errors import ProfileFormatError
from nsprof.model.profile import Profile
from nsprof.store import importers
from nsprof.store.importers import FORMATS, _read
from nsprof.store.importers.perfdata import header as h
from tests.support import REPO
from tests.unit.importers.perfdata_file import KERNEL, USER, Event, PerfData, Sample
from tests.unit.importers.test_text import BCC, BPFTRACE

DATA = REPO / "tests" / "data" / "importers"


def read(raw: bytes, form: str | None = None) -> Profile | None:
    try:
        return _read(memoryview(raw), "hostile", form, None, None)[0]
    except ProfileFormatError:
        return None


@cache
def seeds() -> list[tuple[str, bytes]]:
    made = PerfData(
        [Event(h.IP | h.TID | h.TIME | h.ID | h.CPU | h.PERIOD | h.CALLCHAIN | h.RAW | h.BRANCH_STACK | h.STACK_USER)]
    )
    made.comm(10, 11, "x")
    made.mmap(10, 0x1000, 0x1000, 0, "/bin/x")
    made.fork(12, 10, 12, 10, 5)
    for n in range(5):
        made.sample(Sample(time=n, chain=[KERNEL, 2**64 - 2**30, USER, 0x1001], branches=2, raw=b"abc", stack=8))
    told = h.IP | h.TID | h.TIME | h.ADDR | h.CPU | h.CALLCHAIN | h.BRANCH_STACK | h.WEIGHT | h.DATA_SRC | h.PHYS_ADDR
    memory = PerfData([Event(told)])
    for n in range(4):
        entries = [(2**64 - 2**30, 0x1000, 1 | 5 << 4), (0, 0, 0)]
        memory.sample(Sample(time=n, cpu=n, chain=[KERNEL, 2**64 - 2**30], entries=entries, data_source=0x106))
    speedscope = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "shared": {"frames": [{"name": "a"}, {"name": "b", "file": "f", "line": 3}]},
        "profiles": [
            {"type": "sampled", "name": "t", "unit": "seconds", "startValue": 0, "endValue": 2, "samples": [[0, 1], [0]], "weights": [1, 1]},
            {"type": "evented", "name": "t", "unit": "none", "startValue": 0, "endValue": 2, "events": [{"type": "O", "frame": 0, "at": 0}, {"type": "C", "frame": 0, "at": 2}]},
        ],
    }  # fmt: skip
    return [
        ("perf.data", made.file({"[kernel.kallsyms]": b"1" * 20})),
        ("perf.data", made.pipe()),
        ("perf.data", memory.file()),
        ("perf.data", (DATA / "udp_rr.data").read_bytes()),
        ("perf.data", (DATA / "udp_rr.zstd.data").read_bytes()),
        ("perf-script", (DATA / "udp_rr.script.txt").read_bytes()[:6000]),
        ("perf-script", b"   sh      250000 cycles: \n\tffffffff81000010 f ([kernel.kallsyms])\n\n" * 9),
        ("folded", b"a;b;c 12\na;b;c_[k] 1.5\n# x\na;d 3\n"),
        ("bpftrace", BPFTRACE.encode()),
        ("bcc-profile", BCC.encode()),
        ("speedscope", json.dumps(speedscope).encode()),
        ("pprof", _pprof()),
    ]


def _pprof() -> bytes:
    import io

    from nsprof.store.exporters import export
    from nsprof.store.importers import import_file

    out = io.BytesIO()
    export(import_file(DATA / "udp_rr.data"), "pprof", out)
    return gzip.decompress(out.getvalue())


@st.composite
def mutated(draw: st.DrawFn) -> tuple[str, bytes]:
    form, raw = draw(st.sampled_from(seeds()))
    data = bytearray(raw)
    for _ in range(draw(st.integers(1, 8))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        what = draw(st.integers(0, 4))
        if what == 0:
            data[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
        elif what == 1:
            data[at : at + 8] = draw(
                st.sampled_from([b"\xff" * 8, bytes(8), struct.pack("<Q", 2**63), b"\x01" + bytes(7)])
            )
        elif what == 2:
            del data[at : at + draw(st.integers(1, 64))]
        elif what == 3:
            data[at:at] = draw(st.binary(max_size=32))
        else:
            data[at:at] = data[max(0, at - 64) : at]
    return form, bytes(data)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(mutated())
def test_mutated_files_end_in_a_profile_or_an_error(case: tuple[str, bytes]) -> None:
    form, raw = case
    for each in (form, None):
        profile = read(raw, each)
        if profile is not None and len(profile.samples):
            assert profile.samples.stack.max() < len(profile.stacks)
            assert profile.samples.task.max() < len(profile.tasks)
            assert profile.samples.event.max() < len(profile.events)
            if len(profile.stacks.frames):
                assert profile.stacks.frames.max() < len(profile.frames)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(FORMATS)), st.binary(max_size=300))
def test_random_bytes_end_in_a_profile_or_an_error(form: str, raw: bytes) -> None:
    read(raw, form)
    read(b"PERFILE2" + raw, "perf.data")


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_a_bomb_is_refused(pack: object) -> None:
    bomb = pack(bytes(100 << 20))  # type: ignore[operator]
    tracemalloc.start()
    try:
        with pytest.raises(ProfileFormatError, match="unpacks to more than"):
            _read(memoryview(bomb), "bomb", None, None, None)
        assert tracemalloc.get_traced_memory()[1] < 300 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_a_large_bomb_is_refused_at_its_beginning_with_a_way_out(pack: object) -> None:
    bomb = pack(b"a;b;c;veth_xmit 1\n" * (300 << 20 >> 5) * 2)  # type: ignore[operator]
    tracemalloc.start()
    try:
        with pytest.raises(ProfileFormatError, match="200 times its size") as caught:
            _read(memoryview(bomb), "bomb", None, None, None)
        assert tracemalloc.get_traced_memory()[1] < 200 << 20
    finally:
        tracemalloc.stop()
    assert "zcat" in caught.value.hint


def test_what_is_packed_no_tighter_than_stacks_are_is_limited_by_the_memory_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw = gzip.compress(b"".join(b"a;b;f%d %d\n" % (n % 997, n) for n in range(200_000)))
    assert _read(memoryview(raw), "stacks", None, None, None)[0].samples.count.sum() == 200_000 * 199_999 // 2
    monkeypatch.setattr(importers, "_available_bytes", lambda: 1 << 20)
    with pytest.raises(ProfileFormatError, match="a quarter of the memory"):
        _read(memoryview(raw), "stacks", None, None, None)


def test_many_empty_members_take_no_time() -> None:
    raw = gzip.compress(b"") * 100_000 + gzip.compress(b"a;b 7\n")
    began = time.process_time()
    assert _read(memoryview(raw), "members", "folded", None, None)[0].samples.count.sum() == 7
    assert time.process_time() - began < 10


def test_a_bomb_inside_perf_data_is_cut_off() -> None:
    made = PerfData([Event(h.IP | h.TID | h.TIME)])
    made.sample(Sample())
    inner = made.records
    packed = zstandard.compress(inner * (80_000_000 // len(inner)))
    made.records += b"".join(
        made.pack("IHH", 81, 0, 8 + len(piece)) + piece
        for piece in (packed[at : at + 32768] for at in range(0, len(packed), 32768))
    )
    profile = read(made.file())
    assert profile is not None
    assert any("unpack to more than" in note for note in profile.meta["notes"])


def test_many_forks_and_mappings_stay_small() -> None:
    made = PerfData([Event(h.IP | h.TID | h.TIME)])
    pieces = []
    for n in range(3000):
        made.records = b""
        made.mmap(1 + n, 0x1000 * n, 0x1000, 0, f"/lib/{n}", time=2 * n)
        made.fork(2 + n, 1 + n, 2 + n, 1 + n, time=2 * n + 1)
        pieces.append(made.records)
    made.records = b"".join(pieces)
    made.sample(Sample(pid=3000, tid=3000, ip=0x1000, mode=2, time=99999))
    tracemalloc.start()
    try:
        assert read(made.file()) is not None
        assert tracemalloc.get_traced_memory()[1] < 200 << 20
    finally:
        tracemalloc.stop()


def test_deeply_nested_json_is_an_error() -> None:
    assert read(b'{"shared":{"frames":' + b"[" * 200_000) is None
