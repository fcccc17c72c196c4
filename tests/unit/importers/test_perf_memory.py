"""What perf.data tells of memory and branches, by function and line: known files, known tables."""

from __future__ import annotations

import csv
import io
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsprof.cli.main import run
from nsprof.errors import EvidenceError
from nsprof.model.profile import Frames, Profile
from nsprof.store.importers import import_file
from nsprof.store.importers.perfdata import header as h
from nsprof.store.importers.perfdata import import_perf_data
from nsprof.store.importers.perfdata.memory import LEVELS, NO_WEIGHT, Accesses, facts, tables
from nsprof.store.importers.symbols import Kallsyms
from tests.support import need
from tests.unit.cli.json_schema import check, interfaces
from tests.unit.importers.perfdata_file import KERNEL, Event, PerfData, Sample

BASE = 0xFFFFFFFF81000000
F, G = BASE + 0x1000, BASE + 0x2000
DATA = 0xFFFFFFFF82000040
KALLSYMS = (
    f"{BASE:016x} T _text\n{F:016x} T f\n{G:016x} t g\tmodule_g\n{BASE + 0x3000:016x} T end\n{DATA:016x} D counter\n"
)
KIND = h.IDENTIFIER | h.IP | h.TID | h.TIME | h.ADDR | h.CPU | h.PERIOD | h.CALLCHAIN | h.WEIGHT | h.DATA_SRC


def source(
    *, op: int = 2, level: int = 0, number: int = 0, snoop: int = 2, tlb: int = 2, lock: int = 1, remote: int = 0
) -> int:
    """union perf_mem_data_src; `level` are bits of PERF_MEM_LVL with hit (2) or miss (4)."""
    return op | level << 5 | snoop << 19 | lock << 24 | tlb << 26 | number << 33 | remote << 37


L1, L3_HITM = source(level=0xA, number=1), source(level=0x42, number=3, snoop=0x10)
STORE_MISSED = source(op=4, level=0xC, number=1, tlb=4, lock=2)
REMOTE_RAM = source(level=0x102, number=13, remote=1)
NOTHING = source(op=1, level=1)


def at(ip: int, **more: Any) -> Sample:
    return Sample(ip=ip, chain=[KERNEL, ip], **more)


def read(made: PerfData, tmp_path: Path) -> Profile:
    (tmp_path / "kallsyms").write_text(KALLSYMS)
    profile, damaged = import_perf_data(memoryview(made.file()), "test.data", kallsyms=tmp_path / "kallsyms")
    assert not damaged
    return profile


def memory_file(order: str = "<") -> PerfData:
    """Five accesses of f (one of them of no address), two of g, and a sample that tells of none."""
    made = PerfData([Event(KIND, ids=[1], config=3), Event(KIND, ids=[2], config=4)], order)
    made.sample(at(F, weight=4, data_source=L1, address=DATA + 8, cpu=0))
    made.sample(at(F + 4, weight=90, data_source=L3_HITM, address=DATA + 0x18, cpu=1))
    made.sample(at(F, weight=300, data_source=REMOTE_RAM, address=0xFFFF888000001000, cpu=1))
    made.sample(at(F, weight=6, data_source=L1, address=0, cpu=1))
    made.sample(at(F, weight=9, data_source=NOTHING, address=0, cpu=1))
    made.sample(at(G, weight=50, data_source=STORE_MISSED, address=DATA + 8, cpu=0, id=2), made.events[1])
    made.sample(at(G, weight=10, data_source=STORE_MISSED, address=0x7F0000000010, cpu=0, id=2, pid=10))
    made.sample(at(G, weight=10, data_source=STORE_MISSED, address=0x7F0000000010, cpu=1, id=2, pid=20))
    return made


@pytest.mark.parametrize("order", ["<", ">"])
def test_accesses_are_told_by_function_and_level(order: str, tmp_path: Path) -> None:
    profile = read(memory_file(order), tmp_path)
    first, second = (event.name for event in profile.events)
    table = profile.meta["source"]["accesses_by_function"]
    nothing = {"samples": 0, "weight_sum": 0, "loads": 0, "stores": 0, "hitm": 0, "peer": 0, "tlb_misses": 0}
    nothing |= {"locked": 0, "levels": {}}
    of_f = nothing | {"samples": 4, "weight_sum": 400, "loads": 4, "hitm": 1}
    levels = {
        "L1": {"samples": 2, "weight_sum": 10},
        "L3": {"samples": 1, "weight_sum": 90},
        "remote RAM": {"samples": 1, "weight_sum": 300},
    }
    of_f |= {"function": "f", "module": "", "levels": levels}
    of_g = nothing | {"samples": 3, "weight_sum": 70, "stores": 3, "tlb_misses": 3, "locked": 3}
    of_g |= {"function": "g", "module": "module_g", "levels": {"missed": {"samples": 3, "weight_sum": 70}}}
    others = {"functions": 0, **nothing}
    assert table == {
        first: {"functions": [of_f], "others": others},
        second: {"functions": [of_g], "others": others},
    }
    assert profile.samples.weight.sum() == 8_000  # periods: nothing of this gets into the costs


