"""The simulated call tree against the kernel's own tracer: each stack that ftrace takes is a path of the tree."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from nsprof.kernelnames import fold_suffixes
from nsprof.model.scenario import TopologySpec
from nsprof.simulate import SimulateOptions, measure_all
from nsprof.simulate.plans import plan_for
from nsprof.vm import kernels, tcg_machine
from nsprof.vm.guest_minimal import GuestJob
from tests.support import need

pytestmark = pytest.mark.vm
SPEC = "debian:6.1"
#: Traced functions: far down in sending, forwarding, receiving and freeing.
TRACED = (
    "veth_xmit",
    "br_handle_frame",
    "enqueue_to_backlog",
    "ip_rcv_core",
    "sock_def_readable",
    "skb_release_data",
)
TRACE = """
mount -t tracefs none /sys/kernel/tracing; cd /sys/kernel/tracing
echo 0 > tracing_on
for f in {functions}; do echo $f >> set_ftrace_filter || exit 9; done
echo function > current_tracer; echo 1 > options/func_stack_trace
{traffic} > /tmp/words || exit 8
echo 0 > tracing_on
sed 's/^/NSPROF trace /' trace
"""


def _folded(name: str) -> str:
    """A function's name; the entry's is that of its start, as the tree has it."""
    return "entry_SYSCALL_64" if name.startswith("entry_SYSCALL_64") else fold_suffixes(name)


def _stacks(words: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The traced stacks, leaf first. A record is its function, then `=> caller` lines."""
    found: list[list[str]] = []
    for line in words:
        text = " ".join(line)
        if text == "<stack trace>" or text.endswith("<stack trace>"):
            found.append([])
        elif text.startswith("=> ") and found:
            found[-1].append(_folded(re.sub(r"\+0x.*", "", text[3:]).strip()))
    # Frames of the tracer itself, whose trampoline has no name of its own.
    kept = [tuple(name for name in stack if not name.startswith(("0x", "ftrace_", "arch_ftrace"))) for stack in found]
    return [stack for stack in kept if stack]


def _runs_along(stack: tuple[str, ...], path: tuple[str, ...]) -> bool:
    """Whether the stack is the path but for functions that jumped away: those left no frame for a tracer to see."""
    rest = iter(path)
    return stack[:1] == path[:1] and all(name in rest for name in stack)


def _first_packets(stack: tuple[str, ...]) -> bool:
    """Neighbours are asked for and told of, ports learn addresses: once, so no modal sample has that."""
    return any(word in name for name in stack for word in ("neigh", "arp_", "netlink"))


def test_stacks_taken_by_ftrace_are_the_paths_of_the_tree() -> None:
    need("vm", "gcc")
    options = SimulateOptions(kernels=(SPEC,), scenarios=("veth-bridge",), samples=3, rounds=1)
    (m,) = measure_all(options)
    paths = {tuple(map(_folded, m.output.names(node))) for node, row in m.sample.counts.items() if row[0]}
    paths = {path for path in paths if path[0] in TRACED}
    plan = plan_for(TopologySpec("veth-bridge"))
    ends = f"client=/run/netns/{plan.client} server=/run/netns/{plan.server} address={plan.address}"
    traffic = f"traffic workload=udp-rr packets=2 samples=1 warmup=4 {ends}"
    script = TRACE.format(functions=" ".join(TRACED), traffic=f"echo 1 > tracing_on; {traffic}")
    arguments = ("workload=command", "packets=1", "samples=1", f"client=/run/netns/{plan.client}", "server=-")
    job = GuestJob(plan, arguments, command=("sh", "-c", script))
    got = tcg_machine.boot(kernels.resolve(SPEC), job, tcg_machine.BootOptions(plugin=False))
    # Of the traffic: by its thread's system calls. Timers and kernel threads have no place in a modal sample.
    ours = [s for s in _stacks(got.of("trace")) if s[0] in TRACED and s[-2:-1] == ("do_syscall_64",)]
    usual = [stack for stack in ours if not _first_packets(stack)]
    assert len(usual) > 0.9 * len(ours) > 50
    assert [stack for stack in usual if not any(_runs_along(stack, path) for path in paths)] == []
    assert [path for path in paths if not any(_runs_along(stack, path) for stack in usual)] == []
    seen, calls = Counter(stack[0] for stack in usual), m.calls()
    for name in TRACED:  # as often as the tree says; a packet more or less went the first packets' way
        assert round(seen[name] / seen["ip_rcv_core"]) * calls["ip_rcv_core"] == calls[name] > 0
    print(f"{len(usual)} stacks, {len(set(usual))} of them different, are the tree's {len(paths)} paths")
