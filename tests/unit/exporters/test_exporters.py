"""Exports against their formats' own readers and schemas, and round trips through our importers."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings

from nsprof import store
from nsprof.errors import EvidenceError, UsageError
from nsprof.model.builder import ProfileBuilder
from nsprof.model.profile import Context, Event, FrameKind, Profile, Run, Samples
from nsprof.store.exporters import FORMATS
from nsprof.store.importers import detect, import_file
from nsprof.store.importers.folded import import_folded
from nsprof.store.importers.pprof import import_pprof
from nsprof.store.importers.speedscope import import_speedscope
from tests.profiles import bench_profile
from tests.support import REPO, need
from tests.unit.exporters.pprof_schema import Profile as PprofMessage
from tests.unit.exporters.support import by_stack, npm, profiles, sample_profile, written

SPEEDSCOPE = "speedscope@1.15.0"
READER = Path(__file__).with_name("speedscope_reader.js")


def understood(raw: bytes, name: str, tmp_path: Path) -> dict[str, Any]:
    """What speedscope's own importer makes of a file."""
    need("node")
    package = npm(SPEEDSCOPE)
    file = tmp_path / name
    file.write_bytes(raw)
    done = subprocess.run(["node", READER, package, file], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    made: dict[str, Any] = json.loads(done.stdout)
    return made


# --- folded ---------------------------------------------------------------------------------------------------


def test_folded_is_as_py_spy_writes_raw() -> None:
    assert written(sample_profile(), "raw").decode().splitlines() == [
        "main;entry_SYSCALL_64_after_hwframe;udp_rcv (net/ipv4/udp.c:12) 26",
        "main;entry_SYSCALL_64_after_hwframe;udp_rcv (net/ipv4/udp.c:12);veth_xmit 1",
        "work (work.py:7) 4",
        "udp_rcv (net/ipv4/udp.c:12);bpf_prog_x 2",
    ]
    assert written(sample_profile(), "raw") == written(sample_profile(), "folded")


def test_folded_roots_marks_weights_and_scenario() -> None:
    lines = written(
        sample_profile(), "folded", roots=("namespace", "context"), marks=True, value="weight", scenario="veth-bridge"
    )
    assert lines.decode().splitlines() == [
        "unknown;user;udp_rcv (net/ipv4/udp.c:12)_[k];bpf_prog_x_[k] 2500000",
        "c0;unknown;main;entry_SYSCALL_64_after_hwframe_[k];udp_rcv (net/ipv4/udp.c:12)_[k] 3000000",
        "net:[4026532001];hardirq;work (work.py:7) 4000000",
    ]


def test_folded_names_cannot_break_lines() -> None:
    lines = written(sample_profile(), "folded", roots=("comm",)).decode().splitlines()
    assert any(line.startswith('a"b:c?;') for line in lines)
    assert all(line.rpartition(" ")[2].isdigit() for line in lines)


@pytest.mark.parametrize("name", ["#", "# x", "//anon", "#;"])
def test_a_stack_that_looks_like_a_remark_comes_back(name: str) -> None:
    builder = ProfileBuilder()
    builder.event(Event("e", "ns"))
    builder.runs.append(Run("s"))
    builder.samples(Samples.build(1, stack=builder.stack([builder.frame(name)]), count=3, weight=30.0))
    got, damaged = import_folded(memoryview(written(builder.build(), "folded")), "t")
    assert not damaged and int(got.samples.count.sum()) == 3
    assert [n.strip() for n in got.frames.name] == [name.replace(";", ":")]


def test_several_events_are_never_added_on_the_way_out() -> None:
    profile = sample_profile()
    samples = profile.samples.take([0, 1, 2, 3, 4])
    object.__setattr__(samples, "event", samples.event.copy())
    samples.event[:2] = 1
    two = profile.with_(events=(*profile.events, Event("cache-misses", "misses")), samples=samples)
    for form in ("folded", "chrometrace"):
        with pytest.raises(UsageError, match="holds one event and this profile has 2"):
            written(two, form)
    assert b" 26" not in written(two, "folded", event="cache-misses")
    with pytest.raises(UsageError, match="is no clock"):
        written(two, "chrometrace", event="cache-misses")
    message = PprofMessage.FromString(gzip.decompress(written(two, "pprof")))
    types = [message.string_table[t.type] for t in message.sample_type]
    assert types == ["cpu-clock_samples", "cpu-clock", "cache-misses_samples", "cache-misses"]


@settings(max_examples=60, deadline=None)
@given(profiles())
def test_folded_round_trip_keeps_names_and_counts(profile: Profile) -> None:
    got, _ = import_folded(memoryview(written(profile, "folded", marks=True)), "t")

    def names(p: Profile) -> Counter[tuple[str, ...]]:
        made: Counter[tuple[str, ...]] = Counter()
        for stack, count in by_stack(p, "count").items():
            made[tuple("".join(":" if c == ";" else c for c in n).strip(" ") for n, _, _ in stack)] += int(count)
        return made

    plain = {k for k in names(profile) if all(part and part.isprintable() for part in k)}
    assert {k: v for k, v in names(got).items() if k in plain} == {k: names(profile)[k] for k in plain}


# --- speedscope and chrometrace -------------------------------------------------------------------------------


def test_speedscope_has_py_spys_shape() -> None:
    data = json.loads(written(sample_profile(), "speedscope"))
    assert list(data) == ["$schema", "profiles", "shared", "activeProfileIndex", "exporter", "name"]
    assert data["exporter"].startswith("nsprof@")
    assert set(data["shared"]["frames"][0]) == {"name", "file", "line", "col"}
    first = data["profiles"][0]
    assert list(first) == ["type", "name", "unit", "startValue", "endValue", "samples", "weights"]
    assert first["type"] == "sampled"
    assert first["unit"] == "seconds"
    assert first["endValue"] == pytest.approx(sum(first["weights"]))
    assert 'Thread 10 "netperf"' in first["name"]


def test_speedscopes_schema_accepts_it() -> None:
    need("node")
    schema = json.loads((npm(SPEEDSCOPE) / "dist" / "release" / "file-format-schema.json").read_text())

    # py-spy writes null for what it does not know, and so do we; the schema wants such keys left out.
    def known(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: known(v) for k, v in value.items() if v is not None}
        return [known(v) for v in value] if isinstance(value, list) else value

    jsonschema.validate(known(json.loads(written(sample_profile(), "speedscope", roots=("device",)))), schema)


def test_speedscopes_importer_reads_what_we_write(tmp_path: Path) -> None:
    profile = sample_profile()
    seen = understood(written(profile, "speedscope"), "p.speedscope.json", tmp_path)
    assert sum(p["total"] for p in seen["profiles"]) == pytest.approx(0.0335)
    assert {p["unit"] for p in seen["profiles"]} == {"seconds"}
    self_time: Counter[str] = Counter()
    for each in seen["profiles"]:
        self_time.update(each["self"])
    assert self_time["udp_rcv"] == pytest.approx(0.026)
    assert self_time["veth_xmit"] == pytest.approx(0.001)


def test_speedscopes_importer_reads_folded_pprof_and_chrometrace(tmp_path: Path) -> None:
    profile = sample_profile()
    folded = understood(written(profile, "folded"), "p.txt", tmp_path)
    assert folded["profiles"][0]["total"] == 33
    pprof = understood(written(profile, "pprof"), "p.pb.gz", tmp_path)
    assert (pprof["profiles"][0]["unit"], pprof["profiles"][0]["total"]) == ("nanoseconds", 33_500_000)
    assert pprof["profiles"][0]["self"]["udp_rcv"] == 26_000_000
    trace = understood(written(profile, "chrometrace"), "p.json", tmp_path)
    busy: Counter[str] = Counter()
    for each in trace["profiles"]:
        assert each["unit"] == "microseconds"
        for name, value in each["self"].items():
            busy[name.split(" {")[0]] += value
    assert busy["udp_rcv"] == pytest.approx(26_000)
    assert busy["bpf_prog_x"] == pytest.approx(2_500)


def test_chrometrace_has_py_spys_shape_and_closes_what_it_opens() -> None:
    events = json.loads(written(sample_profile(), "chrometrace"))
    assert set(events[0]) == {"args", "cat", "name", "ph", "pid", "tid", "ts"}
    assert set(events[0]["args"]) == {"filename", "line"}
    open_frames: dict[tuple[int, int], list[str]] = {}
    last: dict[tuple[int, int], float] = {}
    for each in events:
        who = each["pid"], each["tid"]
        stack = open_frames.setdefault(who, [])
        if each["ph"] == "B":
            stack.append(each["name"])
        else:
            assert stack.pop() == each["name"]
            last[who] = each["ts"]
    assert all(not s for s in open_frames.values())
    assert len(last) == 3


@settings(max_examples=60, deadline=None)
@given(profiles())
def test_speedscope_round_trip_keeps_stacks_kinds_threads_and_time(profile: Profile) -> None:
    got, damaged = import_speedscope(memoryview(written(profile, "speedscope")), "t")
    assert not damaged
    from nsprof.store.importers.text import KERNEL_ENTRY

    if not KERNEL_ENTRY & set(profile.frames.name):
        assert {k: pytest.approx(v) for k, v in by_stack(profile).items()} == by_stack(got)
    used = {profile.tasks[t].comm for t in profile.samples.task}
    assert {t.comm for t in got.tasks} == used


@pytest.mark.parametrize("weight", [1.0, 2004008.0, 3.0, 1e9 + 7, 123456789012345.0, 0.25])
def test_the_way_through_seconds_keeps_every_nanosecond(weight: float) -> None:
    profile = sample_profile()
    profile = profile.with_(samples=replace(profile.samples, weight=np.full(len(profile.samples), weight)))
    got, _ = import_speedscope(memoryview(written(profile, "speedscope")), "t")
    assert got.samples.weight.sum() == pytest.approx(profile.samples.weight.sum(), rel=1e-15)
    if weight.is_integer():
        assert got.samples.weight.sum() == profile.samples.weight.sum()


def test_what_speedscope_holds_is_not_called_samples_of_the_clock(tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(written(bench_profile(runs=2), "speedscope"))
    got = import_file(tmp_path / "p")
    assert not got.meta["source"]["damaged"]
    assert any("weights, not counts" in note for note in got.meta["notes"])


# --- all that come back ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", [None, "host"])
def test_what_comes_back_adds_up_to_what_was_written(tmp_path: Path, scenario: str | None) -> None:
    """Ticks of a clock, idle ones and other CPUs' included: weights exactly, counts where the format holds them."""
    profile = bench_profile(runs=3, hop_runs=1, idle_s=1.5)
    profile = profile.with_(samples=replace(profile.samples, weight=np.rint(profile.samples.weight)))
    runs = [i for i, run in enumerate(profile.runs) if scenario in (None, run.scenario)]
    rows = np.isin(profile.samples.run, runs)
    count, weight = int(profile.samples.count[rows].sum()), float(profile.samples.weight[rows].sum())

    def back(form: str, **options: Any) -> tuple[int, float]:
        (tmp_path / "x").write_bytes(written(profile, form, scenario=scenario, **options))
        got = import_file(tmp_path / "x").samples
        return int(got.count.sum()), float(got.weight.sum())

    assert back("pprof") == (count, weight)
    assert back("folded") == (count, count)
    assert back("folded", value="weight")[1] == weight
    assert back("speedscope")[1] == weight


def test_several_runs_in_a_pprof_are_told_as_means(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(written(bench_profile(runs=3), "pprof", scenario="host"))
    assert any(note.startswith("3 runs of one scenario") for note in import_file(tmp_path / "x").meta["notes"])
    (tmp_path / "x").write_bytes(written(bench_profile(runs=1), "pprof"))
    assert not any("of one scenario" in note for note in import_file(tmp_path / "x").meta["notes"])


def test_a_weight_without_a_count_in_a_pprof_is_of_one_sample(tmp_path: Path) -> None:
    profile = sample_profile()
    none = replace(profile.samples, count=np.zeros(len(profile.samples), "u8"))
    (tmp_path / "x").write_bytes(written(profile.with_(samples=none), "pprof"))
    got = import_file(tmp_path / "x")
    assert (got.samples.count[got.samples.weight > 0] >= 1).all()
    store.save(got, tmp_path / "p.nsprof")
    assert len(store.load(tmp_path / "p.nsprof").samples) == len(got.samples)


# --- pprof ----------------------------------------------------------------------------------------------------


def test_pprof_parses_with_protobuf_and_holds_labels() -> None:
    raw = written(sample_profile(), "pprof")
    assert detect(raw) == "pprof"
    message = PprofMessage.FromString(gzip.decompress(raw))
    text = message.string_table
    assert text[0] == ""
    assert [(text[t.type], text[t.unit]) for t in message.sample_type] == [
        ("samples", "count"),
        ("cpu-clock", "nanoseconds"),
    ]
    assert message.period == 1_000_000
    assert message.time_nanos == 1_700_000_000_000_000_000
    assert [sum(s.value[i] for s in message.sample) for i in (0, 1)] == [33, 33_500_000]
    functions = {f.id: text[f.name] for f in message.function}
    locations = {x.id: functions[x.line[0].function_id] for x in message.location}
    first = message.sample[0]
    assert [locations[i] for i in first.location_id] == ["udp_rcv", "entry_SYSCALL_64_after_hwframe", "main"]
    labels = {text[x.key]: text[x.str] or x.num for x in first.label}
    assert labels["namespace"] == "c0"
    assert labels["device"] == "eth0"
    assert labels["context"] == "softirq"
    assert labels["comm"] == "netperf"
    assert (labels["pid"], labels["cpu"], labels["scenario"]) == (10, 0, "host")
    mappings = {m.id: text[m.filename] for m in message.mapping}
    assert set(mappings.values()) == {"[kernel.kallsyms]", "[veth]", "app", "[bpf]"}
    assert "lost unknown" in [text[c] for c in message.comment]


@settings(max_examples=60, deadline=None)
@given(profiles())
def test_pprof_round_trip_loses_nothing_that_it_can_hold(profile: Profile) -> None:
    got, damaged = import_pprof(memoryview(gzip.decompress(written(profile, "pprof"))), "t")
    assert not damaged
    assert by_stack(got) == by_stack(profile)
    assert by_stack(got, "count") == by_stack(profile, "count")

    def rows(p: Profile) -> Counter[tuple[str, int, int]]:
        made: Counter[tuple[str, int, int]] = Counter()
        for task, context, count in zip(p.samples.task, p.samples.context, p.samples.count, strict=True):
            made[p.tasks[task].comm, p.tasks[task].pid, int(context)] += int(count)
        return made

    assert rows(got) == rows(profile)


def test_pprof_round_trip_keeps_scenarios_namespaces_and_devices() -> None:
    profile = sample_profile()
    got, _ = import_pprof(memoryview(gzip.decompress(written(profile, "pprof"))), "t")

    def split(p: Profile) -> Counter[tuple[str, str, str, str, int]]:
        made: Counter[tuple[str, str, str, str, int]] = Counter()
        s = p.samples
        for run, hop, dev, cpu, second, count in zip(
            s.run, s.hop_ns, s.hop_dev, s.cpu, s.slice, s.count, strict=True
        ):
            name = p.namespaces[hop - 1].label if hop else ""
            made[p.runs[run].scenario, name, p.devices[dev - 1].name if dev else "", str(cpu), int(second)] += int(
                count
            )
        return made

    assert split(got) == split(profile)


def test_pprof_round_trip_keeps_runs_directions_depths_lateness_and_sources() -> None:
    profile = sample_profile()
    depth = np.array([0, 1, 2, 0, 3], "u1")
    profile = profile.with_(samples=replace(profile.samples, hop_depth=depth, run=np.array([0, 0, 1, 2, 2], "u2")))
    got, _ = import_pprof(memoryview(gzip.decompress(written(profile, "pprof"))), "t")

    def rows(p: Profile) -> Counter[tuple[object, ...]]:
        made: Counter[tuple[object, ...]] = Counter()
        s = p.samples
        for row in range(len(s)):
            stack = tuple((p.frames.name[f], p.frames.source[f]) for f in p.stacks[int(s.stack[row])])
            columns = (int(c[row]) for c in (s.hop_dir, s.hop_depth, s.lateness, s.context))
            made[stack, p.runs[s.run[row]].scenario, int(s.run[row]), *columns] += int(s.count[row])
        return made

    assert [r.scenario for r in got.runs] == ["host", "veth-bridge", "veth-bridge"]
    assert rows(got) == rows(profile)


def test_pprof_round_trip_keeps_events_and_units_apart() -> None:
    plain = sample_profile()
    events = (
        Event("cpu-clock", "ns"),
        Event("cycles", "cycles"),
        Event("cache-misses", "misses"),
        Event("net:x", "count"),
    )
    samples = replace(plain.samples, event=np.array([0, 1, 2, 3, 3], "u1"), weight=np.array([5e6, 3e9, 23, 2, 3]))
    profile = plain.with_(events=events, samples=samples)
    got, _ = import_pprof(memoryview(gzip.decompress(written(profile, "pprof"))), "t")

    def totals(p: Profile) -> dict[tuple[str, str], tuple[float, int]]:
        return {
            (e.name, e.unit): (
                float(p.samples.weight[p.samples.event == n].sum()),
                int(p.samples.count[p.samples.event == n].sum()),
            )
            for n, e in enumerate(p.events)
        }

    assert totals(got) == totals(profile)


@pytest.mark.parametrize("unit", ["ns", "misses", "count"])
def test_folded_round_trip_keeps_weights_fractions_and_kernel_marks(unit: str) -> None:
    profile = sample_profile()
    weight = np.array([23.5, 1, 4, 2.25, 3])
    profile = profile.with_(events=(Event("e", unit),), samples=replace(profile.samples, weight=weight))
    raw = written(profile, "folded", value="weight", marks=True)
    assert written(profile, "raw", value="weight", marks=True) == raw
    got, damaged = import_folded(memoryview(raw), "t")
    assert not damaged
    assert float(got.samples.weight.sum()) == 33.75
    kinds = {n.partition(" (")[0]: int(k) for n, k in zip(got.frames.name, got.frames.kind, strict=True)}
    assert kinds["udp_rcv"] == kinds["veth_xmit"] == kinds["bpf_prog_x"] == FrameKind.KERNEL
    assert kinds["main"] == kinds["work"] == FrameKind.UNKNOWN  # folded text cannot say that code is not the kernel's
    by_name = {tuple(n.partition(" (")[0] for n, _, _ in stack): v for stack, v in by_stack(got).items()}
    assert by_name == {tuple(n for n, _, _ in stack): v for stack, v in by_stack(profile).items()}


@pytest.mark.parametrize(("unit", "back"), [("ns", ("cpu-clock", "ns")), ("count", ("samples", "count"))])
def test_speedscope_round_trip_keeps_sources_lines_and_the_kind_of_unit(unit: str, back: tuple[str, str]) -> None:
    profile = sample_profile().with_(events=(Event("e", unit),))
    got, damaged = import_speedscope(memoryview(written(profile, "speedscope")), "t")
    assert not damaged
    assert (got.events[0].name, got.events[0].unit) == back
    assert float(got.samples.weight.sum()) == pytest.approx(33.5e6)
    sources = dict(zip(got.frames.name, got.frames.source, strict=True))
    assert (sources["udp_rcv"], sources["work"]) == ("net/ipv4/udp.c:12", "work.py:7")
    assert {t.comm for t in got.tasks} == {t.comm for t in profile.tasks}


def test_pprof_of_others_with_inlined_functions_and_unpacked_numbers() -> None:
    message = PprofMessage()
    message.string_table.extend(["", "cpu", "nanoseconds", "outer", "inlined", "a.go", "samples", "count"])
    message.sample_type.add(type=6, unit=7)
    message.sample_type.add(type=1, unit=2)
    message.function.add(id=1, name=3, filename=5)
    message.function.add(id=2, name=4, filename=5)
    location = message.location.add(id=9, address=0x1000)
    location.line.add(function_id=2, line=4)
    location.line.add(function_id=1, line=8)
    message.sample.add(location_id=[9], value=[3, 30_000_000])
    got, damaged = import_pprof(memoryview(message.SerializeToString()), "t")
    assert not damaged
    assert [e.name for e in got.events] == ["cpu"]
    assert (got.samples.count.tolist(), got.samples.weight.tolist()) == ([3], [30e6])
    assert [got.frames.name[f] for f in got.stacks[0]] == ["inlined", "outer"]
    assert got.frames.source == ("a.go:4", "a.go:8")


# --- Firefox, tables, pyperf ----------------------------------------------------------------------------------


def test_firefox_tables_are_whole_and_times_add_up() -> None:
    data = json.loads(written(sample_profile(), "firefox"))
    assert data["meta"]["preprocessedProfileVersion"] == 47
    total = 0.0
    for thread in data["threads"]:
        for name in ("samples", "stackTable", "frameTable", "funcTable", "resourceTable", "markers", "nativeSymbols"):
            table = thread[name]
            lengths = {len(v) for v in table.values() if isinstance(v, list)}
            assert lengths == {table["length"]}, name
        _indices_fit(thread, len(data["meta"]["categories"]))
        assert thread["samples"]["time"] == sorted(thread["samples"]["time"])
        assert thread["samples"]["weightType"] == "tracing-ms"
        total += sum(thread["samples"]["weight"])
    assert total == pytest.approx(33.5)


def _indices_fit(thread: dict[str, Any], categories: int) -> None:
    stacks, frames, funcs = thread["stackTable"], thread["frameTable"], thread["funcTable"]
    for stack in thread["samples"]["stack"]:
        assert stack is None or 0 <= stack < stacks["length"]
    for index, prefix in enumerate(stacks["prefix"]):
        assert prefix is None or 0 <= prefix < index
    assert all(0 <= f < frames["length"] for f in stacks["frame"])
    assert all(0 <= f < funcs["length"] for f in frames["func"])
    assert all(0 <= c < categories for c in [*stacks["category"], *frames["category"]])
    assert all(0 <= n < len(thread["stringArray"]) for n in funcs["name"])
    assert all(-1 <= r < thread["resourceTable"]["length"] for r in funcs["resource"])


def test_firefox_profilers_own_reader_finds_threads_functions_and_time(tmp_path: Path) -> None:
    need("node")
    program = npm("@firefox-devtools/profiler-cli@0.10.0") / "dist" / "profiler-cli.js"
    file = tmp_path / "p.json"
    file.write_bytes(written(sample_profile(), "firefox"))
    with tempfile.TemporaryDirectory(prefix="ff") as sessions:  # a socket's path must be short

        def ask(*words: str) -> subprocess.CompletedProcess[str]:
            environment = {**os.environ, "PROFILER_CLI_SESSION_DIR": sessions}
            call = ["node", str(program), *words]
            return subprocess.run(call, capture_output=True, text=True, timeout=60, env=environment)

        loaded = ask("load", str(file))
        daemon = re.search(r"running as pid (\d+)", loaded.stderr + loaded.stdout)
        try:
            for _ in range(20):  # it gives its daemon half a second to start, which a busy machine exceeds
                if loaded.returncode == 0:
                    break
                time.sleep(0.5)
                loaded = ask("profile", "info")
            assert loaded.returncode == 0, loaded.stderr + loaded.stdout
            totals: Counter[str] = Counter()
            for number in range(4):
                told = ask("thread", "samples", "--thread", f"t-{number}", "--include-idle", "--json")
                for each in json.loads(told.stdout)["topFunctionsByTotal"]:
                    totals[each["name"]] += each["selfSamples"]
        finally:
            if ask("stop").returncode and daemon:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(daemon[1]), signal.SIGTERM)
    assert totals["[kernel.kallsyms]!udp_rcv"] == pytest.approx(26.0)
    assert totals["[veth]!veth_xmit"] == pytest.approx(1.0)
    assert totals["[bpf]!bpf_prog_x"] == pytest.approx(2.5)


def test_csv_rows_and_formulas_made_harmless() -> None:
    profile = sample_profile()
    rows = list(csv.DictReader(io.StringIO(written(profile, "csv").decode())))
    assert len(rows) == 5
    assert rows[0]["namespace"] == "c0"
    assert rows[0]["context"] == "softirq"
    assert rows[0]["stack"].split(";")[-1] == "udp_rcv (net/ipv4/udp.c:12)"
    assert sum(int(r["count"]) for r in rows) == 33
    bad = profile.with_(tasks=tuple(type(t)(t.tgid, t.pid, "=cmd()") for t in profile.tasks))
    assert all(r["comm"] == "'=cmd()" for r in csv.DictReader(io.StringIO(written(bad, "csv").decode())))


def test_parquet_is_read_by_duckdb(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    file = tmp_path / "p.parquet"
    file.write_bytes(written(sample_profile(), "parquet"))
    with duckdb.connect() as connection:
        query = "SELECT namespace, sum(count)::INT, any_value(stack[1]) FROM read_parquet(?) GROUP BY 1 ORDER BY 1"
        got = connection.execute(query, [str(file)]).fetchall()
    assert [(n, c) for n, c, _ in got] == [("", 2), ("c0", 26), ("net:[4026532001]", 5)]


def test_pyperf_reads_the_runs(tmp_path: Path) -> None:
    import pyperf

    file = tmp_path / "p.json"
    file.write_bytes(written(sample_profile(), "pyperf"))
    suite = pyperf.BenchmarkSuite.load(str(file))
    assert sorted(suite.get_benchmark_names()) == [
        "host: latency",
        "host: throughput (Mbit/s)",
        "veth-bridge: latency",
        "veth-bridge: throughput (Mbit/s)",
    ]
    rate = suite.get_benchmark("veth-bridge: throughput (Mbit/s)")
    assert rate.get_values() == (530.5, 540.0)
    assert suite.get_benchmark("veth-bridge: latency").get_values() == pytest.approx((30e-6,))
    with pytest.raises(EvidenceError):
        written(Profile(), "pyperf")


# --- all ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", sorted(set(FORMATS) - {"pyperf"}))
def test_an_empty_profile_is_a_valid_file(form: str) -> None:
    raw = written(Profile(), form)
    if form in ("speedscope", "chrometrace", "firefox"):
        json.loads(raw)


@pytest.mark.parametrize("form", sorted(set(FORMATS) - {"pyperf"}))
def test_a_recorded_profile_can_be_written(form: str) -> None:
    profile = import_file(REPO / "tests" / "data" / "importers" / "udp_rr.data")
    assert len(written(profile, form)) > 100


def test_options_without_meaning_are_refused() -> None:
    with pytest.raises(UsageError, match="no use for --root"):
        written(sample_profile(), "pprof", roots=("comm",))
    with pytest.raises(UsageError, match="no such format"):
        written(sample_profile(), "xml")
    with pytest.raises(UsageError, match="no scenario x"):
        written(sample_profile(), "folded", scenario="x")
    with pytest.raises(UsageError, match="no event x"):
        written(sample_profile(), "pprof", event="x")
    assert Context.SOFTIRQ.name.lower() == "softirq"
