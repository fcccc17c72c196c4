"""A profile whose metadata lie about their own shape: refused in one line, or read by every verb."""

from __future__ import annotations

import contextlib
import copy
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nsprof import store
from nsprof.cli.main import run
from nsprof.errors import ProfileFormatError
from nsprof.store.metas import check_meta
from tests.profiles import bench_profile

_SPACE = {
    "inode": 4026532318,
    "sysctl": {"net.ipv4.ip_forward": "1", "net.ipv4.tcp_rmem": "4096 131072 33554432"},
    "datapath": {"nft_rules": 3, "bridge_ports": {"br0": 2}, "iptables": ["nat"], "xdp": {"w0": "driver"}},
    "devices": {
        "br0": {
            "ifindex": 2, "kind": "bridge", "mtu": 1500, "up": True, "qdisc": "noqueue", "qdiscs": ["noqueue"],
            "queues": {"rx": 1, "tx": 1}, "offloads": {"rx-gro": False, "tx-tcp-segmentation": True}, "driver": "",
        }
    },
}  # fmt: skip
_ACCESS = {
    "samples": 3, "weight_sum": 90, "hitm": 1, "peer": 0, "tlb_misses": 0, "locked": 0, "loads": 2, "stores": 1,
    "levels": {"L1": {"samples": 3, "weight_sum": 90}},
}  # fmt: skip
_LINES = {"samples": 3, "lines": 2, "shared_lines": 1}
_PLACE = {"address": "0xffff", "physical": None, "pid": None, "symbol": "jiffies"}
_BRANCH = {"branches": 9, "mispredicted": 1, "aborted": 0, "mean_cycles": 3.5}
_NAMED = {"function": "f", "module": ""}

#: Metadata as all the verbs write them, a little of everything.
WHOLE: dict[str, Any] = {
    "tool": {"name": "nsprof", "version": "1"},
    "created": "2026-11-30T10:00:00Z",
    "boot_id": "b",
    "notes": ["a note"],
    "host": {
        "kernel": {"release": "6.1", "architecture": "x86_64", "build_id": "ab", "modules": ["veth"]},
        "cpu": {"model": "a CPU", "count": 2, "idle_states": ["C1"]},
        "machine": {"load_average": ["0.1"], "numa_nodes": 1},
        "mitigations": {"meltdown": "Mitigation: PTI"},
        "sysctl": {"net.core.busy_poll": "0"},
        "config": {"HZ": "250"},
        "clocksource": "tsc",
        "namespaces": {"": _SPACE},
    },
    "topology": {
        name: {"chain": "c0 -> host -> remote", "shape": name, "mtu": 1500, "namespaces": {"host": _SPACE},
               "host": {"sysctl": {"net.core.busy_poll": "50"}}, "mitigations": "auto"}
        for name in ("host", "veth-bridge")
    },
    "bench": {
        "command": ["netperf", "-t", "UDP_RR"],
        "scenarios": ["host", "veth-bridge"],
        "seed": 7,
        "conditions": [{"run": 0, "before": {"load": 0.5, "mhz": [2000.0]}, "after": {"load": 1, "mhz": [2000.0]}}],
        "plan": {
            "title": "t", "about": "a", "baseline": "host", "tables": ["document", "delta", "scaling"],
            "cases": [
                {"part": "", "command": ["netperf"], "name": name, "label": name, "shape": name, "containers": 1}
                for name in ("host", "veth-bridge")
            ],
        },
        "kernels": ["6.1"],
    },
    "record": {"in": "blue", "watch": ["red"], "command": ["curl"]},
    "simulate": {
        "workload": "tcp", "mitigations": "auto",
        "runs": [{"kernel": "", "scenario": "host", "data_lines": [{"member": "sk_buff.head", "functions": ["f"]}]}],
    },
    "source": {
        "importer": "perf.data", "file": "perf.data", "damaged": False,
        "accesses_by_function": {
            "mem": {"functions": [{**_NAMED, **_ACCESS}], "others": {"functions": 0, **_ACCESS}}
        },
        "lines_by_function": {
            "mem": {
                **_LINES,
                "functions": [{**_NAMED, **_LINES, "top_lines": [{**_PLACE, "samples": 1}]}],
                "others": {"functions": 0, **_LINES},
            }
        },
        "shared_lines": {
            "lines": [
                {**_PLACE, "samples": 2, "loads": 1, "stores": 1, "hitm": 1, "peer": 0, "cpus": 2,
                 "functions": [{**_NAMED, "offsets": [8], "samples": 2, "cpus": 2}]}
            ],
            "others": {"lines": 0, "samples": 0},
        },
        "branches": {"entries": 9, "samples": 3},
        "branches_by_function": {
            "cyc": {"functions": [{**_NAMED, **_BRANCH}], "others": {"functions": 0, **_BRANCH}}
        },
        "branch_edges": {
            "cyc": {
                "edges": [{"from_function": "f", "from_module": "", "to_function": "g", "to_module": "", **_BRANCH}],
                "others": {"edges": 0, **_BRANCH},
            }
        },
    },
    "churn": {"namespaces": 3},
    "churn_pids": {"0": [1]},
    "calibration": {"burned_ns": {"burn1": [5.0]}, "rules": 1},
}  # fmt: skip

