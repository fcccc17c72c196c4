"""Driver and offload features of a device in the current namespace, through the ethtool ioctl.

The names are the kernel's own feature names as `ethtool -k` prints them (include/uapi/linux/ethtool.h).
"""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct

__all__ = ["driver", "feature_names", "features"]

_SIOCETHTOOL = 0x8946
_GDRVINFO, _GSTRINGS, _GSSET_INFO, _GFEATURES = 0x03, 0x1B, 0x37, 0x3A
_SS_FEATURES = 4
_NAME_BYTES = 32


def _call(channel: socket.socket, device: str, request: bytes) -> bytes:
    """One SIOCETHTOOL; returns the request as the kernel left it. Raises OSError (EOPNOTSUPP, ENODEV)."""
    buffer = ctypes.create_string_buffer(request, len(request))
    # struct ifreq: 16 bytes of name, then a pointer
    fcntl.ioctl(channel, _SIOCETHTOOL, struct.pack("16sQ16x", device.encode()[:15], ctypes.addressof(buffer)))
    return buffer.raw


def driver(channel: socket.socket, device: str) -> str:
    """The driver's name ("veth", "bridge", "virtio_net", ...). Raises OSError."""
    raw = _call(channel, device, struct.pack("<I", _GDRVINFO).ljust(196, b"\0"))
    return raw[4:36].split(b"\0")[0].decode("ascii", "replace")


def feature_names(channel: socket.socket, device: str) -> tuple[str, ...]:
    """Names of all features of this kernel, by bit number; the same for every device. Raises OSError."""
    raw = _call(channel, device, struct.pack("<IIQI4x", _GSSET_INFO, 0, 1 << _SS_FEATURES, 0))
    count = struct.unpack_from("<I", raw, 16)[0]
    raw = _call(channel, device, struct.pack("<III", _GSTRINGS, _SS_FEATURES, count) + bytes(count * _NAME_BYTES))
    return tuple(
        raw[12 + i * _NAME_BYTES : 12 + (i + 1) * _NAME_BYTES].split(b"\0")[0].decode("ascii", "replace")
        for i in range(count)
    )


def features(channel: socket.socket, device: str, names: tuple[str, ...]) -> dict[str, bool]:
    """Feature -> active, for every feature that the device has on or could have. Raises OSError."""
    blocks = (len(names) + 31) // 32
    raw = _call(channel, device, struct.pack("<II", _GFEATURES, blocks) + bytes(blocks * 16))
    found = {}
    for bit, name in enumerate(names):
        available, requested, active, never = struct.unpack_from("<4I", raw, 8 + bit // 32 * 16)
        mask = 1 << bit % 32
        if name and (active & mask or (available | requested) & mask & ~never):
            found[name] = bool(active & mask)
    return found
