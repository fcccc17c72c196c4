"""Slow paths of the memory allocators."""

from __future__ import annotations

from nsprof.analyse.causes.rule import Owned, Rule, Try, words

RULE = Rule(
    name="slab-pressure",
    title="the allocators leave their fast paths (slab and pages)",
    what="Objects freed on another CPU than the one that allocated them, bursts and large buffers take the slow "
    "paths: "
    "locks of a node, the page allocator, zeroing.",
    owns=(
        Owned(
            words(
                "___slab_alloc __slab_alloc __slab_free new_slab allocate_slab get_partial_node get_any_partial "
                "put_cpu_partial __unfreeze_partials __pcs_replace_empty_main __pcs_replace_full_main refill_objects "
                "get_page_from_freelist rmqueue rmqueue_bulk __rmqueue_pcplist free_pcppages_bulk free_unref_page* "
                "__alloc_pages* __alloc_frozen_pages* clear_page* shrink_* __free_slab discard_slab barn_*"
            ),
            not_under=words("asm_exc_page_fault exc_page_fault copy_net_ns __mmap do_mmap copy_process"),
        ),
    ),
    fallback=True,
    tries=(Try("free where it was allocated (RPS, XPS), recycle pages (page_pool)", "slabtop; cat /proc/buddyinfo"),),
    source="mm/slub.c __slab_free()",
    threshold="2 % of the base's cost",
)
