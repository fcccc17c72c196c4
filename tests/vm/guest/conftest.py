"""Inside a guest: each test's result is written down as soon as it is known, in case the kernel does not live on."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):  # type: ignore[no-untyped-def]
    report = yield
    if report.when == "call" or report.outcome != "passed":
        words = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longreprtext
        record = {
            "test": item.nodeid,
            "outcome": report.outcome,
            "words": words,
            "printed": report.capstdout,
            "seconds": call.duration,
        }
        with (Path(os.environ["NSPROF_OUT"]) / "results.jsonl").open("a") as results:
            results.write(json.dumps(record) + "\n")
    return report


@pytest.fixture(scope="session")
def release() -> str:
    return os.uname().release


@pytest.fixture(scope="session", autouse=True)
def _modules() -> None:
    """Modules that topologies and tests need; what is built in or missing shows in the tests themselves."""
    for name in ("veth", "bridge", "vrf", "macvlan", "ipvlan", "vxlan", "dummy", "nf_tables", "br_netfilter"):
        subprocess.run(["modprobe", "-q", name], check=False)
