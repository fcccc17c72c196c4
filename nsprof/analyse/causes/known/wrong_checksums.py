"""Packets thrown away for wrong checksums."""

from __future__ import annotations

from nsprof.analyse.causes.look import share_of, slower
from nsprof.analyse.causes.rule import Rule, Try

RULE = Rule(
    name="wrong-checksums",
    title="packets are thrown away for wrong checksums",
    what="Typically an unfinished checksum that left the machine through a path without checksum offload.",
    checks=(
        share_of(
            "Tcp.InCsumErrors",
            "Udp.InCsumErrors",
            "Udp6.InCsumErrors",
            "Icmp.InCsumErrors",
            "Icmp6.InCsumErrors",
            of=("Ip.InReceives", "Ip6.InReceives"),
            least=0.001,
            noun="packets with wrong checksums",
            scope="netns",
            why="random bit errors are a million times rarer",
        ),
        slower(),
    ),
    # What is thrown away is sent again.
    subsumes=("retransmits",),
    not_cpu=True,
    tries=(Try("switch tx checksum offload off on the device that leaves them unfinished", "ethtool -K DEV tx off"),),
    source="RFC 1071; Documentation/networking/checksum-offloads.rst",
    threshold="one packet in a thousand",
)
