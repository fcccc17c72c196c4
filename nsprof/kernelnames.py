"""What the kernel's function names say by themselves: suffixes, entry points, idle loops, contexts.

Facts about names only, no policy: the categories live in `analyse.categories`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from nsprof.model.profile import Context

__all__ = ["HARDIRQ_ENTRY", "SOFTIRQ_ENTRY", "context_of", "fold_suffixes"]

# gcc: .isra .constprop .part .cold .localalias; clang: .llvm.<hash>; the order of stacking varies.
_SUFFIX = re.compile(r"\.(?:isra|constprop|part|cold|llvm|localalias|lto_priv|clone|specialized)(?:\.\d+)*(?=\.|$)")

#: Frames in which softirqs run: whoever is below them on the stack is an innocent bystander.
SOFTIRQ_ENTRY = frozenset(
    {
        "handle_softirqs",  # 6.10+
        "__do_softirq",
        "do_softirq_own_stack",
        "run_ksoftirqd",
        "napi_threaded_poll",
        "napi_threaded_poll_loop",
        "napi_kthread_create",
    }
)

#: Frames through which a hardware interrupt enters.
HARDIRQ_ENTRY = frozenset(
    {
        "__common_interrupt",
        "common_interrupt",
        "asm_common_interrupt",
        "handle_irq_event",
        "__irq_exit_rcu",
        "irq_exit_rcu",
        "sysvec_apic_timer_interrupt",
        "asm_sysvec_apic_timer_interrupt",
        "__sysvec_apic_timer_interrupt",
        "sysvec_call_function_single",
        "sysvec_call_function",
        "sysvec_reschedule_ipi",
        "sysvec_irq_work",
        "__irqentry_text_start",
        "do_IRQ",
        "smp_apic_timer_interrupt",
        "apic_timer_interrupt",
        "el1_interrupt",
        "el0_interrupt",
        "gic_handle_irq",
        "xen_evtchn_do_upcall",
        "sysvec_hyperv_stimer0",
        "sysvec_kvm_asyncpf_interrupt",
        "sysvec_xen_hvm_callback",
    }
)

# Interrupt exit frames: the softirq that runs below them is found first because it is leafmost; what remains in
# them after the softirq is interrupt exit work.
_NMI_ENTRY = frozenset({"exc_nmi", "asm_exc_nmi", "default_do_nmi", "end_repeat_nmi", "nmi"})

#: Leaves in which an idle CPU halts or polls.
IDLE_LEAF = frozenset(
    {
        "default_idle",
        "native_safe_halt",
        "pv_native_safe_halt",
        "acpi_safe_halt",
        "acpi_idle_do_entry",
        "acpi_idle_enter",
        "mwait_idle",
        "mwait_idle_with_hints",
        "intel_idle",
        "intel_idle_ibrs",
        "intel_idle_irq",
        "intel_idle_xstate",
        "poll_idle",
        "cpu_idle_poll",
        "default_idle_call",
        "arch_cpu_idle",
        "haltpoll_enter_idle",
        "default_enter_idle",
        "native_halt",
        "xen_hypercall_sched_op",
        "cpu_do_idle",
        "psci_cpu_suspend_enter",
        "amd_e400_idle",
        "cpuidle_enter_state",
        "cpuidle_enter_s2idle",
        "tdx_safe_halt",
    }
)


@lru_cache(maxsize=200_000)
def fold_suffixes(name: str) -> str:
    """The function's name without what the compiler added: `foo.isra.0.cold` -> `foo`, also stacked.

    Symbols that differ only in such a suffix are one function for every comparison. So are `foo` and `foo_noprof`:
    kernels with memory allocation profiling (6.10 on) have the allocator's functions under the latter name.
    """
    folded = (_SUFFIX.sub("", name) if "." in name else name).removesuffix("_noprof")
    return folded or name


def context_of(kernel_frames: Sequence[str], *, has_user: bool = False, swapper: bool = False) -> Context:
    """The context of one sample from its kernel frames, leaf first.

    The leafmost softirq/hardirq/NMI entry decides. `swapper` says that the current task is the idle task:
    halted or polling is IDLE, its other work SCHED. Without kernel frames it is USER if there are user frames.
    """
    if not kernel_frames:
        return Context.USER if has_user else Context.UNKNOWN
    if swapper and kernel_frames[0] in IDLE_LEAF:
        return Context.IDLE
    for name in kernel_frames:
        if name in SOFTIRQ_ENTRY:
            return Context.SOFTIRQ
        if name in HARDIRQ_ENTRY:
            return Context.HARDIRQ
        if name in _NMI_ENTRY:
            return Context.NMI
    return Context.SCHED if swapper else Context.TASK