@pytest.mark.parametrize("order", ["<", ">"])
def test_lines_are_told_by_function_and_a_line_of_two_cpus_with_who_touches_it(order: str, tmp_path: Path) -> None:
    told = read(memory_file(order), tmp_path).meta["source"]
    first, second = told["lines_by_function"].values()
    line = {"address": f"{DATA:#x}", "physical": None, "pid": None, "symbol": "counter"}
    of_f = {"function": "f", "module": "", "samples": 3, "lines": 2, "shared_lines": 1}
    far = {"address": "0xffff888000001000", "physical": None, "pid": None, "symbol": "", "samples": 1}
    assert first["functions"] == [{**of_f, "top_lines": [{**line, "samples": 2}, far]}]
    assert (first["samples"], first["lines"], first["shared_lines"]) == (3, 2, 1)
    # One address in two processes is two lines.
    assert (second["samples"], second["lines"], second["shared_lines"]) == (3, 3, 1)
    assert [(p["pid"], p["samples"]) for p in second["functions"][0]["top_lines"]].count((20, 1)) == 1
    f_part = {"function": "f", "module": "", "samples": 2, "loads": 2, "stores": 0, "cpus": 2, "offsets": [8, 24]}
    g_part = {"function": "g", "module": "module_g", "samples": 1, "loads": 0, "stores": 1, "cpus": 1, "offsets": [8]}
    shared = {**line, "samples": 3, "loads": 2, "stores": 1, "hitm": 1, "peer": 0, "cpus": 2, "cpu_numbers": [0, 1]}
    assert told["shared_lines"] == {
        "lines": [{**shared, "functions": [f_part, g_part]}],
        "others": {"lines": 0, "samples": 0},
    }


def test_a_physical_address_makes_one_line_of_two_processes(tmp_path: Path) -> None:
    made = PerfData([Event(KIND | h.PHYS_ADDR)])
    for pid, cpu in ((10, 0), (20, 1)):
        place = {"address": 0x7F0000000000 + pid * 4096, "physical": 0x123440, "data_source": L1}
        made.sample(at(F, pid=pid, cpu=cpu, **place))
    told = read(made, tmp_path).meta["source"]
    (table,) = told["lines_by_function"].values()
    assert (table["lines"], table["shared_lines"]) == (1, 1)
    assert (told["shared_lines"]["lines"][0]["physical"], told["shared_lines"]["lines"][0]["cpus"]) == ("0x123440", 2)


def test_addresses_without_sources_say_nothing_of_loads(tmp_path: Path) -> None:
    made = PerfData([Event(KIND & ~h.DATA_SRC & ~h.WEIGHT)])
    for cpu in (0, 1):
        made.sample(at(F, cpu=cpu, address=DATA))
    told = read(made, tmp_path).meta["source"]
    assert "accesses_by_function" not in told
    (line,) = told["shared_lines"]["lines"]
    assert (line["samples"], line["loads"], line["stores"], line["hitm"]) == (2, None, None, None)


def test_cpus_that_are_not_told_share_nothing(tmp_path: Path) -> None:
    made = PerfData([Event(KIND & ~h.CPU)])
    for cpu in (0, 1):
        made.sample(at(F, cpu=cpu, address=DATA, data_source=L1))
    told = read(made, tmp_path).meta["source"]
    assert "shared_lines" not in told
    assert next(iter(told["lines_by_function"].values()))["shared_lines"] == 0


