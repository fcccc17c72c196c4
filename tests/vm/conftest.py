"""The guest's tests are collected in guests only; on the host test_guest_suite.py stands for them."""

from __future__ import annotations

import os

collect_ignore = [] if os.environ.get("NSPROF_GUEST") else ["guest"]
