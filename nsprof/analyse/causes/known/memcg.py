"""Memory cgroup accounting."""

from __future__ import annotations

from nsprof.analyse.causes.rule import Owned, Rule, Try, words

RULE = Rule(
    name="memcg",
    title="memory cgroup accounting of packets and sockets",
    what="Socket buffers and slab objects of a container are charged to its cgroup, one by one.",
    owns=(
        Owned(
            words(
                "mem_cgroup_* __mem_cgroup_* memcg_* __memcg_* obj_cgroup_* charge_memcg try_charge* page_counter_* "
                "drain_obj_stock drain_stock refill_obj_stock refill_stock consume_obj_stock consume_stock "
                "uncharge_batch get_obj_cgroup_from_* mod_memcg_* __mod_memcg_* account_slab_page current_obj_cgroup"
            ),
            not_under=words("asm_exc_page_fault exc_page_fault"),
        ),
    ),
    tries=(
        Try(
            "switch kernel memory accounting off to see its part", "cgroup.memory=nokmem,nosocket on the command line"
        ),
    ),
    source="mm/memcontrol.c; Documentation/admin-guide/cgroup-v2.rst",
    threshold="2 % of the base's cost",
)