def test_more_functions_than_are_kept_are_summed_up() -> None:
    """Against plain Python, at random: what is kept is right, and with the others it makes the whole."""
    random_ = random.Random(5)
    number, functions = 20_000, 450
    column = {name: np.zeros(number, "u8") for name in ("frame", "cpu", "address", "data_source", "weight")}
    column["frame"][:] = [int(functions * random_.random() ** 2) for _ in range(number)]
    column["cpu"][:] = [random_.randrange(4) for _ in range(number)]
    column["address"][:] = [BASE + 64 * random_.randrange(3000) + random_.randrange(64) for _ in range(number)]
    column["data_source"][:] = [random_.choice([L1, L3_HITM, STORE_MISSED, REMOTE_RAM]) for _ in range(number)]
    column["weight"][:] = [random_.choice([NO_WEIGHT, 5, 100]) for _ in range(number)]
    frames = Frames(tuple(f"f{n}" for n in range(functions)), ("",) * functions, np.ones(functions, "u1"))
    event = np.zeros(number, "u1")
    seen = Accesses(event, pid=event, physical=None, **column)
    made = tables(seen, ["e"], frames)
    rows = list(zip(*(c.tolist() for c in column.values()), strict=True))
    samples, weights, hitm = Counter(), Counter(), Counter()
    lines: dict[int, set[int]] = {}
    cpus: dict[int, set[int]] = {}
    for frame, cpu, address, told, weight in rows:
        samples[frame] += 1
        weights[frame] += weight if weight != NO_WEIGHT else 0
        hitm[frame] += told == L3_HITM
        lines.setdefault(frame, set()).add(address >> 6)
        cpus.setdefault(address >> 6, set()).add(cpu)
    shared = {line for line, some in cpus.items() if len(some) > 1}
    table = made["accesses_by_function"]["e"]
    assert len(table["functions"]) == 200
    assert [row["samples"] for row in table["functions"]] == sorted(samples.values(), reverse=True)[:200]
    for row in table["functions"]:
        frame = int(row["function"][1:])
        assert (row["samples"], row["weight_sum"], row["hitm"]) == (samples[frame], weights[frame], hitm[frame])
    whole = [*table["functions"], table["others"]]
    assert table["others"]["functions"] == len(samples) - 200
    assert sum(row["samples"] for row in whole) == number
    assert sum(row["weight_sum"] for row in whole) == sum(weights.values())
    assert sum(level["samples"] for row in whole for level in row["levels"].values()) == number
    table = made["lines_by_function"]["e"]
    assert (table["lines"], table["shared_lines"]) == (len(cpus), len(shared))
    kept = {int(row["function"][1:]) for row in table["functions"]}
    for row in table["functions"]:
        mine = lines[int(row["function"][1:])]
        assert (row["lines"], row["shared_lines"]) == (len(mine), len(mine & shared))
    rest = set().union(*(mine for frame, mine in lines.items() if frame not in kept))
    assert table["others"]["lines"] == len(rest)
    of_lines = made["shared_lines"]
    assert len(of_lines["lines"]) == 200
    assert of_lines["others"]["lines"] == len(shared) - 200
    told_samples = sum(row["samples"] for row in of_lines["lines"]) + of_lines["others"]["samples"]
    assert told_samples == sum(1 for row in rows if row[2] >> 6 in shared)


@pytest.mark.parametrize(
    ("value", "level"),
    [
        (source(level=0xA), "L1"),
        (source(level=0x12), "LFB"),
        (source(level=0x22), "L2"),
        (source(level=0x42), "L3"),
        (source(level=0x42, number=3), "L3"),
        (source(level=0x82, number=13), "RAM"),
        (source(level=0x202), "remote RAM"),
        (source(level=0x802, snoop=0x10), "remote cache"),
        (source(level=0x42, number=3, remote=1), "remote cache"),
        (source(level=0x2, number=13, remote=1), "remote RAM"),
        (source(level=0x2, number=9), "CXL"),
        (source(level=0x2, number=14), "PMEM"),
        (source(level=0x1002), "I/O"),
        (source(level=0x2002), "uncached"),
        (source(level=0x2, number=11), "other cache"),
        (source(level=0x44), "missed"),
        (source(level=0x1), "unknown"),
        (source(level=0x1, remote=1), "unknown"),
    ],
)
def test_the_level_of_an_access(value: int, level: str) -> None:
    assert LEVELS[facts(value)[0]] == level


def branch_file(order: str) -> PerfData:
    made = PerfData([Event(KIND | h.BRANCH_STACK)], order)
    there_and_back = [(F + 4, G, 1 | 300 << 4), (G + 9, F + 8, 2 | 100 << 4)]
    made.sample(at(F, entries=there_and_back))
    made.sample(at(F, entries=[(F + 6, G + 4, 2), (0, 0, 0), (0x400000, F, 2 | 8)]))
    return made


