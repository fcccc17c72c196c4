"""report, diff and info as programs: outputs, exit statuses, no root, no BCC."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from nsprof import store
from nsprof.cli.main import run
from nsprof.model.profile import Losses, Namespace, ProbeInfo
from tests.profiles import HOST_COSTS, bench_profile


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with profiles, which is the current one."""
    profile = bench_profile(hop_runs=1)
    store.save(profile, tmp_path / "profile.nsprof")
    for scenario in ("host", "veth-bridge"):
        store.save(bench_profile(scenarios={scenario: HOST_COSTS}), tmp_path / f"{scenario}.nsprof")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """(exit status, stdout, stderr) of nsprof."""
    with pytest.raises(SystemExit) as end:
        run(list(words))
    out = capsys.readouterr()
    code = end.value.code
    return (code if isinstance(code, int) else 1), out.out, out.err


def test_report_takes_the_default_file_and_shows_all_scenarios(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = call(capsys, "report")
    assert (status, err) == (0, "")
    assert "CPU usage (%)" in out
    assert "host: 1,6" in out or "host: 1,7" in out
    assert "veth_xmit [veth]" in out


def test_report_of_one_scenario_by_namespace_as_json(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, "report", "--scenario", "veth-bridge", "--by", "netns", "--json")
    document = json.loads(out)
    assert (status, document["nsprof"], document["version"]) == (0, "report", 1)
    (scenario,) = document["scenarios"]
    assert scenario["title"] == "veth-bridge"
    assert {g["label"] for g in scenario["groups"]} == {"host", "c0"}
    assert scenario["functions"][0]["self_interval"] is None  # one run with hop probes


def test_csv_has_a_line_a_function(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = call(capsys, "report", "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert {r["scenario"] for r in rows} == {"host", "veth-bridge"}
    assert {"name", "self_cost", "self_interval_low", "contexts", "skid_share"} <= set(rows[0])
    _, out, _ = call(capsys, "diff", "--csv")
    assert float(next(csv.DictReader(io.StringIO(out)))["delta"]) > 100


@pytest.mark.parametrize(
    "words",
    [
        ("diff", "host.nsprof", "veth-bridge.nsprof"),
        ("diff", "profile.nsprof"),
        ("diff",),
        ("diff", "--baseline", "veth-bridge"),
        ("diff", "--scenario", "host", "--baseline", "veth-bridge"),
        ("diff", "profile.nsprof", "profile.nsprof", "--baseline", "host", "--scenario", "veth-bridge"),
        ("diff", "profile.nsprof", "profile.nsprof", "--scenario", "host"),
        ("diff", "host.nsprof", "profile.nsprof", "--scenario", "veth-bridge"),
    ],
)
def test_diff_finds_its_two_sides(words: Sequence[str], place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = call(capsys, *words, "--json")
    assert (status, err) == (0, "")
    document = json.loads(out)
    assert document["nsprof"] == "diff"
    wanted = "host" if "veth-bridge" in words and words[1] == "--baseline" else document["new_title"]
    assert document["new_title"] == wanted


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("report", "missing.nsprof"), 1, "no such file: missing.nsprof"),
        (("report", "--scenario", "hots"), 2, "no scenario 'hots'"),
        (("report", "--per", "furlong"), 2, "furlong"),
        (("report", "--per", "datagram"), 3, "not counted"),
        (("report", "--context", "hardirq"), 3, "no cpu-clock samples left"),
        (("report", "--event", "cycles"), 2, "no event 'cycles'"),
        (("report", "--by", "colour"), 2, "cannot split by"),
        (("report", "--seconds", "9-2"), 2, "not a range of seconds"),
        (("report", "--nonsense"), 2, "nonsense"),
        (("report", "--limit", "-1"), 2, "limit"),
        (("diff", "a", "b", "c"), 2, "3 files"),
        (("diff", "host.nsprof"), 2, "nothing to compare"),
        (("diff", "--min-effect", "lots"), 2, "not an effect"),
        (("diff", "--event", "cycles"), 1, "not on both sides"),
        (("info", "."), 1, "directory"),
        (("report", "text.txt"), 1, "text.txt"),
        (("report", "hots.nsprof"), 1, "did you mean host.nsprof?"),
        (("info", "veth-bridge"), 1, "did you mean veth-bridge.nsprof?"),
        (("diff", "zzz", "host.nsprof"), 1, "there are: "),
        (("flamegraph", "nowhere/host.nsprof"), 1, "there is no directory nowhere"),
        (("bench", "--show", "profle.nsprof"), 1, "did you mean profile.nsprof?"),
        (("report", "--baseline", "hots"), 2, "did you mean 'host'?"),
        (("report", "host.nsprof", "--baseline", "nosuch"), 2, "neither a scenario of the profile nor a file"),
        (("report", "host.nsprof", "--baseline", "host"), 2, "nothing compares with it"),
        (("report", "host.nsprof", "--baseline", "veth-bridge.nsprof"), 2, "diff veth-bridge.nsprof host.nsprof"),
        (
            ("report", "host.nsprof", "--html", "x.html", "--baseline", "veth-brdge"),
            2,
            "did you mean veth-bridge.nsprof",
        ),
        (("report", "--html", "x.html", "--csv"), 2, "exclude each other"),
        (("report", "--html", "-", "--json"), 2, "both write to stdout"),
        (("flamegraph", "-o", "-", "--json", "host.nsprof"), 2, "both write to stdout"),
        (("ledger", "host.nsprof", "--baseline", "hots"), 2, "did you mean"),
        (("history", "../" + "x" * 9), 2, "no such directory"),
        (("history", "host.nsprof"), 2, "is a file, not a directory"),
        (("report", "--by", "netn"), 2, "did you mean 'netns'?"),
    ],
)
def test_bad_input_is_one_line_and_a_status(
    words: Sequence[str], status: int, said: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "text.txt").write_text("no profile\n")
    found, out, err = call(capsys, *words)
    assert found == status, err
    assert said in err
    assert out == ""
    assert "Traceback" not in err


def test_a_command_says_a_note_once(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = bench_profile(runs=2, hop_runs=1)
    noted = profile.with_(
        meta={**profile.meta, "notes": ["BCC is missing: sampled by perf"]},
        runs=tuple(replace(r, losses=Losses(expected=1000, seen=900), warnings=("it rained",)) for r in profile.runs),
    )
    store.save(noted, place / "noted.nsprof")
    for words in (("report", "noted.nsprof"), ("diff", "noted.nsprof"), ("bench", "--show", "noted.nsprof")):
        status, out, err = call(capsys, *words)
        assert status == 0, err
        assert out.count("BCC is missing") == 1
        lines = [line for line in out.splitlines() if line.startswith(("WARNING", "- "))]
        assert len(lines) == len(set(lines))
        assert "it rained" in out
    call(capsys, "flamegraph", "--diff", "noted.nsprof", "-o", "x.svg")
    assert (place / "x.svg").read_text().count("BCC is missing") <= 2  # in the picture and in the script's data


@pytest.mark.parametrize(("sides", "words"), [((1, 1), "1 against 1 run,"), ((1, 2), "1 against 2 runs,")])
def test_runs_are_counted_in_grammar(
    sides: tuple[int, int], words: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, runs in zip(("a", "b"), sides, strict=True):
        store.save(bench_profile(scenarios={"host": HOST_COSTS}, runs=runs), place / f"{name}.nsprof")
    assert words in call(capsys, "diff", "a.nsprof", "b.nsprof")[1]


def test_no_profile_at_all_says_how_to_make_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    status, _, err = call(capsys, "report")
    assert status == 2
    assert "nsprof record" in err


def test_strict_fails_on_lost_samples(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = bench_profile(runs=1)
    lossy = [replace(r, losses=Losses(expected=1000, seen=985)) for r in profile.runs]
    store.save(profile.with_(runs=tuple(lossy)), place / "lossy.nsprof")
    assert call(capsys, "report", "lossy.nsprof")[0] == 0
    status, out, _ = call(capsys, "report", "lossy.nsprof", "--strict")
    assert status == 1
    assert "lost 1.5% of its samples" in out
    assert call(capsys, "report", "--strict")[0] == 0


def test_info_tells_what_is_there(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, "info")
    assert status == 0
    for words in ("cpu-clock", "veth-bridge", "sampler", "perf_event", "eth0", "6.12.0-test"):
        assert words in out
    document = json.loads(call(capsys, "info", "--json")[1])
    assert [s["runs"] for s in document["scenarios"]] == [4, 4]
    assert document["events"][0]["samples"] == int(bench_profile(hop_runs=1).samples.count.sum())
    assert document["runs"][0]["denominators"]["transaction"] == 20_000


def test_info_counts_runs_as_its_warnings_do(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = bench_profile(runs=2)
    runs = [replace(run, warnings=("odd",) if number == 3 else ()) for number, run in enumerate(profile.runs)]
    store.save(profile.with_(runs=tuple(runs)), place / "w.nsprof")
    out = call(capsys, "info", "w.nsprof")[1]
    table = [line.split() for line in out.split("Run ")[1].split("\n\n")[0].splitlines()[1:]]
    assert [row[:2] for row in table] == [["1", "host"], ["2", "veth-bridge"], ["3", "host"], ["4", "veth-bridge"]]
    assert "WARNING: run 4: odd" in out
    document = json.loads(call(capsys, "info", "w.nsprof", "--json")[1])
    assert [run["run"] for run in document["runs"]] == [0, 1, 2, 3]


def test_info_lists_the_namespaces_of_which_something_was_recorded(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = bench_profile(runs=2)
    others = [Namespace(4026540000 + n, n + 100) for n in range(42)]
    store.save(profile.with_(namespaces=(*profile.namespaces, *others)), place / "n.nsprof")
    out = call(capsys, "info", "n.nsprof")[1]
    table = out.split("Namespace ")[1].split("... ")[0].splitlines()[1:]
    assert [" ".join(line.split()) for line in table] == [
        "host 4026531840 host 1-4 w0",
        "c0 4026532100 container 2 4 eth0",
    ]
    assert "... 42 namespaces of which nothing was recorded (--json)" in out
    assert "net:[4026540001]" not in out and "probes" not in out.split("Run ")[1].splitlines()[0]
    found = json.loads(call(capsys, "info", "n.nsprof", "--json")[1])["namespaces"]
    assert [(n["runs"], n["devices"]) for n in found[:3]] == [([0, 1, 2, 3], ["w0"]), ([1, 3], ["eth0"]), ([], [])]


def test_what_is_near_a_directory_that_is_not_there_is_only_said_if_it_is_like_it(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("results", "unrelated"):
        (place / name).mkdir()
    assert "did you mean resultz" not in call(capsys, "history", "resultz")[2]
    assert "did you mean results?" in call(capsys, "history", "resultz")[2]
    err = call(capsys, "history", "zzzzzzzz")[2]
    assert "unrelated" not in err and "results" not in err.replace("results/", "")


def test_probes_refused_for_one_reason_are_told_together(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lost = {"skb_copy": "skb copy by this function", "ip_defrag": "reassembly", "skb_clone": "skb copy", "pull": "x"}
    reason = "kprobe: this kernel has none"
    probes = [ProbeInfo(n, n, "none", "refused", f"{reason}; not counted: {what}") for n, what in lost.items()]
    profile = bench_profile(runs=1)
    store.save(profile.with_(probes=(*profile.probes, *probes)), place / "refused.nsprof")
    for words in (("report", "--scenario", "host"), ("info",)):
        status, out, _ = call(capsys, words[0], "refused.nsprof", *words[1:])
        assert status == 0
        assert out.count(reason) == 1
        assert "4 probes refused" in out
    assert "skb copy, reassembly, x" in call(capsys, "report", "refused.nsprof", "--scenario", "host")[1]


def test_hostile_names_leave_no_escape_sequence(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = bench_profile()
    evil = "\x1b]0;owned\x07[red]<script>\u202e"
    profile = profile.with_(
        frames=replace(profile.frames, name=tuple(evil if n == "veth_xmit" else n for n in profile.frames.name)),
        runs=tuple(replace(r, scenario=r.scenario + evil, kernel=evil, warnings=(evil,)) for r in profile.runs),
        namespaces=tuple(replace(n, name=evil) for n in profile.namespaces),
        devices=tuple(replace(d, name=evil) for d in profile.devices),
    )
    store.save(profile, place / "evil.nsprof")
    for words in (("report", "--by", "netns"), ("diff",), ("info",)):
        for form in ((), ("--markdown",), ("--json",), ("--csv",)):
            status, out, err = call(capsys, *words, "evil.nsprof", *form)
            assert status == 0, err
            assert not any(c in out for c in "\x1b\x07\u202e")
    assert "owned" in call(capsys, "report", "evil.nsprof", "--csv")[1]


def test_a_profile_comes_through_a_pipe(place: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nsprof", "info", "-", "--json"],
        input=(place / "profile.nsprof").read_bytes(),
        capture_output=True,
        timeout=60,
    )
    assert json.loads(done.stdout)["events"][0]["name"] == "cpu-clock"


def test_a_closed_pipe_is_no_error(place: Path) -> None:
    program = [sys.executable, "-m", "nsprof", "report", "--limit", "0"]
    done = subprocess.run(
        ["bash", "-c", '"$@" | head -1', "_", *program], cwd=place, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.count("\n") == 1
    assert "Traceback" not in done.stderr


def test_reading_needs_neither_root_nor_bcc(place: Path) -> None:
    code = (
        "import sys\nsys.modules['bcc'] = None\nimport os\n"
        "from nsprof.cli.main import run\n"
        "for words in (['report'], ['diff'], ['info']):\n"
        "    try:\n        run(words)\n"
        "    except SystemExit as end:\n        assert not end.code, (words, end.code)\n"
        "assert not [m for m in sys.modules if m.startswith(('pyroute2', 'nsprof.collect', 'nsprof.topology'))]\n"
    )
    place.chmod(0o755)
    for file in place.iterdir():
        file.chmod(0o644)
    options: dict[str, object] = {}
    if os.geteuid() == 0 and all(os.access(p, os.X_OK) for p in place.parents):
        parents_open = all(p.stat().st_mode & 0o005 == 0o005 for p in place.parents)
        if parents_open:
            options = {"user": 65534, "group": 65534, "extra_groups": []}
    done = subprocess.run(  # type: ignore[call-overload]
        [sys.executable, "-c", code], cwd=place, capture_output=True, text=True, timeout=120, **options
    )
    assert done.returncode == 0, done.stderr


def test_many_kinds_that_refused_probes_do_not_count_make_a_short_line(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = bench_profile(runs=1)
    probes = [ProbeInfo(f"p{n}", f"p{n}", "none", "refused", f"no kprobes; not counted: kind{n}") for n in range(28)]
    store.save(profile.with_(probes=(*profile.probes, *probes)), place / "many.nsprof")
    out = " ".join(call(capsys, "report", "many.nsprof", "--scenario", "host")[1].split())
    assert (
        "28 probes refused: no kprobes; 28 kinds of events not counted by them: kind0, kind1, kind2, kind3 ..." in out
    )
    assert "kind4" not in out
    assert all(f"kind{n}" in call(capsys, "info", "many.nsprof")[1] for n in (4, 27))
    assert call(capsys, "report", "many.nsprof", "--html", "many.html")[0] == 0
    page = (place / "many.html").read_text()
    assert page.count("<summary>Each probe that was refused or shed (28)</summary>") == 1 and "kind27" in page
