"""Masquerading and idle rules through the `nft` program: rules on its standard input, no shell."""

from __future__ import annotations

import shutil
import subprocess

from nsprof.errors import TopologyError
from nsprof.netns import spawn

__all__ = ["masquerade", "matching_nothing", "program", "remove"]


def program() -> str:
    """Where nft is. Raises TopologyError naming its package."""
    found = shutil.which("nft") or shutil.which("nft", path="/usr/sbin:/sbin")
    if found is None:
        raise TopologyError("shape 'veth-nat' needs the nft program", "apt install nftables")
    return found


def _run(netns: str | None, rules: str) -> str:
    with spawn(
        [program(), "-f", "-"], netns=netns, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        _, err = process.communicate(rules.encode(), timeout=20)
    lines = err.decode("utf-8", "replace").strip().splitlines()
    return "" if process.returncode == 0 else (lines[0] if lines else f"exit status {process.returncode}")


def masquerade(netns: str, table: str, family: int, source: str, device: str) -> None:
    """Source NAT (and with it connection tracking) for what leaves by `device`. Raises TopologyError."""
    kind = "ip" if family == 4 else "ip6"
    wrong = _run(
        netns,
        f"table {kind} {table} {{\n"
        " chain postrouting {\n"
        "  type nat hook postrouting priority srcnat; policy accept;\n"
        f'  {kind} saddr {source} oifname "{device}" masquerade\n'
        " }\n}\n",
    )
    if wrong:
        raise TopologyError(
            f"masquerading could not be set up: {wrong}", "the kernel wants CONFIG_NFT_MASQ and CONFIG_NF_CONNTRACK"
        )


def matching_nothing(netns: str, table: str, count: int) -> None:
    """`count` rules one after the other for what is forwarded, none of which matches. Raises TopologyError."""
    lines = "".join(f"  ip saddr 203.0.113.{number % 254 + 1} drop\n" for number in range(count))  # RFC 5737
    wrong = _run(
        netns,
        f"table ip {table} {{\n chain forward {{\n  type filter hook forward priority filter; policy accept;\n"
        f"{lines} }}\n}}\n",
    )
    if wrong:
        raise TopologyError(f"rules could not be set up: {wrong}", "the kernel wants CONFIG_NF_TABLES_IPV4")


def remove(netns: str | None, table: str) -> None:
    """Remove the table of either family from a namespace; one that is not there is fine."""
    for kind in ("ip", "ip6"):
        _run(netns, f"table {kind} {table}\ndelete table {kind} {table}\n")