@pytest.mark.parametrize("order", ["<", ">"])
def test_branches_are_told_by_function_and_by_both_ends(order: str, tmp_path: Path) -> None:
    told = read(branch_file(order), tmp_path).meta["source"]
    (functions,), (edges,) = told["branches_by_function"].values(), told["branch_edges"].values()
    assert told["branches"]["entries"] == 5
    assert told["branches"]["empty"] == 1

    def row(branches: int, mispredicted: int, predicted: int, aborted: int, cycles: float | None) -> dict[str, Any]:
        made = {"branches": branches, "mispredicted": mispredicted, "predicted": predicted, "in_transaction": 0}
        return {**made, "aborted": aborted, "mean_cycles": cycles}

    kept = {each.pop("function"): each for each in functions["functions"]}
    assert next(iter(kept)) == "f"
    assert kept == {
        "f": {"module": "", **row(2, 1, 1, 0, 300.0)},
        "g": {"module": "module_g", **row(1, 0, 1, 0, 100.0)},
        "[unknown]": {"module": "", **row(1, 0, 1, 1, None)},
    }
    others = row(0, 0, 0, 0, None)
    assert functions["others"] == {"functions": 0, **others}
    ends = [(r["from_function"], r["to_function"], r["branches"]) for r in edges["edges"]]
    assert sorted(ends) == [("[unknown]", "f", 1), ("f", "g", 2), ("g", "f", 1)]


def test_events_of_one_name_are_one_in_the_tables(tmp_path: Path) -> None:
    kind = KIND | h.BRANCH_STACK
    made = PerfData([Event(kind, ids=[1], period=1000), Event(kind, ids=[2], period=2000)])
    for number, event in enumerate(made.events):
        made.sample(at(F, id=number + 1, data_source=L1, address=DATA, entries=[(F, G, 2)]), event)
    profile = read(made, tmp_path)
    told = profile.meta["source"]
    assert len(profile.events) == 2
    assert [t["functions"][0]["samples"] for t in told["accesses_by_function"].values()] == [2]
    assert [t["functions"][0]["samples"] for t in told["lines_by_function"].values()] == [2]
    assert [t["functions"][0]["branches"] for t in told["branches_by_function"].values()] == [2]


def test_an_access_in_a_group_is_told_once_of_the_event_that_sampled_it(tmp_path: Path) -> None:
    """perf record -e '{mem-loads,instructions}:S' -d: the record counts both, but the address is of the load."""
    events = [Event(KIND | h.READ, ids=[n], config=n, read_format=8 | 4) for n in (1, 2)]
    made = PerfData(events)
    made.sample(at(F, id=1, time=1, data_source=L1, address=DATA, weight=5, values=[(1, 10), (2, 700)]))
    profile = read(made, tmp_path)
    assert profile.samples.weight.tolist() == [10, 700]
    told = profile.meta["source"]
    first = profile.events[0].name
    assert {name: t["functions"][0]["samples"] for name, t in told["accesses_by_function"].items()} == {first: 1}
    assert {name: t["samples"] for name, t in told["lines_by_function"].items()} == {first: 1}
    assert list(told["weights_by_function"]) == [first]


def test_branch_stacks_without_a_branch_are_no_table(tmp_path: Path) -> None:
    made = PerfData([Event(KIND | h.BRANCH_STACK)])
    made.sample(at(F, entries=[(0, 0, 0)] * 3))
    told = read(made, tmp_path).meta["source"]
    assert told["branches"]["entries"] == told["branches"]["empty"] == 3
    assert not told["branches_by_function"]


def test_branches_of_many_batches_are_added_up() -> None:
    """More branches than a batch holds, and more functions than are kept."""
    made = PerfData([Event(h.IP | h.TID | h.TIME | h.BRANCH_STACK)])
    random_ = random.Random(7)
    number: Counter[tuple[int, int]] = Counter()
    for time in range(2_000):
        entries = []
        for _ in range(2):
            pair = BASE + int(300 * random_.random() ** 2), BASE + 4096
            number[pair] += 20
            entries.append((*pair, 2))
        made.sample(Sample(time=time, entries=entries))
    made.records *= 20
    profile, _ = import_perf_data(memoryview(made.file()), "many.data")
    (table,) = profile.meta["source"]["branches_by_function"].values()
    assert len(table["functions"]) == 200
    for row in table["functions"]:
        assert row["branches"] == number[int(row["function"], 16), BASE + 4096]
    assert table["others"]["functions"] == len(number) - 200
    assert sum(row["branches"] for row in [*table["functions"], table["others"]]) == 80_000


