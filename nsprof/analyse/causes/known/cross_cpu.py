"""Packets and wake-ups cross CPUs."""

from __future__ import annotations

from nsprof.analyse.causes.look import device_fact, rises
from nsprof.analyse.causes.rule import Owned, Rule, Try, words

RULE = Rule(
    name="cross-cpu",
    title="packets and wake-ups go to another CPU (IPIs, cold caches)",
    what="A packet handed to another CPU costs an inter-processor interrupt and the cache lines that move with it.",
    owns=(
        Owned(
            words(
                "net_rps_send_ipi net_rps_action_and_irq_enable rps_trigger_softirq smp_call_function_single_async "
                "generic_exec_single __smp_call_single_queue send_call_function_single_ipi ttwu_queue_wakelist "
                "sched_ttwu_pending flush_smp_call_function_queue __flush_smp_call_function_queue "
                "sysvec_call_function_single __sysvec_call_function_single asm_sysvec_call_function_single "
                "native_send_call_func_single_ipi default_send_IPI_single_phys x2apic_send_IPI "
                "native_smp_send_reschedule "
                "get_rps_cpu __x2apic_send_IPI_dest native_x2apic_icr_write"
            )
        ),
        # The other end of an interrupt: until it has been taken and interrupts are on again no timer can strike.
        Owned(
            words("handle_softirqs __do_softirq"),
            under=words("sysvec_call_function_single __sysvec_call_function_single asm_sysvec_call_function_single"),
            late=True,
        ),
    ),
    checks=(
        rises(
            "CAL interrupts",
            "RES interrupts",
            least=0.1,
            scope="irq",
            ratio=1.5,
            what="inter-processor interrupts",
            why="one for every tenth unit is a pattern",
        ),
        rises(
            "received_rps",
            least=0.1,
            scope="softnet",
            ratio=1.5,
            what="wake-ups by RPS of another CPU",
            why="one for every tenth unit is a pattern",
        ),
        device_fact(
            lambda f: tuple(sorted((f.get("rps") or {}).items())),
            lambda space, name, now, before: (
                f"RPS {', '.join(m for _, m in now)} on {name} in {space} (base: "
                f"{', '.join(m for _, m in before or ()) or 'none'})"
            ),
            "an RPS mask that differs from base's",
        ),
    ),
    needs_check=True,
    # Until the other CPU is awake and has its packet nothing else happens.
    subsumes=("waiting",),
    tries=(
        Try(
            "keep receive work and reader on one CPU, or on siblings of one core",
            "echo MASK > /sys/class/net/DEV/queues/rx-0/rps_cpus",
        ),
    ),
    source="Documentation/networking/scaling.rst",
    threshold="an interrupt for every tenth unit",
)
