"""What a shape is: its words for people, and how it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsprof.topology.maker import Maker

__all__ = ["Shape"]


@dataclass(frozen=True, slots=True)
class Shape:
    """One scenario.

    `chain` is the way of a packet from client to server, `difference` what that adds to shape "host", `drawing`
    the picture for `nsprof topo show`, `needs` the kernel options, `make` what builds it between the host
    namespace's end of the wire and the containers. `own_offloads` is false where the containers' devices are children
    of the wire and have its offloads.
    """

    name: str
    chain: str
    difference: str
    drawing: str
    make: Callable[[Maker], None]
    needs: tuple[str, ...] = ("CONFIG_NET_NS", "CONFIG_VETH")
    has_containers: bool = True
    own_offloads: bool = True
