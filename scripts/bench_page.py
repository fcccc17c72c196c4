#!/usr/bin/env python3
"""How large the report page of many stacks is, and how soon a browser can use it: `bench_page.py [STACKS]`.

Two files of so many distinct stacks each (20,000), half of them on both sides, become one page by
`nsprof report --html --baseline`. Chromium opens it five times: the time is from the navigation's start to the moment
at which tables and flame graph answer, then that of one search over all frames.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench_flamegraph import names, profile, stacks

from nsprof import store

_SEARCH = """() => { const start = performance.now();
    const input = document.querySelector('#flame-controls input[type=search]');
    input.value = 'tcp_';
    input.dispatchEvent(new Event('input'));
    return performance.now() - start; }"""


def opened(page: Path) -> tuple[list[float], list[float]]:
    """(ms until usable, ms of a search) of five visits."""
    from playwright.sync_api import sync_playwright

    ready, searched = [], []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for _ in range(5):
            tab = browser.new_page()
            tab.goto(page.as_uri())
            tab.wait_for_selector("html[data-ready]")
            ready.append(float(tab.get_attribute("html", "data-ready") or "nan"))
            searched.append(float(tab.evaluate(_SEARCH)))
            tab.close()
        browser.close()
    return ready, searched


def main() -> int:
    """Print the figures; exit status 1 when over 3 MB or 2 s."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    rows, strings = stacks(count + count // 2, 8_000), names(8_000)
    with tempfile.TemporaryDirectory() as place:
        page = Path(place) / "page.html"
        for seed, (name, some) in enumerate((("a", rows[:count]), ("b", rows[-count:])), 1):
            store.save(profile(some, strings, seed), Path(place) / f"{name}.nsprof")
        words = ["report", "b.nsprof", "--baseline", "a.nsprof", "--html", str(page), "-q"]
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "nsprof", *words], cwd=place, check=True)
        made_s = time.perf_counter() - started
        ready, searched = opened(page)
        size_mb = page.stat().st_size / 1e6
    print(f"{count:,} stacks a side: page of {size_mb:.2f} MB, made in {made_s:.1f} s")
    print(f"usable after {statistics.median(ready):.0f} ms (of five visits: {min(ready):.0f} to {max(ready):.0f})")
    print(f"a search takes {statistics.median(searched):.0f} ms")
    return int(size_mb > 3 or statistics.median(ready) > 2000)


if __name__ == "__main__":
    sys.exit(main())
