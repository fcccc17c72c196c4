"""nsprof tells what a network namespace costs on the Linux datapath, in which kernel function, and why.

From Python: `nsprof.open(path)` gives a handle with `.report()`, `.diff()`, `.flame()` (see `nsprof.api`).
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own costs 10 ms, in which nothing could answer a Ctrl-C yet (see __main__)
if TYPE_CHECKING:
    from typing import Any

    from nsprof.api import open_profile

    open = open_profile

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # Lazily, because every start of the command line imports this package.
    if name == "open":
        from nsprof.api import open_profile

        return open_profile
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
