"""`nsprof bench`: scenarios interleaved in fair order, one profile, one table.

plan        what is to be run, in which order       experiment  the same, read from a TOML file
run         the runs themselves                     warmup      what of a run is not steady yet
stopping    when there is enough evidence           resume      going on with an interrupted bench
kernels     the same on several kernels, in guests  pktgen      the kernel's packet generator in both directions
"""

from __future__ import annotations

from nsprof.bench.plan import BenchOptions, Case, Plan, blocks, fair_order, plan_of

__all__ = ["BenchOptions", "Case", "Plan", "blocks", "fair_order", "plan_of"]
