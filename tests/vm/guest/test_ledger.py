"""The ledger on kernel functions: heads reallocated, copies, checksums, segments, fragments, each with its twin."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator

import pytest

from nsprof.collect.ladder.finding import kernel_symbols
from nsprof.collect.ledger.counting import Ledger
from nsprof.collect.ledger.names import FUNCTIONS
from nsprof.observe import Observer
from tests.ledger_bed import COUNT, Bed, counted, datagrams, ethtool, observer, routed


@pytest.fixture(scope="module")
def made() -> Iterator[Bed]:
    with routed() as standing:
        yield standing


@pytest.fixture(scope="module")
def ledger_() -> Ledger:
    return Ledger(budget_share=0, calibrate=False)


@pytest.fixture(scope="module")
def watching(ledger_: Ledger) -> Iterator[Observer]:
    for module in ("nf_conntrack", "nf_defrag_ipv4", "br_netfilter", "nf_tables", "vxlan"):
        subprocess.run(["modprobe", "-q", module], check=False)
    with observer(ledger_) as loaded:
        yield loaded


def test_every_function_stands_on_a_rung_or_says_why_not(watching: Observer, made: Bed, ledger_: Ledger) -> None:
    seen = counted(watching, made, datagrams(made, COUNT, 100))
    print(f"attached in {ledger_.attach_s * 1e3:.0f} ms")
    rows = {row.name: row for row in seen.profile.probes}
    for name, row in rows.items():
        print(name, row.target, row.rung, row.state, row.hits, f"{row.attach_ms:.1f} ms", row.reason)
    # Functions that handle user memory (lib/iov_iter.c) and assembly are closed to probes on some kernels: told so.
    missing = {n for n, row in rows.items() if row.state == "refused" and "closed to probes" not in row.reason}
    table = kernel_symbols().by_function
    unexpected = {f.name for f in FUNCTIONS if f.name in missing and any(s in table for s in (f.name, *f.also))}
    assert unexpected == set()
    standing = {name for name, row in rows.items() if row.state == "attached"}
    assert {"pskb_expand_head", "skb_checksum_help", "ip_do_fragment", "__skb_gso_segment", "skb_clone"} <= standing


@pytest.mark.parametrize("size", [1000, 700])
def test_user_copies_are_exactly_the_payload_in_its_namespace(watching: Observer, made: Bed, size: int) -> None:
    seen = counted(watching, made, datagrams(made, COUNT, size))
    for row in seen.lines("copy from user") + seen.lines("copy to user"):
        print(row)
    assert (seen.calls("copy from user", "c"), seen.size("copy from user", "c")) == (COUNT, COUNT * size)
    assert (seen.calls("copy to user", "r"), seen.size("copy to user", "r")) == (COUNT, COUNT * size)
    assert seen.calls("copy from user", "h") == seen.calls("copy to user", "h") == 0
    # Debian closes _copy_from_iter to probes. Since 6.3 a tracepoint tells what sockets took, before inet_sendmsg.
    told = "sock_send_length" if int(os.uname().release.split(".")[1]) >= 3 else "inet_sendmsg"
    assert seen.calls("copy from user", "c", detail=told) == COUNT
    assert [seen.calls(what) for what in ("checksum", "fragmented", "reassembly", "gso software")] == [0, 0, 0, 0]


@pytest.mark.parametrize("size", [4000, 9000])
def test_fragmentation_and_reassembly_are_those_of_arithmetic(watching: Observer, made: Bed, size: int) -> None:
    made.ip("h", "link", "set", "pr", "mtu", "1400")
    made.ip("c", "link", "set", "eth0", "mtu", "9100")
    made.ip("h", "link", "set", "pc", "mtu", "9100")
    try:
        seen = counted(watching, made, datagrams(made, COUNT, size))
    finally:
        for name, device in (("h", "pr"), ("c", "eth0"), ("h", "pc")):
            made.ip(name, "link", "set", device, "mtu", "1500")
    pieces = -(-(size + 8) // 1376)
    assert seen.calls("fragmented", "h", "pr") == COUNT
    assert seen.size("fragmented", "h", "pr") == COUNT * (size + 28)
    assert seen.calls("fragments tx", "h", "pr") == COUNT * pieces
    assert seen.calls("reassembly", "r", "eth0") == COUNT * pieces
    assert seen.calls("fragmented", "c") == 0
    # ip_forward may be left by a tail call: that it was a received packet is seen from the receive core.
    assert all("netif_receive_skb" in row[2] for row in seen.lines("fragmented", "h"))


@pytest.mark.parametrize("size", [1000, 700])
def test_checksum_of_a_forwarded_packet_is_made_before_a_device_that_cannot(
    watching: Observer, made: Bed, size: int
) -> None:
    ethtool(made, "h", "pr", "tx", "off")
    try:
        seen = counted(watching, made, datagrams(made, COUNT, size))
    finally:
        ethtool(made, "h", "pr", "tx", "on")
    assert seen.calls("checksum", "h", detail="skb_checksum_help") == COUNT
    assert seen.size("checksum", "h", detail="skb_checksum_help") == COUNT * (size + 8)  # UDP's header is summed too
    # the tracepoints alone say the same of the payload
    assert seen.size("checksum (inferred)", "h", "pr") == COUNT * size
    assert "validate_xmit_skb" in seen.lines("checksum", "h")[0][2]


@pytest.mark.parametrize("size", [1000, 700])
def test_checksum_made_while_copying_is_exactly_the_payload(watching: Observer, made: Bed, size: int) -> None:
    ethtool(made, "c", "eth0", "tx", "off")
    try:
        seen = counted(watching, made, datagrams(made, COUNT, size))
    finally:
        ethtool(made, "c", "eth0", "tx", "on")
    for row in seen.lines("checksum") + seen.lines("checksum primitive"):
        print(row)
    if seen.rung("csum_and_copy_from_iter") != "none":
        assert seen.size("checksum (inferred)", "c", "eth0") == COUNT * size
    # On 6.12 the compiler has put csum_and_copy_from_iter into its callers: then only the queue and the device tell.
    inlined = os.uname().release.startswith("6.12.") and not seen.calls("checksum", "c")
    if not inlined:
        assert (seen.calls("checksum", "c"), seen.size("checksum", "c")) == (COUNT, COUNT * size)
    else:
        assert seen.size("checksum (inferred)", "c", "eth0") == COUNT * size


@pytest.mark.parametrize("segments", [16, 8])
def test_segmentation_in_software_gives_as_many_segments_as_computed(
    watching: Observer, made: Bed, segments: int
) -> None:
    work = datagrams(made, COUNT, 1000 * segments, segment=1000)
    ethtool(made, "h", "pr", "tx-udp-segmentation", "off")
    try:
        seen = counted(watching, made, work)
    finally:
        ethtool(made, "h", "pr", "tx-udp-segmentation", "on")
    assert seen.calls("gso software", "h", "pr") == COUNT
    assert seen.calls("gso segments", "h", "pr") == COUNT * segments
    assert seen.calls("skb tx", "h", "pr") == COUNT * segments
    assert seen.calls("gso software", "c") == 0
    twin = counted(watching, made, work)
    assert twin.calls("gso software", "h") == twin.calls("gso segments", "h") == 0
    # A socket without UDP_GRO wants single datagrams: what came whole is segmented at the receiver.
    assert twin.calls("gso segments", "r") == COUNT * segments


def test_device_that_needs_headroom_makes_one_reallocation_a_packet(watching: Observer, made: Bed) -> None:
    twin = counted(watching, made, datagrams(made, COUNT, 500))
    assert twin.calls("head realloc") == 0
    for name, here, there in (("h", 2, 1), ("r", 1, 2)):
        words = ("type", "vxlan", "id", "7", "local", f"198.18.82.{here}", "remote", f"198.18.82.{there}")
        made.ip(name, "link", "add", "vx0", *words, "dstport", "4789", "dev", "pr" if name == "h" else "eth0")
        made.address(name, "vx0", f"198.18.83.{here}/24")
        made.ip(name, "link", "set", "vx0", "up")
    try:
        made.address("r", "lo", "198.18.84.1/32")
        made.ip("h", "route", "add", "198.18.84.1", "via", "198.18.83.1")
        counted(watching, made, datagrams(made, 2, 500, to="198.18.84.1"))  # neighbours
        seen = counted(watching, made, datagrams(made, COUNT, 500, to="198.18.84.1"))
    finally:
        made.ip("h", "link", "del", "vx0")
        made.ip("r", "link", "del", "vx0")
    for row in [r for r in seen.profile.ledger if r.what == "head realloc"]:
        print(row, seen.profile.namespace_label(row.namespace), seen.profile.device_label(row.device))
    rows = seen.lines("head realloc", "h", detail="headroom")
    assert sum(row[0] for row in rows) == COUNT
    assert all("ip_forward" in row[2] for row in rows)
    assert seen.calls("head realloc", "c") == 0


@contextlib.contextmanager
def ruleset(made: Bed, name: str, rules: str) -> Iterator[None]:
    nft = ["ip", "netns", "exec", made.full(name), "nft"]
    subprocess.run([*nft, "-f", "-"], input=rules.encode(), check=True, timeout=20)
    try:
        yield
    finally:
        subprocess.run([*nft, "flush ruleset"], check=True, timeout=20)


def test_netfilter_hooks_and_conntrack_are_counted_a_packet(watching: Observer, made: Bed) -> None:
    before = counted(watching, made, datagrams(made, COUNT, 100))
    # Hooks may be there without any rule: Debian's AppArmor has one behind routing.
    assert [before.calls(what, "h") for what in ("nft chain", "conntrack", "nft rules in chains entered")] == [
        0,
        0,
        0,
    ]
    for hook in ("IPv4 prerouting", "IPv4 forward"):
        assert before.calls("netfilter hook", "h", detail=hook) == 0
    rules = "table ip t { chain f { type filter hook forward priority 0; ct state new counter; counter; }; }"
    with ruleset(made, "h", rules):
        counted(watching, made, datagrams(made, 1, 100))
        seen = counted(watching, made, datagrams(made, COUNT, 100))
    for row in [r for r in seen.profile.ledger if r.what.startswith(("netfilter", "nft", "conntrack"))]:
        print(row, seen.profile.namespace_label(row.namespace))
    assert seen.calls("conntrack", "h") == COUNT
    assert seen.calls("netfilter hook", "h", detail="IPv4 forward") == COUNT
    assert seen.calls("netfilter hook functions", "h", detail="IPv4 forward") == COUNT  # the chain
    assert seen.calls("netfilter hook", "h", detail="IPv4 prerouting") == COUNT
    # tracking, and putting fragments together before it
    assert seen.calls("netfilter hook functions", "h", detail="IPv4 prerouting") == 2 * COUNT
    extra = seen.calls("netfilter hook", "h", detail="postrouting") - before.calls(
        "netfilter hook", "h", detail="postrouting"
    )
    assert extra in (0, COUNT)  # conntrack's confirmation, at a hook that AppArmor may have already
    assert seen.calls("netfilter hook", "c", detail="forward") == seen.calls("conntrack", "c") == 0


@pytest.mark.parametrize("rules", [500, 50])
def test_rules_of_the_chains_that_packets_enter_are_counted(watching: Observer, made: Bed, rules: int) -> None:
    body = "".join(
        f"ip daddr 203.0.113.{number % 250} udp dport {1000 + number} counter drop;" for number in range(rules)
    )
    with ruleset(made, "h", f"table ip t {{ chain f {{ type filter hook forward priority 0; {body} }}; }}"):
        seen = counted(watching, made, datagrams(made, COUNT, 100))
    assert seen.calls("nft chain", "h") == COUNT
    assert seen.calls("nft rules in chains entered", "h") == COUNT * rules
    assert seen.calls("nft chain", "c") == seen.calls("nft rules in chains entered", "r") == 0
    with ruleset(made, "h", "table ip t { chain f { type filter hook forward priority 0; }; }"):
        twin = counted(watching, made, datagrams(made, COUNT, 100))
    assert (twin.calls("nft chain", "h"), twin.calls("nft rules in chains entered", "h")) == (COUNT, 0)


def test_closed_and_wrong_names_are_refused_and_the_rest_is_counted(made: Bed) -> None:
    with observer(Ledger(budget_share=0, calibrate=False, functions=("udp_rvc", "udp_rcv", "skb_clone"))) as chosen:
        seen = counted(chosen, made, datagrams(made, COUNT, 100))
    rows = {row.name: row for row in seen.profile.probes}
    assert rows["udp_rvc"].state == "refused"
    assert "did you mean udp_rcv" in rows["udp_rvc"].reason
    assert seen.calls("calls of udp_rcv") == COUNT
