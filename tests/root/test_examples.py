"""Every example does what it says, on this machine."""

from __future__ import annotations

import subprocess

import pytest

from nsprof import store
from tests.support import REPO

pytestmark = [pytest.mark.root, pytest.mark.bpf, pytest.mark.slow]


def test_the_quickstart_prints_the_delta_table_and_writes_flame_graphs() -> None:
    done = subprocess.run([REPO / "examples/quickstart.sh", "1"], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "veth-bridge against host" in done.stdout
    assert "total" in done.stdout
    out = REPO / "out" / "quickstart"
    for name in ("host.svg", "veth-bridge.svg", "diff.svg"):
        picture = (out / name).read_text()
        assert picture.lstrip().startswith("<"), name
        assert "</svg>" in picture
    assert "br_handle_frame" in (out / "veth-bridge.svg").read_text()
    assert "br_handle_frame" in (out / "report.html").read_text()
    demo = store.load(out / "demo.nsprof")
    assert len([run for run in demo.runs if not run.warmup]) == 16  # enough a side for verdicts


def test_the_quickstart_refuses_what_is_no_number() -> None:
    done = subprocess.run([REPO / "examples/quickstart.sh", "soon"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "not a number" in done.stderr
