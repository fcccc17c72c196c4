"""What holds of the loss counters of every recording, on every kernel."""

from __future__ import annotations

import numpy as np

from nsprof.collect.sampling.batch import losses
from nsprof.collect.sampling.sampler import RawBatch


def assert_losses_are_explained(batch: RawBatch) -> None:
    """Every counter is a count of hits, and what is missing of the expected samples is told by them."""
    for event in range(len(batch.events)):
        found, hits = losses(batch, event), batch.hits(event)
        seen = int(batch.values["count"][batch.keys["event"] == event].sum())
        assert found.seen == seen == hits - found.map_full
        for each in (found.map_full, found.stack_collisions, found.no_stack):
            assert 0 <= each <= hits
        for window in batch.windows:
            tally = window.tallies[event]
            for name in ("map_full", "stack_full", "no_stack", "late"):
                assert (tally[name] <= 2 * tally["hits"]).all(), name  # a hit may store two stacks
            if batch.periods_ns[event]:
                assert (tally["weight"] == tally["hits"] * np.uint64(batch.periods_ns[event])).all()
        if batch.periods_ns[event]:
            assert found.expected - found.seen == found.map_full + found.lost_records
            assert 0 <= found.lost_records <= found.expected
