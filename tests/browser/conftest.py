"""One headless Chromium for all browser tests; every page reports its errors and what it asks of the network."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support import need

FLAGS = [
    "--no-sandbox",  # the tests run as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The browser; skips with a reason where there is none."""
    need("browser")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        yield browser
        browser.close()


@dataclass
class Watch:
    """What a page did that it must not do."""

    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture
def visit(chromium: Any) -> Iterator[Callable[..., Any]]:
    """`visit(text, suffix, **context)` opens the text as a file; afterwards nothing may have gone wrong."""
    contexts: list[Any] = []
    watch = Watch()
    with tempfile.TemporaryDirectory(prefix="nsprof-browser-") as place:

        def go(text: str, suffix: str = ".html", *, address: str = "", **options: Any) -> Any:
            file = Path(place) / f"page{len(contexts)}{suffix}"
            file.write_text(text, encoding="utf-8")
            options.setdefault("viewport", {"width": 1200, "height": 900})
            options.setdefault("color_scheme", "light")
            context = chromium.new_context(**options)
            contexts.append(context)
            page = context.new_page()
            page.on("console", lambda m: watch.errors.append(m.text) if m.type in ("error", "warning") else None)
            page.on("pageerror", lambda e: watch.errors.append(str(e)))
            page.on("dialog", lambda d: (watch.errors.append(f"dialog: {d.message}"), d.dismiss()))
            page.on(
                "request", lambda r: watch.requests.append(r.url) if not r.url.startswith(file.as_uri()) else None
            )
            page.goto(file.as_uri() + address)
            return page

        yield go
        for context in contexts:
            context.close()
    assert watch.errors == []
    assert watch.requests == []