def test_real_branch_stacks_add_up() -> None:
    need("cases")
    from tests.support import CASES

    told = import_file(CASES / "perf-data" / "perf.data.callgraph_and_branch-3.4").meta["source"]
    for tables_of, rows in (("branches_by_function", "functions"), ("branch_edges", "edges")):
        table = told[tables_of]["cycles"]
        whole = [*table[rows], table["others"]]
        assert sum(row["branches"] for row in whole) == 14768
        assert sum(row["mispredicted"] for row in whole) == told["branches"]["mispredicted"] == 880


def test_data_of_the_kernel_is_named_only_where_a_symbol_of_data_is_near() -> None:
    table = Kallsyms(KALLSYMS.encode())
    assert table.data(DATA) == "counter"
    assert table.data(DATA + 0x11) == "counter+0x11"
    assert table.data(DATA + 4096) == ""
    assert table.data(F + 4) == ""  # a function
    assert table.data(BASE - 64) == ""


Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """nsprof in a directory with `mem.data`, `branches.data` and `plain.data`: (status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    Path("mem.data").write_bytes(memory_file().file())
    Path("branches.data").write_bytes(branch_file("<").file())
    plain = PerfData([Event(h.IP | h.TID | h.TIME)])
    plain.sample(Sample())
    Path("plain.data").write_bytes(plain.file())

    def made(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            run(list(words))
        out = capsys.readouterr()
        return (end.value.code if isinstance(end.value.code, int) else 1), out.out, out.err

    return made


@pytest.mark.parametrize(("word", "file"), [("memory", "mem.data"), ("branches", "branches.data")])
def test_the_reports_as_json_are_documented_and_survive_a_profile(word: str, file: str, call: Call) -> None:
    status, out, err = call("report", f"--{word}", file, "--json")
    assert (status, err) == (0, "")
    document = json.loads(out)
    assert document["nsprof"] == f"report-{word}"
    check(document, interfaces())
    assert call("import", file, "-o", "p.nsprof", "--quiet")[0] == 0
    assert json.loads(call("report", f"--{word}", "p.nsprof", "--json")[1]) == document
    assert call("import", file, file, "-o", "two.nsprof", "--quiet")[0] == 0
    assert json.loads(call("report", f"--{word}", "two.nsprof", "--json")[1])["files"] == document["files"] * 2


def test_the_memory_report_says_what_a_reader_looks_for(call: Call) -> None:
    status, out, err = call("report", "--memory", "mem.data")
    assert (status, err) == (0, "")
    flat = " ".join(out.split())
    assert "4 accesses" in flat
    assert f"{F:#018x} 3" in flat  # without symbols two places of f are two
    assert "1 line touched from more than one CPU" in flat
    assert "HITM: the line was found modified in another cache" in flat
    assert "| Function |" in call("report", "--memory", "mem.data", "--markdown")[1]
    rows = list(csv.DictReader(io.StringIO(call("report", "--memory", "mem.data", "--csv")[1])))
    assert (rows[0]["function"], rows[0]["samples"], rows[0]["level_L1"]) == (f"{F:#018x}", "3", "2")
    event = json.loads(call("report", "--memory", "mem.data", "--json")[1])["files"][0]["accesses"].popitem()[0]
    only = json.loads(call("report", "--memory", "mem.data", "--event", event, "--json")[1])
    assert list(only["files"][0]["accesses"]) == [event]


def test_the_branch_report_says_what_a_reader_looks_for(call: Call) -> None:
    status, out, err = call("report", "--branches", "branches.data", "--limit", "1")
    assert (status, err) == (0, "")
    flat = " ".join(out.split())
    assert "5 branch entries of 2 samples, 1 of them empty" in flat
    assert "functions more (--limit 0)" in flat


def test_info_points_at_the_tables_instead_of_printing_them(call: Call) -> None:
    out = call("info", "branches.data")[1]
    assert "nsprof report --branches" in out
    assert "branch_edges" not in out
    assert "nsprof report --memory" not in call("info", "plain.data")[1]


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("--memory", "plain.data"), EvidenceError.exit_code, "no data addresses or sources"),
        (("--branches", "mem.data"), EvidenceError.exit_code, "no branch stacks"),
        (("--memory", "--branches", "mem.data"), 2, "two reports"),
        (("--memory", "mem.data", "--context", "softirq"), 2, "--memory and --context"),
        (("--memory", "mem.data", "--html", "x.html"), 2, "--memory and --html"),
        (("--memory", "mem.data", "--event", "cyclse"), 2, "no event 'cyclse'"),
    ],
)
def test_what_these_reports_cannot_answer_is_refused(
    words: tuple[str, ...], status: int, said: str, call: Call
) -> None:
    got, out, err = call("report", *words)
    assert (got, out) == (status, "")
    assert said in err
    assert not Path("x.html").exists()
