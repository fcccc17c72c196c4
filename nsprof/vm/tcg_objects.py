"""Objects of the guest's kernel whose C type follows from a pointer of known type that leads to them.

Slab memory of the kmalloc caches and per-CPU allocations say nothing of what lies in them. But a device points to its
addresses and queues, a network namespace to its routing tables and statistics, and those pointers' types are in the
debug information: so what they point to is certain. Each walk says by which pointers it goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["Typed", "known_objects"]

TypeOf = Callable[[str], Any]
_POINTER_BYTES = 8
#: A trie of 32-bit keys is no deeper, whatever the memory holds.
_TRIE_DEPTH = 33


@dataclass(frozen=True)
class Typed:
    """An object of known C type; arrays hold `count` of it. `size` in bytes.

    `member` names all of it where it is an array without members of its own. `kind` is the NamedLine's: "typed" for
    slab memory, "percpu", or "table" for a hash table in memory of its own.
    """

    start: int
    size: int
    type: Any
    label: str
    count: int = 1
    member: str = ""
    kind: str = "typed"


def known_objects(program: Any, type_of: TypeOf) -> list[Typed]:
    """All that can be reached, in order of address. What this kernel lays out otherwise is left out."""
    from drgn.helpers.linux import net

    found: list[Typed] = []
    for walk in (_neighbours, _tables):
        found += _what_there_is(walk(program, type_of))
    shift = program["__per_cpu_offset"][0].value_()
    for space in net.for_each_net(program):
        for each in (_namespace(space, type_of), _statistics(space, type_of, shift), _routes(space, type_of, shift)):
            found += _what_there_is(each)
        for device in net.for_each_netdev(space):
            found += _what_there_is(_device(device, type_of, shift))
    return sorted((each for each in found if each.start and each.size > 0), key=lambda each: each.start)


def _what_there_is(walk: Iterator[Typed]) -> Iterator[Typed]:
    """A walk as far as it goes: a member or symbol that this kernel does not have ends it."""
    from drgn import FaultError

    try:
        yield from walk
    except (FaultError, LookupError, AttributeError):
        return


def _object(type_of: TypeOf, name: str, pointer: Any, label: str = "", **more: Any) -> Iterator[Typed]:
    known = type_of(f"struct {name}")
    if known is not None and pointer:
        yield Typed(int(pointer.value_()), known.size, known, label or name, **more)


def _neighbours(program: Any, type_of: TypeOf) -> Iterator[Typed]:
    """arp_tbl and nd_tbl: the table's head, its buckets, and every neighbour."""
    from drgn.helpers.linux import net

    known = type_of("struct neighbour")
    for name in ("arp_tbl", "nd_tbl"):
        table = program[name].address_of_()
        head = table.nht
        yield from _object(type_of, "neigh_hash_table", head)
        if not hasattr(head, "hash_buckets"):  # Linux 6.13 has other lists, which drgn walks
            for each in net.neigh_table_for_each_neighbor(table):
                yield Typed(each.value_(), known.size, known, "neighbour")
            continue
        buckets = 1 << int(head.hash_shift.value_())
        start = head.hash_buckets.value_()
        yield Typed(start, _POINTER_BYTES * buckets, None, "neighbours' hash buckets", kind="table")
        for number in range(buckets):
            each = head.hash_buckets[number]
            while each:
                yield Typed(each.value_(), known.size, known, "neighbour")
                each = each.next


def _tables(program: Any, type_of: TypeOf) -> Iterator[Typed]:
    """Hash tables that a symbol points to."""
    table = program["udp_table"]
    slot = type_of("struct udp_hslot")
    count = int(table.mask.value_()) + 1
    yield Typed(table.hash.value_(), slot.size, slot, "udp_table.hash", count, kind="table")
    second = table.hash2.type_.type  # Linux 6.13: a slot with more in it
    yield Typed(table.hash2.value_(), second.size, second, "udp_table.hash2", count, kind="table")
    count = int(program["ip_idents_mask"].value_()) + 1
    yield Typed(program["ip_idents"].value_(), 4 * count, None, "ip_idents", kind="table")


