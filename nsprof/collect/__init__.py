"""Observes a running system: sampler, probes, counters, host snapshot, symbols."""
