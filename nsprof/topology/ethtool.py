"""Offloads through the ethtool ioctl (include/uapi/linux/ethtool.h): no `ethtool` program, any kernel.

By the names of single features and not by the old ETHTOOL_STSO and its like: those miss features that were added
since (Linux 6.17's tx-tcp-accecn-segmentation survives "tso off").
"""

from __future__ import annotations

import ctypes
import fcntl
import fnmatch
import functools
import os
import socket
import struct

from nsprof.errors import TopologyError

__all__ = ["masks", "read_all", "set_", "set_masks"]

_SIOCETHTOOL = 0x8946
_GSTRINGS, _GSSET_INFO, _GFEATURES, _SFEATURES = 0x1B, 0x37, 0x3A, 0x3B
_SS_FEATURES, _NAME_BYTES = 4, 32
#: Which features a word of `ethtool -K` means, in the order of their dependence.
_GROUPS = {
    "rx": "rx-checksum",
    "tx": "tx-checksum-*",
    "sg": "tx-scatter-gather*",
    "tso": "tx-tcp*-segmentation",
    "gso": "tx-generic-segmentation",
    "gro": "rx-gro",
}


def _call(device: str, request: bytes) -> bytes:
    """One ethtool command in the calling thread's namespace; the answer has the request's length."""
    room = ctypes.create_string_buffer(request, len(request))
    ifreq = struct.pack("16sP", device.encode(), ctypes.addressof(room)) + bytes(16)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as door:
        try:
            fcntl.ioctl(door, _SIOCETHTOOL, ifreq)
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise TopologyError(f"device {device}: offloads cannot be read or changed: {reason}") from error
    return room.raw


@functools.cache
def _names(device: str) -> tuple[str, ...]:
    """The kernel's names of all features, by bit number; the same for every device."""
    info = _call(device, struct.pack("=IIQI", _GSSET_INFO, 0, 1 << _SS_FEATURES, 0))
    count = int(struct.unpack_from("=I", info, 16)[0])
    raw = _call(device, struct.pack("=III", _GSTRINGS, _SS_FEATURES, count) + bytes(count * _NAME_BYTES))
    cells = (raw[12 + i * _NAME_BYTES : 12 + (i + 1) * _NAME_BYTES] for i in range(count))
    return tuple(cell.split(b"\0")[0].decode("ascii", "replace") for cell in cells)


def _members(device: str, group: str) -> int:
    """The features of a group as a bit mask."""
    return sum(1 << bit for bit, name in enumerate(_names(device)) if fnmatch.fnmatchcase(name, _GROUPS[group]))


def _features(device: str) -> tuple[int, int]:
    """(changeable, active) as bit masks: struct ethtool_get_features_block {available, requested, active, never}."""
    blocks = (len(_names(device)) + 31) // 32
    raw = _call(device, struct.pack("=II", _GFEATURES, blocks) + bytes(16 * blocks))
    changeable = active = 0
    for block in range(blocks):
        available, _, on, never = struct.unpack_from("=IIII", raw, 8 + 16 * block)
        changeable |= (available & ~never) << 32 * block
        active |= on << 32 * block
    return changeable, active


def masks(device: str) -> tuple[int, int]:
    """(changeable, active) features as bit masks, to be put back by `set_masks`."""
    return _features(device)


def set_masks(device: str, changeable: int, active: int) -> None:
    """Put back what `masks` gave."""
    if _features(device) == (changeable, active):
        return
    blocks = (len(_names(device)) + 31) // 32
    words = [(m >> 32 * block) & 0xFFFFFFFF for block in range(blocks) for m in (changeable, changeable & active)]
    _call(device, struct.pack(f"=II{2 * blocks}I", _SFEATURES, blocks, *words))


def read_all(device: str) -> dict[str, bool]:
    """Which offloads are on (any of their features), of those that the device has at all."""
    changeable, active = _features(device)
    masks = {group: _members(device, group) for group in _GROUPS}
    return {group: bool(mask & active) for group, mask in masks.items() if mask & (changeable | active)}


def set_(device: str, wanted: dict[str, bool], *, strict: bool = True) -> None:
    """Turn offloads on or off; if `strict`, read back that they are, and raise TopologyError for one that is not."""
    changeable, _ = _features(device)
    valid = requested = 0
    for group, on in wanted.items():
        mask = _members(device, group) & changeable
        valid |= mask
        requested |= mask if on else 0
    blocks = (len(_names(device)) + 31) // 32
    words = [(m >> 32 * block) & 0xFFFFFFFF for block in range(blocks) for m in (valid, requested)]
    _call(device, struct.pack(f"=II{2 * blocks}I", _SFEATURES, blocks, *words))
    if not strict:
        return
    _, active = _features(device)
    for group, on in wanted.items():
        mask = _members(device, group)
        # Off: none is left. On: all that were asked for are, and there was one to ask for.
        if (active & mask) if not on else (not mask & changeable or mask & changeable & ~active):
            why = "it may need others that are off" if on else "the device has it fixed"
            raise TopologyError(f"device {device}: offload {group} cannot be turned {'on' if on else 'off'}", why)
