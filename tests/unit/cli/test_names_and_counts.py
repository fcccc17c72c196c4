"""What diff and the report page call their two sides, and where they say that the unit was counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsprof import store
from nsprof.cli.main import run
from tests.profiles import HOST_COSTS, bench_profile, bridge_costs


def status(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        run(list(words))
    return int(ended.value.code or 0)


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two recordings of one command, "netperf" in both."""
    monkeypatch.chdir(tmp_path)
    for file, costs in (("before.nsprof", HOST_COSTS), ("after.nsprof", bridge_costs())):
        store.save(bench_profile(runs=3, scenarios={"netperf": costs}), tmp_path / file)
    return tmp_path


def test_diff_names_the_tool_that_counted(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("diff", "before.nsprof", "after.nsprof") == 0
    assert "per transaction (netperf's own count)" in " ".join(capsys.readouterr().out.split())


def test_a_page_of_two_plain_recordings_names_their_files(two: Path) -> None:
    assert status("report", "after.nsprof", "--baseline", "before.nsprof", "--html", "page.html") == 0
    page = (two / "page.html").read_text()
    assert "(x - before) / before" in page
    assert "after against before" in page
    assert ">netperf<" not in page and "(x - netperf)" not in page
    assert "netperf&#39;s own count" in page


def test_a_page_keeps_names_that_differ(two: Path) -> None:
    store.save(bench_profile(runs=3, scenarios={"host": HOST_COSTS}), two / "host.nsprof")
    assert status("report", "after.nsprof", "--baseline", "host.nsprof", "--html", "page.html") == 0
    assert "netperf against host" in (two / "page.html").read_text()
