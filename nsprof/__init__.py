"""nsprof tells what a network namespace costs on the Linux datapath, in which kernel function, and why."""

from __future__ import annotations

__version__ = "0.1.0"
