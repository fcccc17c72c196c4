"""What the other samples have that the modal one has not: the clock's work, told from the packet's own.

A guest's timer interrupts every few milliseconds whatever packets there are, and with it come accounting, RCU and
kernel threads. A sample in which that happens costs more; the modal one is a sample in which it does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from nsprof.kernelnames import fold_suffixes
from nsprof.vm.tcg_output import Output, TreeSample

__all__ = ["OWN_PATH", "Background", "Kind", "background_of", "kind_of"]

OWN_PATH = "the packets' own path"
#: The leafmost of these in a call path says why the path ran. Prefix -> kind.
_MARKS = (
    ("net_rx_action", OWN_PATH),
    ("net_tx_action", OWN_PATH),
    ("rcu_", "RCU"),
    ("note_gp_changes", "RCU"),
    ("get_random_", "random numbers"),
    ("__get_random_", "random numbers"),
    ("crng_", "random numbers"),
    ("asm_sysvec_apic_timer_interrupt", "timers"),
    ("run_timer_", "timers"),
    ("__run_timer", "timers"),
    ("asm_sysvec_", "other interrupts"),
    ("asm_common_interrupt", "other interrupts"),
    ("__schedule", "kernel threads"),
    ("schedule", "kernel threads"),
    ("run_rebalance_domains", "kernel threads"),
    ("sched_balance_softirq", "kernel threads"),
)
#: Roots of call paths that no system call began; a thread that went to sleep before counting began has no root.
_THREAD_ROOTS = ("ret_from_fork", "kthread", "[unknown]")


@dataclass(frozen=True)
class Kind:
    """One kind of it: in how many samples, how many instructions in all of them together, in which functions."""

    name: str
    samples: int
    instructions: int
    functions: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Background:
    """`alike` of `samples` samples are the modal one. The kinds' instructions add up to all that the others have more
    (or less) than it, `instructions`; dearest first."""

    alike: int
    samples: int
    kinds: tuple[Kind, ...]

    @property
    def instructions(self) -> int:
        """All samples' totals less as many modal ones."""
        return sum(kind.instructions for kind in self.kinds)


def kind_of(names: Sequence[str]) -> str:
    """Why a call path (leaf first) ran, by its leafmost function that tells; OWN_PATH where none does."""
    for name in names:
        for mark, kind in _MARKS:
            if name.startswith(mark):
                return kind
    return "kernel threads" if names and names[-1].startswith(_THREAD_ROOTS) else OWN_PATH


def background_of(output: Output, modal: TreeSample, samples: Sequence[TreeSample]) -> Background:
    """Compare every sample with the modal one, node by node."""
    usual = {node: row[1] for node, row in modal.counts.items()}
    kinds: dict[int, str] = {}
    seen: Counter[str] = Counter()
    functions: dict[str, Counter[str]] = {}
    alike = 0
    for sample in samples:
        now = {node: row[1] for node, row in sample.counts.items()}
        found: Counter[str] = Counter()
        for node in {*now, *usual}:
            more = now.get(node, 0) - usual.get(node, 0)
            if not more:
                continue
            names = output.names(node)
            kind = kinds.setdefault(node, kind_of(names))
            found[kind] += more
            functions.setdefault(kind, Counter())[fold_suffixes(names[0])] += more
        alike += not found
        seen.update(found.keys())
    result = [
        Kind(kind, count, sum(functions[kind].values()), tuple((n, c) for n, c in functions[kind].most_common() if c))
        for kind, count in seen.items()
    ]
    return Background(alike, len(samples), tuple(sorted(result, key=lambda each: (-each.instructions, each.name))))