def _namespace(space: Any, type_of: TypeOf) -> Iterator[Typed]:
    """struct net: its settings, hooks, and devices by index and name."""
    for member in ("devconf_all", "devconf_dflt"):
        yield from _object(type_of, "ipv4_devconf", getattr(space.ipv4, member))
    heads = type_of("struct hlist_head")
    for member in ("dev_index_head", "dev_name_head"):
        pointer = getattr(space, member)
        yield Typed(pointer.value_(), heads.size * 256, None, member, member="struct hlist_head[]")
    hooks = type_of("struct nf_hook_entries")
    for family in ("hooks_ipv4", "hooks_ipv6", "hooks_bridge"):
        for each in getattr(space.nf, family):
            if each:
                size = hooks.size + 16 * int(each.num_hook_entries.value_())
                yield Typed(each.value_(), size, None, "nf_hook_entries", member="struct nf_hook_entries.hooks[]")


def _statistics(space: Any, type_of: TypeOf, shift: int) -> Iterator[Typed]:
    """net.mib: this CPU's counters of each protocol."""
    for member in space.mib.type_.members:
        pointer = getattr(space.mib, member.name) if member.name else None
        kind = member.type
        if pointer is None or kind.kind.name != "POINTER" or not kind.type.is_complete() or not pointer:
            continue
        percpu = str(kind.type.tag).rstrip("0123456789").endswith("_mib") and not str(member.name).startswith("icmp")
        if percpu:
            yield Typed(pointer.value_() + shift, kind.type.size, kind.type, str(member.name), kind="percpu")


def _routes(space: Any, type_of: TypeOf, shift: int) -> Iterator[Typed]:
    """net.ipv4.fib_table_hash: tables, their tries, the leaves' aliases, and what these lead to."""
    from drgn import cast
    from drgn.helpers.linux.list import hlist_for_each_entry

    heads = space.ipv4.fib_table_hash
    for number in range(256):
        for table in hlist_for_each_entry("struct fib_table", heads[number].address_of_(), "tb_hlist"):
            yield from _object(type_of, "fib_table", table)
            trie = cast("struct trie *", table.tb_data)
            yield from _object(type_of, "trie", trie)
            yield from _trie(trie.kv[0].tnode[0], type_of, shift, _TRIE_DEPTH)


def _trie(vector: Any, type_of: TypeOf, shift: int, depth: int) -> Iterator[Typed]:
    """A key_vector: a leaf (no bits) with its aliases, or an inner node with its children."""
    from drgn import container_of, offsetof
    from drgn.helpers.linux.list import hlist_for_each_entry

    if not vector or not depth:
        return
    node = container_of(vector, "struct tnode", "kv")
    known = type_of("struct tnode")
    bits = int(vector.bits.value_())
    head = offsetof(known, "kv") + offsetof(type_of("struct key_vector"), "tnode")
    if not bits:
        yield Typed(node.value_(), known.size, known, "tnode")
        for alias in hlist_for_each_entry("struct fib_alias", vector.leaf.address_of_(), "fa_list"):
            yield from _route(alias.fa_info, type_of, shift)
        return
    yield Typed(node.value_(), head, known, "tnode")
    children = _POINTER_BYTES << bits
    yield Typed(node.value_() + head, children, None, "tnode", member="struct tnode.kv.tnode[]")
    for number in range(1 << bits):
        yield from _trie(vector.tnode[number], type_of, shift, depth - 1)


def _route(info: Any, type_of: TypeOf, shift: int) -> Iterator[Typed]:
    """fib_info, its next hops, and this CPU's route of each."""
    from drgn import offsetof

    known, hop = type_of("struct fib_info"), type_of("struct fib_nh")
    head, count = offsetof(known, "fib_nh"), int(info.fib_nhs.value_())
    yield Typed(info.value_(), head, known, "fib_info")
    if not count:
        return
    yield Typed(info.value_() + head, hop.size, hop, "fib_info", count)
    for number in range(count):
        pointer = info.fib_nh[number].nh_common.nhc_pcpu_rth_output
        if pointer:
            yield Typed(pointer.value_() + shift, _POINTER_BYTES, None, "nhc_pcpu_rth_output", kind="percpu")


