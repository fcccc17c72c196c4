"""docs/json.md against what the verbs write: every kind of document has its interface there, and keeps to it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from nsprof import store
from nsprof.cli.main import run
from nsprof.model.profile import LedgerLine, Run, Value
from tests.profiles import HOST_COSTS, bench_profile, bridge_costs
from tests.unit.cli.json_schema import check, interfaces, kinds

KNOWN = interfaces()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with profiles, which is the current one."""
    profile = bench_profile(hop_runs=1)
    store.save(profile, tmp_path / "profile.nsprof")
    store.save(bench_profile(scenarios={"host": HOST_COSTS}, runs=8), tmp_path / "host.nsprof")
    store.save(bench_profile(scenarios={"veth-bridge": bridge_costs()}, runs=8), tmp_path / "bridge.nsprof")
    host = bench_profile(scenarios={"host": HOST_COSTS}, runs=1)
    counted = Run("host", duration_s=1.0, cpus=2, denominators={"skb": 100.0, "kb": 50.0}, probes_on=("ledger",))
    rows = (
        LedgerLine(1, "copy", "skb_copy_bits", 1, 1, -1, 23, 2300),
        LedgerLine(1, "drop", "NO_SOCKET", 1, 0, -1, 2),
    )
    store.save(host.with_(runs=(*host.runs, counted), ledger=rows), tmp_path / "counted.nsprof")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """(exit status, stdout, stderr) of nsprof."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        run(list(words))
    out = capsys.readouterr()
    return (end.value.code if isinstance(end.value.code, int) else 1), out.out, out.err


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("report", ("report", "--by", "netns")),
        ("report", ("report", "host.nsprof")),
        ("report-page", ("report", "--html", "page.html")),
        ("diff", ("diff", "--by", "device")),
        ("diff", ("diff", "host.nsprof", "bridge.nsprof")),
        ("ledger", ("ledger", "counted.nsprof")),
        ("explain", ("explain", "bridge.nsprof", "--baseline", "host.nsprof")),
        ("explain-function", ("explain", "profile.nsprof", "--function", "veth_xmit")),
        ("gate", ("gate", "host.nsprof", "bridge.nsprof", "--fail-above", "2%")),
        ("history", ("history", ".")),
        ("flamegraph", ("flamegraph", "profile.nsprof", "--scenario", "host")),
        ("flamegraph", ("flamegraph", "--diff")),
        ("info", ("info",)),
        ("bench", ("bench", "--show", "profile.nsprof")),
        ("topo-show", ("topo", "show")),
        ("topo-show", ("topo", "show", "veth-bridge")),
        ("topo-list", ("topo", "list")),
        ("topo-down", ("topo", "down", "--all")),
    ],
)
def test_what_a_verb_writes_is_as_documented(
    kind: str, words: Sequence[str], place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if words[0] == "topo" and words[1] != "show":
        about = {"run_id": "abc123", "shape": "host", "condition": "up", "containers": 0, "host_netns": "own"}
        rows = [{**about, "pid": 7, "created": "2026-01-01T00:00:00+0000", "about": {"mtu": 1500}}]
        monkeypatch.setattr("nsprof.topology.listing", lambda: rows)
        monkeypatch.setattr("nsprof.topology.down", lambda run_id: 0)
    if kind == "gate":
        store.save(bench_profile(scenarios={"host": bridge_costs()}, runs=8), place / "bridge.nsprof")
    status, out, err = call(capsys, *words, "--json")
    assert status == (1 if kind == "gate" else 0), err
    assert err == ""
    document = json.loads(out)
    assert (document["nsprof"], document["version"]) == (kind, 1)
    check(document, KNOWN)


def test_a_guest_tells_how_it_ended_beside_its_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = SimpleNamespace(
        accel="tcg", status=3, boot_s=1.0, boot_cpu_s=1.0, wall_s=2.0, files=(Path("a.txt"),), skipped=("a\nsocket",)
    )

    def run_job(*_: object, on_output: object, **__: object) -> object:
        print("the command's own", flush=True)
        return ended

    monkeypatch.setattr("nsprof.vm.resolve", lambda spec, modules=None: spec)
    monkeypatch.setattr("nsprof.vm.run_job", run_job)
    words = ("vm", "run", "--kernel", "debian:6.1")
    status, out, err = call(capsys, *words, "--json", "--", "false")
    assert (status, out) == (3, "the command's own\n")
    check(json.loads(err.splitlines()[-1]), KNOWN)
    assert call(capsys, *words, "--quiet", "--", "false") == (3, "the command's own\n", "")
    assert "left in the guest" in call(capsys, *words, "--", "false")[2]


def test_a_fetched_kernel_is_told_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel = SimpleNamespace(release="6.1.0", image=Path("/k/vmlinuz"), modules=Path("/k/modules"))
    monkeypatch.setattr("nsprof.vm.fetch_debian", lambda spec, refresh=False: kernel)
    monkeypatch.setattr("nsprof.vm.debug_package", lambda kernel: Path("/k/vmlinux"))
    for words in ((), ("--debug-info",)):
        _, out, _ = call(capsys, "vm", "fetch", "--kernel", "debian:6.1", "--json", *words)
        document = json.loads(out)
        assert ("vmlinux" in document) == bool(words)
        check(document, KNOWN)


def test_churn_and_its_runs_are_as_documented(capsys: pytest.CaptureFixture[str]) -> None:
    from nsprof.cli.churn import _show

    profile = bench_profile(runs=1)
    runs = tuple(Run("create", values=(Value("real", 1.5, "s", "churn"),)) for _ in range(2))
    _show(profile.with_(runs=runs, meta={"churn": {"namespaces": 23}}), "shared", "", 0, "json")
    check(json.loads(capsys.readouterr().out), KNOWN)


def test_simulated_scenarios_are_as_documented(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from nsprof.cli.common import write_json
    from nsprof.simulate import report

    boot = SimpleNamespace(
        background=1.0,
        minimum=2.0,
        worst=SimpleNamespace(instructions=3),
        repetitions=1,
        others=SimpleNamespace(kinds=[SimpleNamespace(name="timer", samples=2, instructions=300.0)]),
        samples=[1, 2],
        modal_share=0.5,
        bad_luck=0.25,
        sample=SimpleNamespace(unmatched=0),
        denominators={"skb": 1.0},
    )
    group = SimpleNamespace(
        kernel="6.1",
        scenario="host",
        boots=(boot,),
        scale=1.0,
        per_unit=lambda _: [7.0],
        functions=lambda: {"f": 3.0},
    )
    monkeypatch.setattr(report, "groups_of", lambda _: [group])
    monkeypatch.setattr(report, "_noun", lambda _: "packet")
    write_json("simulate", report.document(SimpleNamespace(workload="udp-rr"), ()))  # type: ignore[arg-type]
    check(json.loads(capsys.readouterr().out), KNOWN)
    rows = [{"scenario": "host", "kernel": "6.1", "rules": 8, "instructions": 7.0}]
    write_json("simulate-sweep", {"swept": "rules", "rows": rows})
    check(json.loads(capsys.readouterr().out), KNOWN)


def test_doctor_is_as_documented(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from nsprof.collect.checks import preflight

    monkeypatch.setattr(preflight, "checks", lambda: (preflight.Check("root", "Sampling", "root", "yes", "uid 0"),))
    status, out, _ = call(capsys, "doctor", "--json")
    assert status == 1  # the other rows are not there
    check(json.loads(out), KNOWN)


def test_every_kind_of_document_is_on_the_page() -> None:
    written = set()
    for file in Path(__file__).resolve().parents[3].joinpath("nsprof").rglob("*.py"):
        text = file.read_text()
        written |= set(re.findall(r"write_json\(\s*\"([a-z-]+)\"", text))
        written |= set(re.findall(r"\"nsprof\": \"([a-z-]+)\",\s*\"version\"", text))
        written |= set(re.findall(r"^    +kind, parts = \"([a-z-]+)\"", text, re.MULTILINE))
    assert written == set(kinds(KNOWN))


@pytest.mark.parametrize("wrong", [{"cost": "3"}, {"extra": 1}, {"measure": None}, {"version": 2}])
def test_a_wrong_document_is_found(wrong: dict[str, object], place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(call(capsys, "diff", "--json")[1])
    check(document, KNOWN)
    document["total" if "cost" in wrong else "nsprof-none"] = document.get("total")
    document.pop("nsprof-none", None)
    if "cost" in wrong:
        document["total"]["base"] = wrong["cost"]
    else:
        document.update(wrong)
    with pytest.raises(AssertionError):
        check(document, KNOWN)
