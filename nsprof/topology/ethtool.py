"""Offloads through the ethtool ioctl (include/uapi/linux/ethtool.h): no `ethtool` program, any kernel."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct

from nsprof.errors import TopologyError

__all__ = ["get", "read_all", "set_"]

_SIOCETHTOOL = 0x8946
#: name -> (ETHTOOL_G..., ETHTOOL_S...)
_COMMANDS = {
    "rx": (0x14, 0x15),
    "tx": (0x16, 0x17),
    "sg": (0x18, 0x19),
    "tso": (0x1E, 0x1F),
    "gso": (0x23, 0x24),
    "gro": (0x2B, 0x2C),
}


def _call(device: str, command: int, value: int = 0) -> int:
    """struct ethtool_value {cmd, data} behind struct ifreq; the calling thread's namespace."""
    words = (ctypes.c_uint32 * 2)(command, value)
    request = struct.pack("16sP", device.encode(), ctypes.addressof(words)) + bytes(16)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as door:
        fcntl.ioctl(door, _SIOCETHTOOL, request)
    return int(words[1])


def get(device: str, name: str) -> bool | None:
    """Whether an offload is on; None where the device has no such notion."""
    try:
        return bool(_call(device, _COMMANDS[name][0]))
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EINVAL):
            return None
        raise TopologyError(f"device {device}: offload {name} cannot be read: {error.strerror}") from error


def read_all(device: str) -> dict[str, bool]:
    """All offloads that the device has."""
    found = {name: get(device, name) for name in _COMMANDS}
    return {name: on for name, on in found.items() if on is not None}


def set_(device: str, wanted: dict[str, bool]) -> None:
    """Turn offloads on or off, and read back that they are. Raises TopologyError for one that cannot be set.

    In the order of their dependence: checksums and scatter-gather before what needs them.
    """
    for name in (n for n in _COMMANDS if n in wanted):
        try:
            _call(device, _COMMANDS[name][1], int(wanted[name]))
        except OSError as error:
            if get(device, name) != wanted[name]:
                raise TopologyError(
                    f"device {device}: offload {name} cannot be changed: {os.strerror(error.errno or 0)}"
                ) from error
    for name, on in wanted.items():
        if get(device, name) != on:
            needs = " (it needs others that are off)" if on else ""
            raise TopologyError(f"device {device}: offload {name} cannot be turned {'on' if on else 'off'}{needs}")
