"""Under lockdown=confidentiality kprobes are refused and named; what remains counts all the same."""

from __future__ import annotations

import socket

from nsprof.collect.ladder.count import CallCounter


def test_lockdown_refuses_kprobes_by_name_and_the_rest_counts() -> None:
    with CallCounter(["udp_rcv", "udp_sendmsg"], returns=["udp_rcv"], rungs=("fentry", "fexit", "kprobe")) as counter:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
            end.bind(("127.0.0.1", 0))
            for _ in range(23):
                end.sendto(b"x", end.getsockname())
                assert end.recv(10) == b"x"
        counts, rows = counter.read(), {row.name: row for row in counter.probe_infos()}
    print(rows)
    for name, row in rows.items():
        if row.state == "attached":
            assert row.rung in ("fentry", "fexit")
            assert counts[name] == 23
        else:
            assert "the kernel is locked down: confidentiality" in row.reason
    with CallCounter(["udp_rcv"], rungs=("kprobe",)) as counter:
        (row,) = counter.probe_infos()
    assert row.state == "refused"
    assert "kprobe" in row.reason
    assert "the kernel is locked down: confidentiality" in row.reason
