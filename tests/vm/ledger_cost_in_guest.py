"""Run in a guest whose clock counts instructions: what a hit of the ledger's own programs costs on each rung.

As cost_in_guest.py, which counts calls and nothing else: here a program finds the namespace and device, takes the
caller's stack and books bytes.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
from collections.abc import Iterator

from nsprof.collect.ladder import finding as ladder
from nsprof.collect.ladder.batch import attach_batch, load_batch
from nsprof.collect.ledger.probes import Group, Probe, open_functions, open_tracepoints
from tests.vm.cost_in_guest import CALLS, ROUNDS, _instructions

#: Each is passed once by a datagram over lo.
FUNCTION, TRACEPOINT = "enqueue_to_backlog", "queue"


@contextlib.contextmanager
def attached(group: Group, probe: Probe, rung: str) -> Iterator[None]:
    assert probe.found is not None
    if rung == "kprobe_multi":
        assert group.program is not None
        places = [(address, probe.slot) for _, _, address in probe.found.symbols]
        loaded = load_batch(group.program.code("probed_skb0"), name="cost")
        fds = [loaded, attach_batch(loaded, places, on_return=False)]
    else:
        fds = ladder.attach(probe.found, {rung: probe.codes[rung]}, name="cost").fds
    group.open_gate(True)
    before = int(group.tally()[probe.slot])
    yield
    hits = int(group.tally()[probe.slot]) - before
    group.take()
    while fds:
        os.close(fds.pop())
    assert hits == CALLS * ROUNDS, f"{rung}: {hits} hits"


def main() -> None:
    """Prints rung -> instructions a hit, over the datagram without a probe."""
    figures = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.bind(("127.0.0.1", 0))
        bare = _instructions(end)
        for group, name in ((open_tracepoints(), TRACEPOINT), (open_functions(), FUNCTION)):
            probe = next(each for each in group.probes if each.name == name)
            for rung in (*probe.codes, *(("kprobe_multi",) if "kprobe" in probe.codes else ())):
                try:
                    with attached(group, probe, rung):
                        figures[rung] = round(_instructions(end) - bare)
                except OSError as error:
                    if error.errno != errno.EOPNOTSUPP:  # a kernel without batches
                        raise
            group.close()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
