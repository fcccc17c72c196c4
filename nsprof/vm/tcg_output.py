"""What the plugin wrote: samples, each a call tree with counts; and the sample that stands for them.

Records, one a line: R (a sample begins: its totals), S (a node's counts), L (a cache line), T (a function that
touched it), A (an address's count), N (a node's name, once at the end), M (memory was copied), E (an error), Z
(complete).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from nsprof.errors import VmError

__all__ = ["QUANTITIES", "AddressCount", "Line", "Node", "Output", "TreeSample", "modal", "parse"]

#: In the order of the plugin's columns (probes/tcg/count.h).
QUANTITIES = (
    "instructions",
    "rep-iterations",
    "loads",
    "stores",
    "data-lines",
    "text-lines",
    "l1d-misses",
    "l1i-misses",
    "l2-misses",
)
_THUNKS = ("__x86_indirect_thunk_", "__x86_return_thunk", "__x86_indirect_call_thunk_", "__x86_indirect_jump_thunk_")


@dataclass(frozen=True, slots=True)
class Node:
    """One call path: its function and its caller's node (0: none). `address` is the function's.

    `tag` is that of probes/tcg/count.h: which end of the traffic acts (`actor`: 1 the client, 2 the server, 0 not
    told), and for the nodes at which a packet gets to a device, which reception or transmission it is (`number`).
    """

    parent: int
    function: int
    address: int
    name: str
    tag: int = 0

    @property
    def actor(self) -> int:
        """1: the client, 2: the server, 0: neither, or the node does not say."""
        return self.tag >> 8

    @property
    def number(self) -> int:
        """Which reception or transmission since the system call began, from 1; 0: the node is neither."""
        return self.tag & 0x7F

    @property
    def transmits(self) -> bool:
        """Whether `number` counts transmissions."""
        return bool(self.tag & 0x80)


@dataclass(frozen=True, slots=True)
class Line:
    """A 64-byte line that the sample touched: where, by how many loads and stores, first by which node."""

    text: bool
    address: int
    physical: int
    first_access: int
    first_instruction: int
    loads: int
    stores: int
    node: int


@dataclass(frozen=True, slots=True)
class AddressCount:
    """One instruction: executions, misses of its data (l1d, l2) and of its line (l1i), disassembled."""

    address: int
    count: int
    l1d: int
    l1i: int
    l2: int
    text: str


@dataclass
class TreeSample:
    """One sample. `totals` come from the counters, `counts` (node -> calls, then QUANTITIES) from the tree."""

    region: int
    index: int
    totals: Mapping[str, int]
    tree: str
    _lines: str = ""
    _touchers: str = ""
    _addresses: str = ""

    @cached_property
    def counts(self) -> dict[int, tuple[int, ...]]:
        """Node -> (calls, instructions, rep-iterations, ...)."""
        found: dict[int, tuple[int, ...]] = {}
        for row in self.tree.splitlines():
            node, *values = map(int, row.split())
            found[node] = tuple(values)
        return found

    @property
    def instructions(self) -> int:
        """Kernel instructions of the sample by the counter, a rep string instruction being one."""
        return self.totals["executed"] - self.totals["repeats"]

    @property
    def unmatched(self) -> int:
        """Returns and interrupt returns of which the tree did not know where they came from."""
        return self.totals["unmatched"] + self.totals["interrupt_unmatched"]

    def sum_of(self, quantity: str) -> int:
        """A quantity over all nodes."""
        column = QUANTITIES.index(quantity) + 1
        return sum(row[column] for row in self.counts.values())

    def lines(self) -> Iterator[Line]:
        """The footprint, in order of address."""
        rows = []
        for row in self._lines.splitlines():
            kind, *rest = row.split()
            numbers = [int(word, 16) for word in rest[:4]] + [int(word) for word in rest[4:]]
            rows.append(Line(kind == "t", *numbers))
        return iter(sorted(rows, key=lambda line: (line.text, line.address)))

    def touchers(self) -> Iterator[tuple[bool, int, int]]:
        """(text?, line address, function) of every function that touched a line."""
        for row in self._touchers.splitlines():
            kind, address, function = row.split()
            yield kind == "t", int(address, 16), int(function)

    def addresses(self) -> Iterator[AddressCount]:
        """What was executed, in order of address."""
        rows = []
        for row in self._addresses.splitlines():
            address, count, l1d, l1i, l2, *text = row.split(" ", 5)
            rows.append(AddressCount(int(address, 16), int(count), int(l1d), int(l1i), int(l2), " ".join(text)))
        return iter(sorted(rows, key=lambda each: each.address))


@dataclass
class Output:
    """All samples of a boot and the nodes that they refer to."""

    nodes: dict[int, Node]
    samples: list[TreeSample]
    snapshot: bool = False
    _paths: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def of(self, region: int) -> list[TreeSample]:
        """The samples of one region, in order."""
        return [sample for sample in self.samples if sample.region == region]

    def path(self, node: int) -> tuple[int, ...]:
        """Nodes from this one to its root, leaf first; branch thunks are left out unless they are the leaf.

        So a thunk's callee hangs below the function that called through it, and the tree still adds up.
        """
        known = self._paths.get(node)
        if known is None:
            chain, at = [node], self.nodes[node].parent
            while at:
                if not self.nodes[at].name.startswith(_THUNKS):
                    chain.append(at)
                at = self.nodes[at].parent
            known = self._paths[node] = tuple(chain)
        return known

    def names(self, node: int) -> tuple[str, ...]:
        """Function names of `path`."""
        return tuple(self.nodes[each].name for each in self.path(node))


def parse(text: str) -> Output:
    """Read the plugin's output. Raises VmError when it is incomplete (disk full, QEMU killed)."""
    nodes: dict[int, Node] = {}
    samples: list[TreeSample] = []
    snapshot = complete = False
    parts: dict[str, list[str]] = {}

    def close() -> None:
        if samples:
            last = samples[-1]
            last.tree = "\n".join(sorted(parts.get("S", ())))
            last._lines = "\n".join(parts.get("L", ()))
            last._touchers = "\n".join(parts.get("T", ()))
            last._addresses = "\n".join(parts.get("A", ()))
        parts.clear()

    for line in text.splitlines():
        kind, rest = line[:1], line[2:]
        if kind in "SLTA":
            parts.setdefault(kind, []).append(rest)
        elif kind == "R":
            close()
            region, index, *words = rest.split()
            totals = {key: int(value) for key, _, value in (word.partition("=") for word in words)}
            samples.append(TreeSample(int(region), int(index), totals, ""))
        elif kind == "N":
            number, parent, function, tag, address, name = rest.split(" ", 5)
            nodes[int(number)] = Node(int(parent), int(function), int(address, 16), name, int(tag, 16))
        elif kind == "M":
            snapshot = True
        elif kind == "E":
            raise VmError(f"the counting plugin failed: {rest}")
        elif kind == "Z":
            complete = True
    close()
    if not complete:
        raise VmError("the counting plugin's output is incomplete", "is the disk full where temporary files lie?")
    return Output(nodes, samples, snapshot)


def modal(samples: Sequence[TreeSample]) -> tuple[TreeSample, float]:
    """The sample whose tree occurs most often (the first such, of equals the cheapest), and its share.

    Medians of single functions need not add up to anything; one real sample does. Where hardly two trees are alike
    (TCP reckons with the clock) it is the sample of median total. Raises VmError without samples.
    """
    if not samples:
        raise VmError("the guest took no sample")
    often = Counter(_instructions_tree(sample) for sample in samples)
    most = max(often.values())
    if most <= len(samples) // 5:
        ordered = sorted(samples, key=lambda s: (s.instructions, s.index))
        middle = ordered[(len(ordered) - 1) // 2]
        return middle, often[_instructions_tree(middle)] / len(samples)
    first = min((s for s in samples if often[_instructions_tree(s)] == most), key=lambda s: (s.instructions, s.index))
    return first, most / len(samples)


def _instructions_tree(sample: TreeSample) -> str:
    """Nodes, calls and instructions: what a cache or a line's first toucher does not change."""
    return "\n".join(" ".join(row.split(" ", 4)[:4]) for row in sample.tree.splitlines())
