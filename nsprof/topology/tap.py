"""A tap device in the calling thread's namespace, for a guest's network card."""

from __future__ import annotations

import fcntl
import os
import struct

from nsprof.errors import TopologyError

__all__ = ["make_tap"]

# include/uapi/linux/if_tun.h
_TUNSETIFF, _TUNSETPERSIST = 0x400454CA, 0x400454CB
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000


def make_tap(name: str) -> None:
    """Make it, with room for virtio headers (so that offloads work) and to stay when closed. Raises TopologyError."""
    try:
        door = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise TopologyError(f"a tap device for the guest: /dev/net/tun: {error.strerror}", "modprobe tun") from error
    try:
        flags = _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR
        fcntl.ioctl(door, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
        fcntl.ioctl(door, _TUNSETPERSIST, 1)
    except OSError as error:
        raise TopologyError(f"a tap device for the guest: {error.strerror}", "the kernel wants CONFIG_TUN") from error
    finally:
        os.close(door)
