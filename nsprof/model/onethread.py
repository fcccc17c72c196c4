"""Loads numpy without the threads of its linear algebra, which nothing here uses.

OpenBLAS starts a thread for every CPU when it is loaded, and they spin before they sleep: 0.1 s of CPU time at each
start of a program that takes 0.5 s. The variable is taken back at once: programs that nsprof runs must not see it.
"""

from __future__ import annotations

import os
import sys

_VARIABLE = "OPENBLAS_NUM_THREADS"

if "numpy" not in sys.modules and _VARIABLE not in os.environ:
    os.environ[_VARIABLE] = "1"
    try:
        import numpy  # noqa: F401 - loaded for whoever asks for it next
    finally:
        del os.environ[_VARIABLE]
