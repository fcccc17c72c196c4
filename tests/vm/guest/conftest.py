"""Inside a guest: each test's result is written down as soon as it is known, in case the kernel does not live on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from nsprof.files import cache_root


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
        _hand_over_programs()
    return report


def _hand_over_programs() -> None:
    """What was compiled here goes to the host, so that the next guest of this kernel need not (suite.py takes it)."""
    target = Path(os.environ["NSPROF_OUT"]) / "programs"
    target.mkdir(exist_ok=True)
    for path in (cache_root() / "programs").glob("[0-9a-f]*"):
        if path.name not in _FOUND and not (target / path.name).exists():
            shutil.copyfile(path, target / path.name)


#: Kept by the host already.
_FOUND = frozenset(path.name for path in (cache_root() / "programs").glob("*"))


@pytest.fixture(scope="session")
def release() -> str:
    return os.uname().release


@pytest.fixture(scope="session", autouse=True)
def _modules() -> None:
    """Modules that topologies and tests need; what is built in or missing shows in the tests themselves."""
    for name in ("veth", "bridge", "vrf", "macvlan", "ipvlan", "vxlan", "dummy", "nf_tables", "br_netfilter"):
        subprocess.run(["modprobe", "-q", name], check=False)
