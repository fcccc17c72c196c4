"""host: the client runs in the host namespace. The baseline of every comparison."""

from __future__ import annotations

from nsprof.topology.maker import Maker
from nsprof.topology.shapes.base import Shape


def _make(m: Maker) -> None:
    m.host_up(m.names.wire, m.addresses.host)


SHAPE = Shape(
    name="host",
    chain="client -> w0 ~ eth0 -> server",
    difference="none: this is the baseline",
    drawing="""\
 host                                    remote
+--------------------------+            +----------------------+
| client                   |            |               server |
|   |                      |   wire     |                 |    |
|   +-- IP -- w0 ----------+~~~~~~~~~~~~+-- eth0 -- IP ---+    |
+--------------------------+            +----------------------+""",
    make=_make,
    has_containers=False,
)
