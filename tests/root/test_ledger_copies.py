"""Copies between user space and kernel: what sockets took and gave is the payload, whatever the path of the data."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator

import pytest

from nsprof import netns
from nsprof.observe import Observer, Traffic
from tests.ledger_bed import COUNT, REMOTE, Bed, counted, datagrams, observer, routed

pytestmark = [pytest.mark.root, pytest.mark.bpf]
_SO_ZEROCOPY, _MSG_ZEROCOPY = 60, 0x4000000


@pytest.fixture(scope="module")
def made() -> Iterator[Bed]:
    with routed("u") as standing:
        yield standing


@pytest.fixture(scope="module")
def watching() -> Iterator[Observer]:
    with observer() as loaded:
        if not any(probe.name == "sent" for probe in loaded._source._ledger.probes):  # type: ignore[union-attr]
            pytest.skip("this kernel has no tracepoint sock_send_length (since 6.3)")
        yield loaded


def stream(made: Bed, give: Callable[[socket.socket], None], size: int) -> Callable[[], Traffic]:
    """`give` sends `size` bytes over a TCP connection from c to r, where all of them are read."""

    def work() -> Traffic:
        with netns.entered(made.path("r")):
            listener = socket.create_server((REMOTE, 9001))
        with netns.entered(made.path("c")):
            client = socket.socket()
        with listener, client:
            client.settimeout(10)
            client.connect((REMOTE, 9001))
            peer, _ = listener.accept()
            with peer:
                peer.settimeout(10)
                give(client)
                got = 0
                while got < size:
                    got += len(peer.recv(65536))
        return Traffic()

    return work


@pytest.mark.parametrize("size", [1000, 700, 20_000])
def test_datagrams_are_copied_once_at_either_end_and_nowhere_between(
    watching: Observer, made: Bed, size: int
) -> None:
    seen = counted(watching, made, datagrams(made, COUNT, size))
    assert (seen.calls("copy from user", "c"), seen.size("copy from user", "c")) == (COUNT, COUNT * size)
    assert (seen.calls("copy to user", "r"), seen.size("copy to user", "r")) == (COUNT, COUNT * size)
    for what, name in (
        ("copy from user", "h"),
        ("copy to user", "h"),
        ("copy from user", "r"),
        ("copy to user", "c"),
    ):
        assert seen.calls(what, name) == 0
    assert all("sys_sendto" in row[2] for row in seen.lines("copy from user", "c"))
    assert seen.lines("copy from user", "c", detail="bytes that sockets took (sock_send_length)")


@pytest.mark.parametrize("size", [100_000, 50_000])
def test_a_stream_is_copied_once_at_either_end(watching: Observer, made: Bed, size: int) -> None:
    seen = counted(watching, made, stream(made, lambda end: end.sendall(b"x" * size), size))
    assert seen.size("copy from user", "c") == size
    assert seen.size("copy to user", "r") == size
    assert seen.calls("copy from user", "r") == seen.calls("copy to user", "c") == 0


def test_a_file_sent_by_the_kernel_is_no_copy_from_user(watching: Observer, made: Bed) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(b"x" * 50_000)
        file.flush()

        def give(end: socket.socket) -> None:
            sent = 0
            while sent < 50_000:
                sent += os.sendfile(end.fileno(), file.fileno(), sent, 50_000 - sent)

        seen = counted(watching, made, stream(made, give, 50_000))
    assert seen.calls("copy from user") == 0
    assert seen.size("pages sent without a copy", "c", detail="sendfile") == 50_000
    assert seen.size("copy to user", "r") == 50_000


def test_a_socket_that_may_send_without_copying_is_not_said_to_copy(watching: Observer, made: Bed) -> None:
    def give(end: socket.socket) -> None:
        end.setsockopt(socket.SOL_SOCKET, _SO_ZEROCOPY, 1)
        assert end.send(b"x" * 10_000, _MSG_ZEROCOPY) == 10_000

    seen = counted(watching, made, stream(made, give, 10_000))
    assert seen.calls("copy from user") == 0
    assert seen.size("copied or sent without a copy", "c", detail="unknown") == 10_000


def test_a_send_that_fails_is_no_copy_of_known_size(watching: Observer, made: Bed) -> None:
    def refused() -> Traffic:
        with netns.entered(made.path("c")):
            source = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with source, contextlib.suppress(OSError):
            source.sendto(b"x" * 65_508, (REMOTE, 9000))  # one more than a datagram holds
        return Traffic()

    seen = counted(watching, made, refused)
    assert (seen.calls("send failed", "c"), seen.calls("copy from user", "c")) == (1, 0)


def test_a_reader_that_asks_for_the_whole_length_is_told_apart(watching: Observer, made: Bed) -> None:
    def work() -> Traffic:
        with netns.entered(made.path("r")):
            sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with netns.entered(made.path("c")):
            source = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with sink, source:
            sink.bind((REMOTE, 9000))
            sink.settimeout(5)
            source.sendto(b"x" * 900, (REMOTE, 9000))
            assert sink.recv_into(bytearray(10), 10, socket.MSG_TRUNC) == 900
        return Traffic()

    seen = counted(watching, made, work)
    assert seen.calls("copy to user", "r") == 0
    assert seen.size("read with MSG_TRUNC", "r", detail="at most") == 900


def test_local_sockets_are_not_the_network_s(watching: Observer, made: Bed) -> None:
    def work() -> Traffic:
        here, there = socket.socketpair()
        with here, there:
            here.sendall(b"x" * 5000)
            assert len(there.recv(8000)) == 5000
        return Traffic()

    seen = counted(watching, made, work)
    inside = {made.full(name) for name in made.names}
    assert not [row for row in seen.profile.ledger if row.what.startswith("copy") and row.value_bytes == 5000]
    assert inside.isdisjoint(seen.profile.namespace_label(row.namespace) for row in seen.profile.ledger)


def test_ipv6_datagrams_are_counted_alike(watching: Observer) -> None:
    def work() -> Traffic:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as end:
            end.bind(("::1", 0))
            for _ in range(COUNT):
                end.sendto(b"x" * 333, end.getsockname())
                assert len(end.recv(1000)) == 333
        return Traffic()

    if subprocess.run(["ip", "-6", "addr", "show", "dev", "lo"], capture_output=True, check=True).stdout == b"":
        pytest.skip("lo has no IPv6 address")
    with routed("v") as one:
        one.sysctl("c", "net/ipv6/conf/lo/disable_ipv6", "0")

        def inside() -> Traffic:
            with netns.entered(one.path("c")):
                return work()

        seen = counted(watching, one, inside)
    assert (seen.calls("copy from user", "c"), seen.size("copy from user", "c")) == (COUNT, COUNT * 333)
    assert (seen.calls("copy to user", "c"), seen.size("copy to user", "c")) == (COUNT, COUNT * 333)