def _device(device: Any, type_of: TypeOf, shift: int) -> Iterator[Typed]:
    """net_device: itself, its private part, its port of a bridge, and all that it points to."""
    known = type_of("struct net_device")
    yield Typed(device.value_(), known.size, known, "net_device")
    kind = device.rtnl_link_ops.kind.string_().decode(errors="replace") if device.rtnl_link_ops else ""
    for walk in (_addresses, _queues):
        yield from _what_there_is(walk(device, type_of))
    yield from _what_there_is(_private(device, kind, type_of))
    yield from _what_there_is(_device_statistics(device, kind, type_of, shift))


def _addresses(device: Any, type_of: TypeOf) -> Iterator[Typed]:
    from drgn import offsetof

    known = type_of("struct netdev_hw_addr")
    inside = device.value_() <= device.dev_addr.value_() < device.value_() + type_of("struct net_device").size
    if not inside and device.dev_addr:
        yield Typed(device.dev_addr.value_() - offsetof(known, "addr"), known.size, known, "netdev_hw_addr")
    yield from _object(type_of, "inet6_dev", device.ip6_ptr)
    yield from _object(type_of, "in_device", device.ip_ptr)
    address = device.ip_ptr.ifa_list if device.ip_ptr else None
    while address:
        yield from _object(type_of, "in_ifaddr", address)
        address = address.ifa_next


def _queues(device: Any, type_of: TypeOf) -> Iterator[Typed]:
    yield from _object(type_of, "Qdisc", device.qdisc)
    for member, count, name in (
        ("_tx", "num_tx_queues", "netdev_queue"),
        ("_rx", "num_rx_queues", "netdev_rx_queue"),
    ):
        yield from _object(type_of, name, getattr(device, member), count=int(getattr(device, count).value_()))


def _private(device: Any, kind: str, type_of: TypeOf) -> Iterator[Typed]:
    from drgn import cast, offsetof
    from drgn.helpers.linux import net

    name = {"veth": "veth_priv", "bridge": "net_bridge", "vrf": "net_vrf"}.get(kind)
    if name is not None and type_of(f"struct {name}") is not None:
        private = cast(f"struct {name} *", net.netdev_priv(device))
        yield from _object(type_of, name, private, f"private of {kind}")
        if kind == "veth":
            yield from _object(type_of, "veth_rq", private.rq, count=int(device.num_rx_queues.value_()))
        if kind == "bridge":
            table, known = private.fdb_hash_tbl.tbl, type_of("struct bucket_table")
            head = offsetof(known, "buckets")
            yield Typed(table.value_(), head, known, "bucket_table")
            size = _POINTER_BYTES * int(table.size.value_())
            yield Typed(table.value_() + head, size, None, "bucket_table", member="struct bucket_table.buckets[]")
    if device.rx_handler_data and kind == "veth" and type_of("struct net_bridge_port") is not None:
        port = cast("struct net_bridge_port *", device.rx_handler_data)
        if port.dev.value_() == device.value_():
            yield from _object(type_of, "net_bridge_port", port)


def _device_statistics(device: Any, kind: str, type_of: TypeOf, shift: int) -> Iterator[Typed]:
    """This CPU's counters: of which kind they are the device says since Linux 6.7; before, veth had lstats."""
    if hasattr(device, "pcpu_stat_type"):
        word = device.pcpu_stat_type.format_(type_name=False).rpartition("_")[2].lower()
    else:
        word = "lstats" if kind == "veth" else ""
    name = {"lstats": "pcpu_lstats", "tstats": "pcpu_sw_netstats", "dstats": "pcpu_dstats"}.get(word)
    if name is not None:
        known, pointer = type_of(f"struct {name}"), getattr(device, word)
        if known is not None and pointer:
            yield Typed(pointer.value_() + shift, known.size, known, name, kind="percpu")
