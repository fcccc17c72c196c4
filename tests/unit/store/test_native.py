"""The .nsprof file: nothing lost, nothing half written, nothing believed."""

from __future__ import annotations

import io
import json
import os
import resource
import stat
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsprof import store
from nsprof.errors import NsprofError, ProfileFormatError
from nsprof.model.builder import ProfileBuilder
from nsprof.model.profile import (
    Context,
    Counter,
    Device,
    Event,
    LedgerLine,
    Losses,
    Namespace,
    ProbeInfo,
    Profile,
    Run,
    Samples,
    Task,
    Value,
)
from nsprof.store import native, possible, tables
from tests.profiles import bench_profile, big_profile
from tests.support import REPO


def same(one: Profile, two: Profile) -> None:
    """Every field of both profiles is equal."""
    for name in (f.name for f in fields(Profile)):
        a, b = getattr(one, name), getattr(two, name)
        if name in ("samples", "stacks", "frames"):
            for column in a.__dataclass_fields__:
                left, right = getattr(a, column), getattr(b, column)
                if isinstance(left, np.ndarray):
                    assert left.dtype == right.dtype, column
                    assert np.array_equal(left, right), column
                else:
                    assert left == right, column
        else:
            assert a == b, name


def rewritten(source: Path, target: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """A copy of a profile file with its members changed."""
    with zipfile.ZipFile(source) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(target, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return target


def table_change(name: str, edit: Callable[[pa.Table], pa.Table]) -> Callable[[dict[str, bytes]], None]:
    def change(members: dict[str, bytes]) -> None:
        out = io.BytesIO()
        pq.write_table(edit(pq.read_table(io.BytesIO(members[f"{name}.parquet"]))), out)
        members[f"{name}.parquet"] = out.getvalue()

    return change


def set_column(name: str, values: Any) -> Callable[[pa.Table], pa.Table]:
    def edit(table: pa.Table) -> pa.Table:
        data = np.full(table.num_rows, values) if np.isscalar(values) else values
        return table.set_column(table.column_names.index(name), name, pa.array(data))

    return edit


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "p.nsprof"
    store.save(bench_profile(hop_runs=1), path)
    return path


def test_what_was_saved_is_loaded(saved: Path) -> None:
    same(bench_profile(hop_runs=1), store.load(saved))


def test_an_empty_profile_survives(tmp_path: Path) -> None:
    store.save(Profile(), tmp_path / "empty.nsprof")
    same(Profile(), store.load(tmp_path / "empty.nsprof"))


@pytest.mark.parametrize(
    ("table", "row"),
    [
        ("events", Event),
        ("namespaces", Namespace),
        ("devices", Device),
        ("tasks", Task),
        ("counters", Counter),
        ("ledger", LedgerLine),
        ("probes", ProbeInfo),
        ("samples", Samples),
    ],
)
def test_every_field_of_the_model_has_a_column(table: str, row: Any) -> None:
    names = set(row._fields) if issubclass(row, tuple) else {f.name for f in fields(row)}
    assert names <= set(tables.SCHEMAS[table])


def test_every_field_of_a_run_is_stored(tmp_path: Path) -> None:
    full = Run(
        scenario="s",
        kernel="6.1",
        label="a label",
        started=1.5,
        duration_s=2.5,
        cpus=4,
        cpu_busy_s={0: 1.25, 3: 0.5},
        lost_by_cpu={0: 0.0, 3: 0.25},
        cpu_steal_s=0.125,
        dut_cpus=(0,),
        remote_cpus=(3,),
        denominators={"skb": 3.0, "second": 2.5},
        reference="w0",
        values=(Value("throughput", 1.5, "Mbit/s", "netperf"), Value("odd", float("inf"), "")),
        warnings=("one", "two"),
        losses=Losses(10, 9, 1, 2, 3, 4, 5),
        probes_on=("hop", "ledger"),
        own_cpu_s=0.25,
        command=("a b", "", "c'\"d"),
        status=3,
        failed="why",
        warmup=True,
    )
    plain = Run(scenario="")
    for field in fields(Run):
        assert getattr(full, field.name) != getattr(plain, field.name), f"{field.name} is not covered by this test"
    store.save(Profile(runs=(full, plain)), tmp_path / "p.nsprof")
    assert store.load(tmp_path / "p.nsprof").runs == (full, plain)


names = st.text(st.characters(codec="utf-8"), max_size=20)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(names, max_size=5), max_size=8), st.data())
def test_any_stacks_and_samples_survive(stacks: list[list[str]], data: st.DataObject) -> None:
    builder = ProfileBuilder()
    builder.event(Event("e", "ns"))
    numbers = [builder.stack([builder.frame(n) for n in stack]) for stack in stacks]
    builder.runs.append(Run("s"))
    rows = (
        data.draw(st.lists(st.tuples(st.sampled_from(numbers), st.floats(0, 1e300)), max_size=20)) if numbers else []
    )
    builder.samples(Samples.build(len(rows), stack=[r[0] for r in rows], weight=[r[1] for r in rows], count=1))
    buffer = io.BytesIO()
    native._write(native._members(builder.build()), buffer)
    buffer.seek(0)
    same(builder.build(), native._read(buffer, "memory"))


