"""What the verbs that measure write with --json, against docs/json.md; and where they write it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nsprof import store
from tests.support import need
from tests.unit.cli.json_schema import check, interfaces

pytestmark = [pytest.mark.root, pytest.mark.bpf]
KNOWN = interfaces()


def nsprof(*words: str, cwd: Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the program, which ends with `status`."""
    done = subprocess.run(
        [sys.executable, "-m", "nsprof", *words], capture_output=True, text=True, timeout=120, cwd=cwd
    )
    assert done.returncode == status, done.stderr
    return done


def test_record_tells_beside_its_command_what_it_recorded(tmp_path: Path) -> None:
    need("root")
    need("bpf")
    words = ("record", "-o", "p.nsprof", "--runs", "2", "--json", "--", "sh", "-c", "echo mine; echo too >&2; exit 3")
    done = nsprof(*words, cwd=tmp_path, status=3)
    assert done.stdout == "mine\nmine\n"
    *others, last = done.stderr.splitlines()
    assert others == ["too", "too"]
    said = json.loads(last)
    check(said, KNOWN)
    assert (said["nsprof"], said["file"], said["status"], len(said["runs"])) == ("record", "p.nsprof", 3, 2)
    profile = store.load(tmp_path / "p.nsprof")
    assert said["samples"] == int(profile.samples.count.sum())
    assert said["next"][0] == "nsprof report p.nsprof"


def test_a_watch_has_stdout_for_its_json(tmp_path: Path) -> None:
    need("root")
    need("bpf")
    done = nsprof("record", "--duration", "0.3", "--json", cwd=tmp_path)
    assert done.stderr == ""
    check(json.loads(done.stdout), KNOWN)
    assert nsprof("record", "--duration", "0.3", "--quiet", cwd=tmp_path).stderr == ""


def test_topologies_come_and_go_in_json(tmp_path: Path) -> None:
    need("root")
    made = json.loads(nsprof("topo", "up", "veth-bridge", "--json", cwd=tmp_path).stdout)
    try:
        check(made, KNOWN)
        listed = json.loads(nsprof("topo", "list", "--json", cwd=tmp_path).stdout)
        check(listed, KNOWN)
        assert made["run_id"] in [each["run_id"] for each in listed["topologies"]]
    finally:
        gone = json.loads(nsprof("topo", "down", made["run_id"], "--json", cwd=tmp_path).stdout)
    check(gone, KNOWN)
    assert gone["removed"] == [made["run_id"]]
    check(json.loads(nsprof("topo", "clean", "--json", cwd=tmp_path).stdout), KNOWN)


def test_bench_top_and_churn_keep_to_the_page(tmp_path: Path) -> None:
    need("root")
    need("bpf")
    need("iperf3")
    words = ("bench", "--scenario", "host,veth-bridge", "--runs", "1", "--json", "-q", "--", "iperf3", "-t", "1")
    bench = json.loads(nsprof(*words, cwd=tmp_path).stdout)
    check(bench, KNOWN)
    assert len(bench["parts"][0]["scenarios"]["rows"]) == 2
    for line in nsprof("top", "-b", "-n", "2", "-d", "0.3", "--json", cwd=tmp_path).stdout.splitlines():
        check(json.loads(line), KNOWN)
    words = ("churn", "-N", "3", "-M", "0", "--tool", "pyroute2", "--no-waits", "--json", "-q")
    churn = json.loads(nsprof(*words, cwd=tmp_path).stdout)
    check(churn, KNOWN)
    assert churn["facts"]["namespaces"] == 3