_ROUNDS = 10  # a second each

HOSTILE: list[Any] = [7, -1.5, True, "x", "", [], [3], ["x"], [[]], [{}], {}, {"x": 1}, {"x": {}}, {"x": []}, None]

VERBS = [
    ("report", "p.nsprof"),
    ("report", "p.nsprof", "--html", "p.html"),
    ("report", "p.nsprof", "--memory"),
    ("report", "p.nsprof", "--branches"),
    ("explain", "p.nsprof"),
    ("info", "p.nsprof"),
    ("info", "p.nsprof", "--json"),
    ("diff", "good.nsprof", "p.nsprof", "--scenario", "host", "--baseline", "host"),
    ("flamegraph", "p.nsprof", "--scenario", "host", "-o", "p.svg"),
    ("ledger", "p.nsprof"),
    ("gate", "good.nsprof", "p.nsprof", "--fail-above", "2%", "--min-runs", "2"),
    ("bench", "--show", "p.nsprof", "--commit-text"),
    ("export", "p.nsprof", "-f", "pprof", "-o", "p.pb.gz"),
    ("history", "."),
]


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every path into nested mappings and lists."""
    if place:
        yield place
    for key, part in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        yield from places(part, (*place, key))


def put(place: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """The whole metadata with another value at one place."""
    made = copy.deepcopy(WHOLE)
    at: Any = made
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    return made


def accepted() -> Iterator[tuple[tuple[Any, ...], Any, dict[str, Any]]]:
    """(place, value, metadata) of every hostile value that is not refused at its place."""
    for place in places(WHOLE):
        for value in HOSTILE:
            meta = put(place, value)
            with contextlib.suppress(ProfileFormatError):
                check_meta(meta)
                yield place, value, meta


def spoken(words: tuple[str, ...]) -> str:
    """What a verb says on stderr, in this process."""
    with (
        contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())),
        contextlib.redirect_stderr(io.StringIO()) as said,
        contextlib.suppress(SystemExit),
    ):
        run(list(words))
    return said.getvalue()


def test_what_all_verbs_write_is_accepted() -> None:
    assert check_meta(WHOLE) == WHOLE
    assert check_meta({}) == {}
    assert check_meta({"mine": {"x": [1, {}]}, "host": {"unheard": [{}]}}) == {
        "mine": {"x": [1, {}]},
        "host": {"unheard": [{}]},
    }


@pytest.mark.parametrize("value", [7, 1.5, True, [], ["x"], "x"])
def test_a_host_that_is_no_mapping_is_refused_in_one_line(tmp_path: Path, value: Any) -> None:
    store.save(bench_profile(runs=1).with_(meta={"host": value}), tmp_path / "p")
    with pytest.raises(ProfileFormatError) as error:
        store.load(tmp_path / "p")
    shown = "a list" if isinstance(value, list) else repr(value)
    assert error.value.message == f"{tmp_path / 'p'}: damaged: meta.host is {shown}: must be a mapping"


def test_what_nests_without_end_is_refused() -> None:
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    with pytest.raises(ProfileFormatError, match="nests deeper than 40 levels"):
        check_meta({"mine": deep})


def test_every_shape_refuses_what_it_is_not() -> None:
    """Each value that the rules name is put to the test, not only those that the sample has."""
    refused = {place for place in places(WHOLE) for value in HOSTILE if _refused(put(place, value))}
    unnamed = {place for place in places(WHOLE) if place not in refused}
    assert {p[0] for p in refused} == set(WHOLE), "a key of meta that nothing is asked of"
    assert len(refused) > len(unnamed)


def _refused(meta: dict[str, Any]) -> bool:
    try:
        check_meta(meta)
    except ProfileFormatError:
        return True
    return False


def test_no_metadata_that_is_accepted_is_an_internal_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hostile values that pass, spread over the places where they do, one in each key of `meta` at once."""
    monkeypatch.chdir(tmp_path)
    profile = bench_profile(runs=2)
    store.save(profile.with_(meta=WHOLE), "good.nsprof")
    by_key: dict[str, list[Any]] = {}
    for place, _, meta in accepted():
        by_key.setdefault(place[0], []).append(meta[place[0]])
    columns = [(key, _spread(some, _ROUNDS)) for key, some in by_key.items()]
    for number in range(_ROUNDS):
        meta = {key: some[number % len(some)] for key, some in columns}
        store.save(profile.with_(meta=meta), "p.nsprof")
        for words in VERBS:
            said = spoken(words)
            assert "internal" not in said, (words, said, json.dumps(meta)[:2000])


def _spread(some: list[Any], number: int) -> list[Any]:
    """`number` of them, evenly."""
    return [some[i * len(some) // number] for i in range(number)] if len(some) > number else some
