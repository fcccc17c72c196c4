"""The registry: one module a shape."""

from __future__ import annotations

import importlib

from nsprof.topology.shapes.base import Shape

__all__ = ["SHAPES", "Shape", "get"]

#: All shapes, in the order in which they add to one another.
SHAPES: tuple[str, ...] = (
    "host",
    "device",
    "veth-route",
    "veth-bridge",
    "veth-bridge-route",
    "veth-nat",
    "macvlan",
    "ipvlan",
    "vrf",
    "vxlan",
    "netkit",
)


def get(name: str) -> Shape:
    """The shape of that name (one of SHAPES)."""
    shape: Shape = importlib.import_module(f"nsprof.topology.shapes.{name.replace('-', '_')}").SHAPE
    return shape
