"""Shapes that many hosts cannot build for want of modules: built, reachable, and 23 datagrams are 23."""

from __future__ import annotations

import socket

import pytest

from nsprof.errors import TopologyError
from nsprof.model.scenario import TopologySpec
from nsprof.netns import entered
from nsprof.topology import SHAPES, build

DATAGRAMS = 23
SIZE = 100


def _watch(netns: str, device: str) -> socket.socket:
    """A packet socket on a device: unlike its counters it tells our datagrams from MLD and neighbour discovery."""
    with entered(netns):
        watcher = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))  # ETH_P_ALL
        watcher.bind((device, 0x0003))
        watcher.setblocking(False)
    return watcher


def _sent(watcher: socket.socket) -> list[int]:
    """The numbers of the datagrams that went out by the device, whatever they were wrapped in."""
    numbers = []
    while True:
        try:
            data, (_, _, kind, *_) = watcher.recvfrom(2048)
        except BlockingIOError:
            return numbers
        if kind == socket.PACKET_OUTGOING and len(data) > SIZE and data[-SIZE:] == data[-1:] * SIZE:
            numbers.append(data[-1])


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_23_datagrams_are_23_on_the_wire(shape: str, family: int, release: str) -> None:
    if shape == "netkit" and tuple(int(part) for part in release.split(".")[:2]) < (6, 7):
        with pytest.raises(TopologyError, match="netkit"), build(TopologySpec(shape, family=family)):
            pass
        return
    kind = socket.AF_INET if family == 4 else socket.AF_INET6
    with build(TopologySpec(shape, family=family, pin=False)) as topo:
        place, device = topo.reference
        with entered(topo.server.netns_path):
            server = socket.socket(kind, socket.SOCK_DGRAM)
        with entered(topo.client.netns_path):
            client = socket.socket(kind, socket.SOCK_DGRAM)
        with server, client:
            server.bind((topo.server_address, 7777))
            server.settimeout(3)
            # One round first: neighbours are resolved then, and no ARP or ND packet is counted below.
            client.sendto(b"first", (topo.server_address, 7777))
            assert server.recv(100) == b"first"
            with _watch(place.netns_path, device) as watcher:
                for number in range(DATAGRAMS):
                    client.sendto(bytes([number]) * SIZE, (topo.server_address, 7777))
                got = [server.recv(200)[0] for _ in range(DATAGRAMS)]
                server.settimeout(0.05)
                with pytest.raises(TimeoutError):
                    server.recv(200)
                sent = _sent(watcher)
        assert got == list(range(DATAGRAMS))
        assert sent == list(range(DATAGRAMS))
