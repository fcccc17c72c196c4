"""What a killed nsprof left: said before a measurement that it would disturb, or removed where that is safe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nsprof.cli.common import tell
from nsprof.errors import TopologyError
from nsprof.escape import own_name, shell_word
from nsprof.files import scratch_left_behind
from nsprof.units import counted

if TYPE_CHECKING:
    from nsprof.topology.leftovers import Leftover

__all__ = ["directories", "mind"]

_NAMED = 4


def mind(*, quiet: bool = False) -> None:
    """Remove the temporary directories of killed nsprofs, and name their namespaces and processes, which take part in
    what is measured: a line each on stderr, nothing where there is nothing. The latter are removed only on request.
    """
    removed = scratch_left_behind(remove=True)
    if quiet:
        return
    if removed:
        tell(f"removed {directories(removed)}")
    try:
        from nsprof.topology.leftovers import leftovers

        found = leftovers()
    except TopologyError:  # not root: whoever may not read them cannot remove them either
        return
    if found:
        tell(_sentence(found))


def directories(places: Sequence[Path]) -> str:
    """The temporary directories in words."""
    noun = "temporary directory" if len(places) == 1 else f"{len(places)} temporary directories"
    shown = ", ".join(shell_word(str(place)) for place in places[:_NAMED])
    more = f" and {len(places) - _NAMED} more" if len(places) > _NAMED else ""
    return f"{noun} of a killed nsprof: {shown}{more}"


def _sentence(found: Sequence[Leftover]) -> str:
    pids = [str(each.pid) for each in found if each.pid]
    who = "an nsprof that was killed" if len(found) == 1 else f"{len(found)} nsprofs that were killed"
    owner = f" (PID {', '.join(pids[:_NAMED])}{', ...' if len(pids) > _NAMED else ''})" if pids else ""
    left = [counted(sum(each.namespaces for each in found), "namespace")]
    inside = [f"{pid} {name}" for each in found for pid, name in each.processes]
    if inside:
        more = f" and {len(inside) - _NAMED} more" if len(inside) > _NAMED else ""
        left.append(f"process{'es' if len(inside) > 1 else ''} {', '.join(inside[:_NAMED])}{more}")
    return f"left behind by {who}{owner}: {', '.join(left)}; '{own_name()} topo clean' removes them"
