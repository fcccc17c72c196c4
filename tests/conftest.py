"""Markers become needs: `@pytest.mark.root` and its like skip with a printed reason (see tests/support.py)."""

from __future__ import annotations

import pytest

from tests.support import need


@pytest.fixture(autouse=True)
def _needs(request: pytest.FixtureRequest) -> None:
    for name in ("root", "bpf", "vm", "browser", "netperf"):
        if request.node.get_closest_marker(name):
            need(name)
