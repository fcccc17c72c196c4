"""Run in a guest whose clock counts instructions: what a hit costs on each rung, in instructions.

A datagram is sent over lo and received, with and without a probe that it hits once. The least of many rounds
is taken, since an interrupt can only add.
"""

from __future__ import annotations

import json
import socket
import time

from nsprof.collect.ladder.count import CallCounter

NS_PER_INSTRUCTION = 2
CALLS = 50
ROUNDS = 100
FUNCTION = "udp_sendmsg"
TRACEPOINT = "net_dev_start_xmit"
RUNGS = {
    "none": False,
    "tp_btf": False,
    "raw_tp": False,
    "fentry": False,
    "fexit": True,
    "kprobe": False,
    "kretprobe": True,
}


def _instructions(end: socket.socket) -> float:
    """Of one datagram there and back into user space, the least of all rounds."""
    best = float("inf")
    address = end.getsockname()
    for _ in range(ROUNDS):
        begun = time.perf_counter_ns()
        for _ in range(CALLS):
            end.sendto(b"x", address)
            end.recv(10)
        best = min(best, (time.perf_counter_ns() - begun) / CALLS)
    return best / NS_PER_INSTRUCTION


def main() -> None:
    """Prints rung -> instructions a hit, over the datagram without a probe."""
    program = CallCounter.compile()
    figures = {}
    end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    end.bind(("127.0.0.1", 0))
    for rung, on_return in RUNGS.items():
        names = [] if rung == "none" else [FUNCTION]
        functions, returns = ([], names) if on_return else (names, [])
        points = {FUNCTION: TRACEPOINT}
        with CallCounter(functions, returns=returns, tracepoints=points, rungs=(rung,), program=program) as counter:
            assert not counter.refused, counter.refused
            figures[rung] = _instructions(end)
            assert all(count == CALLS * ROUNDS for count in counter.read().values())
    bare = figures.pop("none")
    program.close()
    end.close()
    print(json.dumps({rung: round(value - bare) for rung, value in figures.items()}))


if __name__ == "__main__":
    main()
