"""The report page of a real recording: fragments in its ledger, packets and CPU on its hops, links that stay."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import need

pytestmark = [pytest.mark.browser, pytest.mark.root, pytest.mark.bpf]
NSPROF = [sys.executable, "-m", "nsprof"]
#: Datagrams, each in three fragments at MTU 1500.
DATAGRAMS = 2300
SENDER = f"""
import socket, sys, time
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range({DATAGRAMS}):
    one.sendto(bytes(4000), (sys.argv[1], 9))
    if number % 100 == 0:
        time.sleep(0.005)  # the device's queue is never full
"""


def run(*words: str, cwd: Path) -> str:
    """stdout of nsprof, which must succeed."""
    done = subprocess.run([*NSPROF, *words], cwd=cwd, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The page of a recording in a container behind a bridge, and that of a bench with its baseline."""
    need("root", "bpf", "browser")
    place = tmp_path_factory.mktemp("recorded")
    made = json.loads(run("topo", "up", "veth-bridge", "--json", cwd=place))
    try:
        inside = f"nsprof-{made['run_id']}-c0"
        command = [sys.executable, "-c", SENDER, made["server_address"]]
        options = ["-q", "-F", "4999", "--hop", "--count", "--in", inside, "-o", "pod.nsprof"]
        run("record", *options, "--", *command, cwd=place)
    finally:
        run("topo", "down", made["run_id"], cwd=place)
    run("report", "pod.nsprof", "--html", "pod.html", cwd=place)
    found = {"pod": (place / "pod.html").read_text(), "name": made["run_id"]}
    if shutil.which("iperf3"):  # without, only the bench's test is skipped
        words = [
            "bench",
            "--scenario",
            "host,veth-bridge",
            "--runs",
            "1",
            "--hop",
            "--count",
            "-q",
            "--top",
            "0",
            "-F",
            "4999",
        ]
        run(*words, "-o", "bench.nsprof", "--", "iperf3", "-u", "-l", "4000", "-b", "100M", "-t", "1", cwd=place)
        run("report", "bench.nsprof", "--html", "bench.html", cwd=place)
        found["bench"] = (place / "bench.html").read_text()
    yield found


def test_the_ledger_of_a_recording_has_its_fragments(pages: dict[str, str], visit: Any) -> None:
    page = visit(pages["pod"])
    words = page.locator("section#ledger").inner_text()
    assert f"Fragmentation starts at eth0 in nsprof-{pages['name']}-c0 (MTU 1500)" in words
    assert f"{DATAGRAMS:,} datagrams leave as {3 * DATAGRAMS:,} fragments" in words
    row = page.locator("section#ledger tbody tr", has_text="fragments tx").filter(has_text="c0: eth0")
    assert row.count() == 1
    heads = page.locator("section#ledger thead th").all_text_contents()
    assert heads == ["Event", "Detail", "Where", "calls", "bytes"]  # there is no baseline
    assert len(pages["pod"]) < 3_000_000


def test_the_picture_has_packets_and_cpu_on_the_hops_of_a_bench(pages: dict[str, str], visit: Any) -> None:
    if "bench" not in pages:
        need("iperf3")
    page = visit(pages["bench"])
    section = page.locator("section#topology")
    assert section.locator("svg .wire").count() == 2
    texts = section.locator("svg text").all_text_contents()
    assert [t for t in texts if t.startswith("rx ") and t.endswith("skbs/datagram")]
    section.locator("summary").click()
    rows = [r.split("\t") for r in section.locator("tbody tr").all_inner_texts()]
    v0 = next(r for r in rows if r[2] == "v0")
    assert v0[0] == "host"
    assert float(v0[3].split()[1].rstrip(",")) == pytest.approx(3.0, abs=0.2)  # fragments of a datagram
    assert [r for r in rows if r[4].endswith(("ns", "us"))], rows  # CPU for a device's packets
    assert [r for r in rows if "/datagram" in r[5]], rows
    ledger = page.locator("section#ledger")
    assert "Fragmentation starts at w0 in host" in ledger.inner_text()
    assert "Fragmentation starts at eth0 in c0" in ledger.inner_text()
    assert ledger.locator("thead th").count() == 8


def test_links_into_a_real_page_survive_a_reload(pages: dict[str, str], visit: Any) -> None:
    page = visit(pages["pod"])
    page.locator("#function-table a").first.click()
    address = page.evaluate("location.hash")
    chosen = page.locator("tr.chosen th").text_content()
    assert address.startswith("#fn=") and chosen
    page.reload()
    assert page.evaluate("location.hash") == address
    assert page.locator("tr.chosen th").text_content() == chosen
    page.locator("nav a", has_text="What happens").click()
    page.reload()
    assert page.evaluate("location.hash") == "#ledger"
    assert page.locator("section#ledger h2").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_of_a_real_page_sticks_out(pages: dict[str, str], visit: Any, scheme: str, width: int) -> None:
    for name in set(pages) & {"pod", "bench"}:
        page = visit(pages[name], viewport={"width": width, "height": 900}, color_scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
