"""Requests as bytes: what is filled into a template is what pyroute2 would have encoded."""

from __future__ import annotations

import errno
import socket
import struct

import pytest
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ndmsg import ndmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from nsprof.topology import capability
from nsprof.topology import netlink as nl

ADDRESSES = ["198.18.0.1", "198.19.4.232", "2001:2:0:18::1", "2001:2:0:19::4e8"]


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_request_says_what_was_asked(address: str) -> None:
    six = ":" in address
    op = nl.add_address(7, address, 64 if six else 16, "somewhere")
    message = ifaddrmsg(op.data)
    message.decode()
    assert (message["index"], message["prefixlen"]) == (7, 64 if six else 16)
    assert message["family"] == (socket.AF_INET6 if six else socket.AF_INET)
    assert message.get_attr("IFA_LOCAL") == message.get_attr("IFA_ADDRESS") == address
    assert (message.get_attr("IFA_FLAGS") or 0) & 0x02 == (0x02 if six else 0), "no duplicate address detection"
    assert struct.unpack_from("=I", op.data)[0] == len(op.data)


@pytest.mark.parametrize(
    ("network", "via"), [("198.18.0.0/15", "198.19.0.1"), ("198.18.1.1/32", ""), ("2001:2::/48", "2001:2:0:19::1")]
)
def test_a_route_request_says_what_was_asked(network: str, via: str) -> None:
    message = rtmsg(nl.add_route(network, via=via, index=300, table=1001, metric=5).data)
    message.decode()
    assert f"{message.get_attr('RTA_DST')}/{message['dst_len']}" == network
    assert (message.get_attr("RTA_GATEWAY") or "") == via
    assert (message.get_attr("RTA_OIF"), message.get_attr("RTA_TABLE"), message["table"]) == (300, 1001, 252)
    assert message.get_attr("RTA_PRIORITY") == 5
    assert message["type"] == 1


def test_an_unreachable_route_is_one_and_its_removal_names_the_same() -> None:
    made = nl.add_route("198.18.0.0/15", metric=9, unreachable=True)
    gone = nl.del_unreachable("198.18.0.0/15", 9)
    assert made.data[16:] == gone.data[16:]
    assert struct.unpack_from("=H", gone.data, 4) == (25,)
    assert errno.ESRCH in gone.tolerate


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_neighbour_request_says_what_was_asked(address: str) -> None:
    message = ndmsg(nl.add_neighbour(12, address, "02:6e:73:01:03:e7").data)
    message.decode()
    assert (message["ifindex"], message["state"], message["flags"]) == (12, 0x80, 0)
    assert message.get_attr("NDA_DST") == address
    assert message.get_attr("NDA_LLADDR") == "02:6e:73:01:03:e7"


def test_requests_do_not_change_one_another() -> None:
    first = nl.add_address(7, ADDRESSES[0], 16, "x").data
    nl.add_address(8, ADDRESSES[1], 16, "x")
    assert nl.add_address(7, ADDRESSES[0], 16, "x").data == first


def test_a_lack_of_the_kernel_names_its_option_and_a_refusal_its_words() -> None:
    op = nl.add_link("ipvlan", "eth0")
    lack = nl._refusal(op, errno.EOPNOTSUPP, "Unknown device type")
    assert "CONFIG_IPVLAN" in lack.message and "modprobe ipvlan" in lack.hint
    said = nl._refusal(op, errno.EBUSY, "Device is a bridge port")
    assert said.message == "making ipvlan device eth0: Device or resource busy (Device is a bridge port)"


@pytest.mark.parametrize(
    ("user", "capabilities", "hint"),
    [
        (1000, 0, "run it as root (sudo)"),
        (0, ~(1 << 12), "CAP_NET_ADMIN is missing"),
        (0, 1 << 12, "CAP_NET_ADMIN is there: a seccomp filter"),
    ],
)
def test_a_refusal_names_what_is_missing(
    user: int, capabilities: int, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capability.os, "geteuid", lambda: user)
    monkeypatch.setattr(capability, "_effective", lambda: capabilities)
    refusal = nl._refusal(nl.set_link("w0", up=True), errno.EPERM, "")
    assert refusal.message == "setting device w0: Operation not permitted"
    assert refusal.hint.startswith(hint)
