"""Markers become needs: `@pytest.mark.root` and its like skip with a printed reason (see tests/support.py)."""

from __future__ import annotations

import signal

import pytest

from tests.support import need

# Started behind a shell's `&`, everything ignores Ctrl-C and hands that on: then it could not be tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _needs(request: pytest.FixtureRequest) -> None:
    for name in ("root", "bpf", "vm", "browser", "netperf"):
        if request.node.get_closest_marker(name):
            need(name)
