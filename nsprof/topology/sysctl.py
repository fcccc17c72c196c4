"""Kernel settings under /proc/sys/net: that tree shows the namespace of the thread that opens it."""

from __future__ import annotations

from pathlib import Path

from nsprof.errors import TopologyError

__all__ = ["FORWARDING_V6", "devices_with_forwarding", "has_ipv6", "read", "write"]

_ROOT = Path("/proc/sys/net")
FORWARDING_V6 = "ipv6/conf/all/forwarding"


def has_ipv6() -> bool:
    """Whether this kernel has IPv6 at all."""
    return (_ROOT / "ipv6").is_dir()


def read(name: str) -> str:
    """The value of a setting ("ipv4/ip_forward"), "" where the kernel has no such setting."""
    try:
        return (_ROOT / name).read_text().strip()
    except OSError:
        return ""


def write(name: str, value: str) -> None:
    """Change a setting. Raises TopologyError."""
    try:
        (_ROOT / name).write_text(value)
    except OSError as error:
        hint = "run it as root (sudo)" if isinstance(error, PermissionError) else ""
        shown = "net." + name.replace("/", ".")
        raise TopologyError(f"setting {shown}={value}: {error.strerror}", hint) from error


def devices_with_forwarding() -> dict[str, str]:
    """The IPv6 forwarding setting of every device: writing `all` overwrites them, so they are kept before."""
    names = sorted(p.parent.name for p in (_ROOT / "ipv6/conf").glob("*/forwarding"))
    order = ["all", "default", *(n for n in names if n not in ("all", "default"))]
    return {f"ipv6/conf/{name}/forwarding": read(f"ipv6/conf/{name}/forwarding") for name in order}