def test_names_that_are_no_text_are_kept_readable(tmp_path: Path) -> None:
    builder = ProfileBuilder()
    builder.task(1, 1, b"a\xff<script>\x1b".decode("utf-8", "surrogateescape"))
    builder.task(2, 2, "\ud800")
    store.save(builder.build(), tmp_path / "p.nsprof")
    assert [t.comm for t in store.load(tmp_path / "p.nsprof").tasks] == ["a\\xff<script>\x1b", "\\ud800"]


def test_a_table_written_beside_another_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = bench_profile()
    store.save(profile, tmp_path / "one")
    monkeypatch.setattr(native, "_MANY", 0)
    store.save(profile, tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    same(store.load(tmp_path / "two"), profile)


def test_equal_profiles_are_equal_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        store.save(bench_profile(), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_file_is_private_and_kept_when_asked(saved: Path) -> None:
    before = saved.read_bytes()
    store.save(Profile(), saved, keep_old=True)
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    assert saved.with_name("p.nsprof.old").read_bytes() == before
    assert sorted(p.name for p in saved.parent.iterdir()) == ["p.nsprof", "p.nsprof.old"]


def test_a_full_disk_leaves_the_earlier_file(saved: Path) -> None:
    before = saved.read_bytes()
    code = (
        "import resource, signal, sys\n"
        "from nsprof import store\nfrom tests.profiles import bench_profile\n"
        "profile = bench_profile(runs=4)\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "from nsprof.errors import NsprofError\n"
        "try:\n    store.save(profile, sys.argv[1], keep_old=True)\n"
        "except NsprofError as error:\n    sys.stderr.write(error.message); sys.exit(7)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(saved)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 7, done.stderr
    assert str(saved) in done.stderr
    assert "\n" not in done.stderr
    assert saved.read_bytes() == before
    assert [p.name for p in saved.parent.iterdir()] == ["p.nsprof"]


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(NsprofError, match="nowhere"):
        store.save(Profile(), tmp_path / "nowhere" / "p.nsprof")


def test_every_truncation_is_an_error_in_words(saved: Path, tmp_path: Path) -> None:
    whole = saved.read_bytes()
    short = tmp_path / "short.nsprof"
    for length in [0, 1, 3, 4, 30, 100, *range(1000, len(whole), len(whole) // 20), len(whole) - 1]:
        short.write_bytes(whole[:length])
        with pytest.raises(ProfileFormatError, match=r"short\.nsprof"):
            store.load(short)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_damaged_byte_is_a_traceback(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    whole = bytearray(_file())
    for _ in range(data.draw(st.integers(1, 6))):
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        native._read(io.BytesIO(bytes(whole)), "memory")
    except ProfileFormatError as error:
        assert "\n" not in error.message


_FILE: list[bytes] = []


def _file() -> bytes:
    if not _FILE:
        buffer = io.BytesIO()
        native._write(native._members(bench_profile(runs=1)), buffer)
        _FILE.append(buffer.getvalue())
    return _FILE[0]


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("samples", "stack", np.uint32(9999)),
        ("samples", "run", np.uint16(99)),
        ("samples", "event", np.uint8(9)),
        ("samples", "hop_ns", np.uint32(77)),
        ("samples", "hop_dev", np.uint32(77)),
        ("samples", "task", np.uint32(77)),
        ("samples", "context", np.uint8(99)),
        ("samples", "lateness", np.uint8(3)),
        ("samples", "weight", -1.0),
        ("samples", "weight", float("nan")),
        ("devices", "namespace", np.int32(-1)),
        ("devices", "namespace", np.int32(9)),
        ("counters", "run", np.int32(99)),
        ("frames", "kind", np.uint8(9)),
        ("denominators", "value", float("-inf")),
        ("run_cpus", "run", np.int32(-1)),
        ("runs", "own_cpu_s", -1.0),
        ("runs", "own_cpu_s", 1e9),
        ("runs", "own_cpu_s", float("nan")),
        ("runs", "cpu_steal_s", float("inf")),
        ("runs", "duration_s", -1.0),
        ("runs", "duration_s", float("nan")),
        ("runs", "duration_s", float("inf")),
        ("runs", "started", float("nan")),
        ("runs", "started", 1e300),
        ("runs", "cpus", np.int32(-2)),
        ("runs", "status", np.int32(1 << 20)),
        ("runs", "run", np.int32(0)),
        ("runs", "seen", np.int64(-5)),
        ("runs", "expected", np.int64(-5)),
        ("runs", "lost_map_full", np.int64(-2)),
        ("run_cpus", "busy_s", float("inf")),
        ("run_cpus", "busy_s", -0.5),
        ("run_cpus", "busy_s", 1e6),
        ("run_cpus", "side", "neither"),
        ("denominators", "value", -3.0),
        ("events", "kind", "foo"),
        ("events", "period", np.int64(-1)),
        ("events", "frequency_hz", np.int64(-499)),
        ("counters", "delta", float("nan")),
        ("counters", "delta", float("inf")),
        ("counters", "start", 1e300),
        ("counters", "scope", "elsewhere"),
        ("devices", "mtu", np.int64(-1500)),
        ("namespaces", "role", "owner"),
        ("samples", "count", np.uint64(0)),
        ("samples", "count", np.uint64(2**63)),
        ("samples", "weight", 1e308),
    ],
)
def test_numbers_that_lead_nowhere_are_refused(
    saved: Path, tmp_path: Path, table: str, column: str, value: Any
) -> None:
    bad = rewritten(saved, tmp_path / "bad", table_change(table, set_column(column, value)))
    with pytest.raises(ProfileFormatError, match="damaged"):
        store.load(bad)


def test_an_impossible_number_is_told_with_its_place_and_what_must_stand_there(saved: Path, tmp_path: Path) -> None:
    number = len(store.load(saved).runs)
    costs = np.where(np.arange(number) == 2, -1.0, 0.1)
    bad = rewritten(saved, tmp_path / "bad", table_change("runs", set_column("own_cpu_s", costs)))
    with pytest.raises(ProfileFormatError) as error:
        store.load(bad)
    words = "damaged: runs.own_cpu_s of run 3 is -1.0: must be a finite number, 0 or more"
    assert error.value.message == f"{bad}: {words}"
    counts = store.load(saved).samples.count.copy()
    counts[5] = 0
    bad = rewritten(saved, tmp_path / "bad", table_change("samples", set_column("count", counts)))
    with pytest.raises(ProfileFormatError, match=r"samples.count in row 5 \(run \d+\) is 0: must be 1 or more"):
        store.load(bad)


def test_every_number_of_a_table_has_a_rule_or_is_checked_where_it_leads() -> None:
    """A new column cannot be forgotten: it has a rule, or it is unsigned, leads to a row, or is kept as it is."""
    leading = {"run", "namespace", "device", "stack"}
    kept = {("run_values", "value"), ("runs", "warmup")}
    for table, columns in tables.SCHEMAS.items():
        for column, kind in columns.items():
            signed = pa.types.is_signed_integer(kind) or pa.types.is_floating(kind)
            assert not signed or column in leading or (table, column) in kept or column in possible.RULES[table], (
                f"{table}.{column}"
            )
    for table, rules in possible.RULES.items():
        assert set(rules) <= set(tables.SCHEMAS[table])
    for table, words in possible.WORDS.items():
        assert set(words) <= set(tables.SCHEMAS[table])


def test_what_is_not_known_is_no_damage(tmp_path: Path) -> None:
    """An import that knows no time, no CPUs and no losses; a command that a signal ended; a gauge that fell."""
    run = Run("s", status=-9, cpu_busy_s={0: 0.0}, losses=Losses(-1, -1, -1, -1, -1, -1, -1), dut_cpus=(1,))
    fell = Counter(0, "netns", 0, "", -1, "sockstat.sockets.used", 3.0, -2.0)
    store.save(Profile(runs=(run,), counters=(fell,), tasks=(Task(-1, -1, ""),)), tmp_path / "p")
    again = store.load(tmp_path / "p")
    assert (again.runs[0].losses.seen, again.counters[0].delta, again.runs[0].status) == (-1, -2.0, -9)


def test_a_member_that_is_there_twice_is_named(saved: Path) -> None:
    with zipfile.ZipFile(saved, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("runs.parquet", b"")
    with pytest.raises(ProfileFormatError, match=r"damaged: member 'runs\.parquet' twice"):
        store.load(saved)


def test_a_stack_of_frames_that_are_not_there_is_refused(saved: Path, tmp_path: Path) -> None:
    def edit(table: pa.Table) -> pa.Table:
        lists = pa.array([[99999]] * table.num_rows, pa.large_list(pa.uint32()))
        return table.set_column(1, "frames", lists)

    with pytest.raises(ProfileFormatError, match="frame 99999"):
        store.load(rewritten(saved, tmp_path / "bad", table_change("stacks", edit)))


def test_missing_tables_columns_and_cells_are_named(saved: Path, tmp_path: Path) -> None:
    for change, words in [
        (lambda m: m.pop("tasks.parquet"), "no table 'tasks'"),
        (table_change("samples", lambda t: t.drop_columns(["lateness"])), "no column 'lateness'"),
        (table_change("tasks", set_column("comm", pa.nulls(2, pa.string()))), "empty cells"),
        (lambda m: m.update({"tasks.parquet": b"PAR1"}), "tasks.parquet"),
        (lambda m: m.update({"metadata.json": b"{"}), "metadata.json"),
        (lambda m: m.update({"metadata.json": b"[1]"}), "not a .nsprof file"),
    ]:
        with pytest.raises(ProfileFormatError, match=words):
            store.load(rewritten(saved, tmp_path / "bad", change))  # type: ignore[arg-type]


def _with_version(version: Any) -> Callable[[dict[str, bytes]], None]:
    def change(members: dict[str, bytes]) -> None:
        members["metadata.json"] = json.dumps({**json.loads(members["metadata.json"]), "version": version}).encode()

    return change


def test_a_newer_file_is_refused_in_words(saved: Path, tmp_path: Path) -> None:
    newer = rewritten(saved, tmp_path / "newer", _with_version(store.VERSION + 1))
    with pytest.raises(ProfileFormatError, match=f"version {store.VERSION + 1}.*reads up to") as caught:
        store.load(newer)
    assert "newer nsprof" in caught.value.hint
    for nonsense in ("1", 0, -1, None, True):
        with pytest.raises(ProfileFormatError, match="damaged"):
            store.load(rewritten(saved, tmp_path / "odd", _with_version(nonsense)))


def test_an_older_file_is_upgraded_step_by_step(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def one_to_two(found: dict[str, pa.Table], meta: dict[str, Any]) -> tuple[dict[str, pa.Table], dict[str, Any]]:
        return found, {**meta, "seen": ["1->2"]}

    def two_to_three(found: dict[str, pa.Table], meta: dict[str, Any]) -> tuple[dict[str, pa.Table], dict[str, Any]]:
        return found, {**meta, "seen": [*meta["seen"], "2->3"]}

    now = store.VERSION
    monkeypatch.setattr(native, "VERSION", now + 2)
    monkeypatch.setattr(native, "UPGRADES", {now: one_to_two, now + 1: two_to_three})
    assert store.load(saved).meta["seen"] == ["1->2", "2->3"]


def test_a_file_of_version_1_is_read_and_knows_no_losses_by_cpu(saved: Path, tmp_path: Path) -> None:
    def older(members: dict[str, bytes]) -> None:
        table_change("run_cpus", lambda table: table.drop_columns(["lost_share"]))(members)
        _with_version(1)(members)

    profile = store.load(saved)
    told = tuple(replace(run, lost_by_cpu={0: 0.25}) for run in profile.runs)
    store.save(profile.with_(runs=told), saved)
    old = store.load(rewritten(saved, tmp_path / "old", older))
    now = store.load(saved)
    assert [run.cpu_busy_s for run in old.runs] == [run.cpu_busy_s for run in now.runs]
    assert any(run.lost_by_cpu for run in now.runs) and not any(run.lost_by_cpu for run in old.runs)


def test_text_that_is_none_is_refused(saved: Path, tmp_path: Path) -> None:
    def edit(table: pa.Table) -> pa.Table:
        raw = pa.array([b"\xff\xfe"] * table.num_rows, pa.binary())
        text = pa.Array.from_buffers(pa.string(), table.num_rows, raw.buffers())
        return table.set_column(table.column_names.index("comm"), "comm", text)

    with pytest.raises(ProfileFormatError, match="damaged"):
        store.load(rewritten(saved, tmp_path / "bad", table_change("tasks", edit)))


def test_bombs_are_refused_before_they_unfold(saved: Path, tmp_path: Path) -> None:
    bomb = tmp_path / "bomb"
    with zipfile.ZipFile(saved) as archive:
        meta = archive.read("metadata.json")
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("metadata.json", meta)
        with archive.open("samples.parquet", "w", force_zip64=True) as member:
            for _ in range(64):
                member.write(bytes(1 << 20))
    with pytest.raises(ProfileFormatError, match="1,000-fold"):
        store.load(bomb)


def test_a_table_that_unfolds_without_end_is_refused(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One value a million times takes a few hundred bytes in Parquet.
    wide = pa.table({"task": pa.array(np.zeros(3_000_000, "i4")), "comm": pa.array(["x" * 100] * 3_000_000)})
    bomb = rewritten(saved, tmp_path / "bomb", table_change("tasks", lambda _: wide))
    assert bomb.stat().st_size < 1_000_000
    monkeypatch.setattr(native, "MAX_TABLE_BYTES", 10_000_000)
    with pytest.raises(ProfileFormatError, match="unfolds to"):
        store.load(bomb)


def test_other_files_are_not_profiles(tmp_path: Path) -> None:
    for content in (b"", b"hello", b"PK\x03\x04 no zip", b"\x7fELF" + bytes(100)):
        (tmp_path / "x").write_bytes(content)
        assert not store.is_native(tmp_path / "x")
        with pytest.raises(ProfileFormatError):
            store.load(tmp_path / "x")
    with zipfile.ZipFile(tmp_path / "z", "w") as archive:
        archive.writestr("hello.txt", "x")
    with pytest.raises(ProfileFormatError, match="zip archive, but not"):
        store.load(tmp_path / "z")


def test_open_any_says_what_is_wrong(tmp_path: Path, saved: Path) -> None:
    same(store.open_any(saved), bench_profile(hop_runs=1))
    with pytest.raises(NsprofError, match="no such file"):
        store.open_any(tmp_path / "missing")
    with pytest.raises(ProfileFormatError, match="directory"):
        store.open_any(tmp_path)


def test_file_type_is_told_by_the_first_bytes(saved: Path) -> None:
    head = saved.read_bytes()[: 38 + len(store.MAGIC)]
    assert head[30:38] == b"mimetype"
    assert head[38:] == store.MAGIC
    assert store.is_native(saved)


def _mixed() -> Profile:
    """All that a report leaves out: idle, the remote end's CPU, other tasks, a warm-up, a failure, a run with probes;
    and a function that only one of the runs met."""
    profile = bench_profile(runs=4, hop_runs=1, idle_s=2.0)
    runs = list(profile.runs)
    runs[0] = replace(runs[0], warmup=True)
    runs[3] = replace(runs[3], failed="it broke")
    samples = profile.samples
    rare = int(samples.stack[samples.run == 4].min())
    samples = samples.take((samples.stack != rare) | (samples.run == 4))
    foreign = samples.take(np.flatnonzero(samples.context == Context.TASK)[:40])
    ones = np.ones(len(foreign), "u4")
    profile = profile.with_(namespaces=(*profile.namespaces, Namespace(4026539999, 9)))
    others = replace(foreign, task_ns=ones * np.uint32(len(profile.namespaces)))
    remote = replace(foreign, cpu=ones.astype("u2"))
    columns = {
        name: np.concatenate([getattr(each, name) for each in (samples, others, remote)])
        for name in Samples.__dataclass_fields__
    }
    return profile.with_(samples=Samples(**columns), runs=tuple(runs))


def _reported(file: str) -> dict[tuple[str, str], float]:
    """(scenario, function) -> ns/transaction as `nsprof report` has them."""
    found: dict[tuple[str, str], float] = {}
    for name in ("host", "veth-bridge"):
        words = [sys.executable, "-m", "nsprof", "report", file, "--scenario", name, "--limit", "0", "--json"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
        for row in json.loads(done.stdout)["scenarios"][0]["functions"]:
            if row["self_cost"]:
                found[name, row["name"]] = row["self_cost"]
    return found


def _without_suffix(rows: Iterable[tuple[str, str, float]]) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for scenario, name, cost in rows:
        key = scenario, name.partition(".")[0]
        found[key] = found.get(key, 0.0) + cost
    return found


def test_the_recipes_of_the_documentation_count_as_a_report_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    duckdb = pytest.importorskip("duckdb")
    monkeypatch.chdir(tmp_path)
    store.save(_mixed(), "profile.nsprof")
    text = (REPO / "docs" / "file-format.md").read_text()
    known = _reported("profile.nsprof")
    assert len(known) > 15
    with zipfile.ZipFile("profile.nsprof") as archive:
        archive.extractall("tables")
    query = text.split('duckdb -c "')[1].split('"\n```')[0]
    assert query.endswith(" LIMIT 20")
    with duckdb.connect() as database:
        rows = database.execute(query.removesuffix(" LIMIT 20")).fetchall()
    assert _without_suffix(rows) == pytest.approx(known)
    code = text.split("```python\n")[1].split("```")[0]
    code += "import json; print(json.dumps([[*k, v] for k, v in ns.items()]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert _without_suffix(json.loads(done.stdout.splitlines()[-1])) == pytest.approx(known)


def test_the_documentation_names_every_table_and_column() -> None:
    text = (REPO / "docs" / "file-format.md").read_text()
    for table, columns in tables.SCHEMAS.items():
        for word in (table, *columns):
            assert f"`{word}`" in text, f"{table}.{word}"


@pytest.mark.slow
def test_a_million_rows_take_seconds_and_little_memory(tmp_path: Path) -> None:
    profile = big_profile(1_000_000)
    start = time.process_time()
    store.save(profile, tmp_path / "big")
    loaded = store.load(tmp_path / "big")
    assert time.process_time() - start < 6  # 0.5 s on an idle core
    assert len(loaded.samples) == 1_000_000
    assert (tmp_path / "big").stat().st_size < 16_000_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4_000_000


def test_sudo_users_get_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    monkeypatch.setenv("SUDO_UID", "12345")
    monkeypatch.setenv("SUDO_GID", "23456")
    store.save(replace(Profile()), tmp_path / "p.nsprof")
    found = (tmp_path / "p.nsprof").stat()
    assert (found.st_uid, found.st_gid) == (12345, 23456)


def test_a_profile_is_written_and_read_without_pandas(tmp_path: Path) -> None:
    """Arrow's own ways to Python lists and numpy import pandas, a fifth of a second at every command."""
    script = (
        "import sys; from nsprof import store; from tests.profiles import bench_profile; "
        "store.save(bench_profile(), sys.argv[1]); store.load(sys.argv[1]); print('pandas' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "p.nsprof")],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_numbers_that_a_column_cannot_hold_are_refused() -> None:
    from nsprof.store.tables import _array

    assert _array(np.array([1, 2**32 - 1]), pa.uint32()).to_pylist() == [1, 2**32 - 1]
    assert _array(["a", "", "\udcff\u00e9"], pa.string()).to_pylist() == ["a", "", "\\xff\u00e9"]
    assert _array(np.broadcast_to(np.float64(1.5), (3,)), pa.float64()).to_pylist() == [1.5] * 3
    assert _array([True, False] * 9, pa.bool_()).to_pylist() == [True, False] * 9
    for numbers in (np.array([2**32]), np.array([-1]), [2**32], [-1]):
        with pytest.raises((ValueError, OverflowError)):
            _array(numbers, pa.uint32())
