"""Builds and removes the namespaces, links, addresses and routes of a scenario.

    with build(TopologySpec("veth-bridge")) as topo:
        ... run something in topo.client.netns_path, and its server in topo.server.netns_path ...

`build` takes a TopologySpec and gives a Topology (see `construction.Topology`), taken down on every exit path;
`raise_up` leaves it standing until `down`; `listing` and `clean` deal with what is there; `SHAPES` names the shapes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsprof.topology.shapes import SHAPES

if TYPE_CHECKING:
    from nsprof.topology.construction import Topology, build, raise_up
    from nsprof.topology.remove import clean, down, listing

__all__ = ["SHAPES", "Topology", "build", "clean", "down", "listing", "raise_up"]

_WHERE = {
    "build": "construction",
    "Topology": "construction",
    "raise_up": "construction",
    "clean": "remove",
    "down": "remove",
}


def __getattr__(name: str) -> Any:
    """Load on first use: pyroute2's messages take a quarter of a second to import."""
    import importlib

    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"nsprof.topology.{_WHERE.get(name, 'remove')}"), name)
