"""Create or remove network namespaces through pyroute2, one by one, and print how long each took.

    python -m nsprof.topology.churn_worker create|delete NAME...

A program of its own, so that what it costs is a process's as it is with other tools. Prints one line an operation:
nanoseconds, then the error if there was one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable


def main(words: list[str]) -> int:
    """Run; returns the exit status."""
    from pyroute2 import netns

    action: Callable[[str], object] = netns.create if words[0] == "create" else netns.remove
    status = 0
    for name in words[1:]:
        began, said = time.perf_counter_ns(), ""
        try:
            action(name)
        except OSError as error:
            said, status = str(error).replace("\n", " "), 1
        print(time.perf_counter_ns() - began, said, flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
