"""The sampler's structs as numpy sees them: mirrors of probes/include/sample.h, checked against it by a test."""

from __future__ import annotations

import numpy as np

__all__ = ["CONTROL", "DUE_IDLE", "EVENTS_MAX", "SAMPLE_KEY", "SAMPLE_VALUE", "STACK", "STACK_DEPTH", "TALLY"]

STACK_DEPTH = 127
EVENTS_MAX = 8
#: In a key's `lateness`, beside the values of model.Lateness: late, and due while the CPU slept.
DUE_IDLE = 3

SAMPLE_KEY = np.dtype(
    [
        ("kernel_stack", "u8"),
        ("user_stack", "u8"),
        ("task_cookie", "u8"),
        ("tx_cookie", "u8"),
        ("rx_cookie", "u8"),
        ("task_ns", "u4"),
        ("tx_ns", "u4"),
        ("tx_ifindex", "u4"),
        ("rx_ns", "u4"),
        ("rx_ifindex", "u4"),
        ("slice", "u4"),
        ("tgid", "u4"),
        ("pid", "u4"),
        ("cpu", "u2"),
        ("event", "u1"),
        ("lateness", "u1"),
        ("rx_state", "u1"),
        ("tx_depth", "u1"),
        ("user_mode", "u1"),
        ("stack_state", "u1"),
        ("comm", "V16"),
    ]
)
SAMPLE_VALUE = np.dtype([("count", "u8"), ("weight", "u8")])
STACK = np.dtype([("length", "u8"), ("address", "u8", (STACK_DEPTH,)), ("code", "V16")])
TALLY = np.dtype(
    [
        ("hits", "u8"),
        ("weight", "u8"),
        ("map_full", "u8"),
        ("stack_full", "u8"),
        ("no_stack", "u8"),
        ("late", "u8"),
        ("missed", "u8"),
        ("last_due_ns", "u8"),
        ("last_period", "u8"),
        ("lateness_log2", "u8", (32,)),
    ]
)
CONTROL = np.dtype([("start_ns", "u8"), ("period_ns", "u8", (EVENTS_MAX,)), ("late_ns", "u8"), ("software", "u8")])
