"""From raw batches to rows of a profile: names, contexts, lateness, and what was lost on the way."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsprof.collect.hop.context import STANDING, hop_columns, standing
from nsprof.collect.sampling.maps import DUE_IDLE
from nsprof.collect.symbols.kernel import KernelSymbols
from nsprof.kernelnames import context_of
from nsprof.model.builder import ProfileBuilder
from nsprof.model.profile import Context, Device, Event, FrameKind, Lateness, Losses, Namespace, Samples

__all__ = ["RawBatch", "Window", "add_batch", "after_interrupt_enable", "kernel_names", "losses"]

_NO_STACK = "[no stack]"
_USER = "[user]"
#: Entry frames whose caller is the interrupted instruction itself, not a return address.
_ENTRIES = ("asm_", "ret_from_", "entry_", "common_interrupt", "el1", "el0")


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """What one start() .. stop() counted beside the samples. Arrays are by event and possible CPU."""

    start_ns: int
    end_ns: int
    counts: NDArray[np.uint64]  # the events' own counts; ns for timers
    throttled: NDArray[np.int64]  # by event, -1 unknown
    tallies: NDArray[Any]
    idle_s: Mapping[int, float]
    attach_ms: float

    @property
    def seconds(self) -> float:
        """Length of the window."""
        return (self.end_ns - self.start_ns) / 1e9


@dataclass(frozen=True, slots=True, eq=False)
class RawBatch:
    """Samples as the kernel added them up: `keys` (SAMPLE_KEY) and `values` (SAMPLE_VALUE) in parallel.

    `stacks` maps a stack's key to its record (STACK). `text_readable` says that the code bytes in it are real.
    """

    events: tuple[Event, ...]
    periods_ns: tuple[int, ...]
    keys: NDArray[Any]
    values: NDArray[Any]
    stacks: Mapping[int, Any]
    windows: tuple[Window, ...]
    text_readable: bool = True

    def __len__(self) -> int:
        return len(self.keys)

    def hits(self, event: int = 0) -> int:
        """How often the sampler ran for one event."""
        return sum(int(w.tallies["hits"][event].sum()) for w in self.windows)


def add_batch(
    builder: ProfileBuilder,
    batch: RawBatch,
    run_index: int,
    *,
    symbols: KernelSymbols,
    namespace_of: Callable[[int, int], Namespace] | None = None,
    device_of: Callable[[int, int, int], Device | None] | None = None,
    user_symbol: Callable[[int, int], tuple[str, str]] | None = None,
    busy_s: Mapping[int, float] | None = None,
) -> Losses:
    """Resolve a batch and add its rows to the builder as samples of one run; returns the first event's losses.

    `namespace_of(inode, cookie)` and `device_of(inode, cookie, ifindex)` know names (the device's own `namespace`
    field is set here); `user_symbol(tgid, address)` gives (name, module) of user frames. `busy_s` by CPU is the
    busy time of the window where the caller has it finer than /proc/stat.
    """
    keys, values = batch.keys, batch.values
    if len(keys):
        events = np.array([builder.event(e) for e in batch.events], "u1")
        stack, context, skid, where = _Resolver(builder, batch, symbols, user_symbol).columns()
        task_ns = _namespaces(builder, keys["task_ns"], keys["task_cookie"], namespace_of)
        hop = hop_columns(keys, where)
        hop_ns = _namespaces(builder, hop["inode"], hop["cookie"], namespace_of)
        due_idle = keys["lateness"] == DUE_IDLE
        late = np.where(
            due_idle | skid & (keys["lateness"] == Lateness.ON_TIME), np.uint8(Lateness.SKID), keys["lateness"]
        )
        # Where it landed, work goes on; what it is a sample of is the moment at which it was due.
        context = np.where(due_idle, np.uint8(Context.IDLE), context)
        builder.samples(
            Samples.build(
                len(keys),
                run=run_index,
                slice=keys["slice"],
                event=events[keys["event"]],
                cpu=keys["cpu"],
                task=_tasks(builder, keys),
                task_ns=task_ns,
                hop_ns=hop_ns,
                hop_dev=_devices(builder, hop, hop_ns, device_of),
                hop_dir=hop["direction"],
                hop_depth=hop["depth"],
                context=context,
                stack=stack,
                lateness=late,
                count=values["count"],
                weight=values["weight"],
            )
        )
    return losses(batch, busy_s=busy_s)


def _tasks(builder: ProfileBuilder, keys: NDArray[Any]) -> NDArray[np.uint32]:
    packed = np.empty(len(keys), np.dtype([("tgid", "u4"), ("pid", "u4"), ("comm", "V16")]))
    for name in ("tgid", "pid", "comm"):
        packed[name] = keys[name]
    _, first, inverse = np.unique(packed.view("S24"), return_index=True, return_inverse=True)
    rows = [builder.task(int(r["tgid"]), int(r["pid"]), _comm(r["comm"].tobytes())) for r in packed[first]]
    return np.array(rows, "u4")[inverse]


def _comm(raw: bytes) -> str:
    return raw.split(b"\0")[0].decode(errors="backslashreplace")


def _namespaces(
    builder: ProfileBuilder,
    inodes: NDArray[Any],
    cookies: NDArray[Any],
    namespace_of: Callable[[int, int], Namespace] | None,
) -> NDArray[np.uint32]:
    pairs = np.stack([inodes.astype("u8"), cookies.astype("u8")], axis=1)
    unique, inverse = np.unique(pairs, axis=0, return_inverse=True)
    rows = []
    for inode, cookie in unique.tolist():
        if not inode:
            rows.append(0)
            continue
        known = namespace_of(inode, cookie) if namespace_of else None
        rows.append(builder.namespace(known or Namespace(inode, cookie)))
    return np.array(rows, "u4")[inverse.reshape(-1)]


def _devices(
    builder: ProfileBuilder,
    hop: NDArray[Any],
    hop_ns: NDArray[np.uint32],
    device_of: Callable[[int, int, int], Device | None] | None,
) -> NDArray[np.uint32]:
    table = np.empty(
        len(hop), [("inode", "u8"), ("cookie", "u8"), ("ifindex", "u8"), ("space", "u8"), ("name", "S16")]
    )
    for column in ("inode", "cookie", "ifindex", "name"):
        table[column] = hop[column]
    table["space"] = hop_ns
    unique, inverse = np.unique(table, return_inverse=True)
    rows = []
    for inode, cookie, ifindex, namespace, name in unique.tolist():
        if name:  # all that is known: whose it is stays unknown, even if one namespace only has such a device
            rows.append(builder.device(Device(0, 0, _comm(name))))
            continue
        if not ifindex or not namespace:
            rows.append(0)
            continue
        known = device_of(inode, cookie, ifindex) if device_of else None
        if known is None:
            rows.append(builder.device(Device(namespace, ifindex, f"if{ifindex}")))
        else:
            rows.append(builder.device(Device(namespace, ifindex, known.name, known.kind, known.mtu)))
    return np.array(rows, "u4")[inverse.reshape(-1)]


class _Resolver:
    """Stack, context and skid columns of a batch; each distinct stack is resolved once."""

    def __init__(
        self,
        builder: ProfileBuilder,
        batch: RawBatch,
        symbols: KernelSymbols,
        user_symbol: Callable[[int, int], tuple[str, str]] | None,
    ) -> None:
        self.builder = builder
        self.batch = batch
        self.symbols = symbols
        self.user_symbol = user_symbol
        self._kernel: dict[int, tuple[list[int], list[str], bool]] = {0: ([], [], False)}
        self._frames: dict[int, int] = {}
        self._users: dict[tuple[int, int], list[int]] = {}

    def columns(self) -> tuple[NDArray[np.uint32], NDArray[np.uint8], NDArray[np.bool_], NDArray[Any]]:
        keys = self.batch.keys
        wanted = ("kernel_stack", "user_stack", "tgid", "user_mode", "stack_state")
        has_user = bool(keys["user_stack"].any())
        # Without user stacks the process does not matter: one entry a kernel stack and idle/not idle.
        tgid = keys["tgid"] if has_user else (keys["tgid"] != 0).astype("u4")
        pid0 = keys["pid"] == 0
        table = np.stack(
            [*(keys[n].astype("u8") if n != "tgid" else tgid.astype("u8") for n in wanted), pid0], axis=1
        )
        unique, inverse = np.unique(table, axis=0, return_inverse=True)
        inverse = inverse.reshape(-1)
        timer = np.array([p > 0 for p in self.batch.periods_ns])[keys["event"]]
        rows = [self._row(row) for row in unique.tolist()]
        stack = np.array([r[0] for r in rows], "u4")[inverse]
        context = np.array([r[1] for r in rows], "u1")[inverse]
        skid = np.array([r[2] for r in rows], bool)[inverse] & timer
        where = np.array([r[3] for r in rows], STANDING)[inverse]
        return stack, context, skid, where

    def _row(self, row: list[int]) -> tuple[int, Context, bool, tuple[int, int, bool]]:
        kernel, user, tgid, user_mode, _, swapper = row
        frames, names, skid = self._kernel_part(kernel)
        lost = not user_mode and not frames
        users = self._user_part(user, tgid) if user else []
        stack = list(frames)
        if lost:
            stack.append(self.builder.frame(_NO_STACK, kind=FrameKind.UNKNOWN))
        if users:
            stack += users
        elif user_mode:
            stack.append(self.builder.frame(_USER, kind=FrameKind.USER))
        context = Context.UNKNOWN if lost else context_of(names, has_user=bool(user_mode), swapper=bool(swapper))
        return self.builder.stack(stack), context, skid, standing(names, context)

    def _kernel_part(self, key: int) -> tuple[list[int], list[str], bool]:
        done = self._kernel.get(key)
        if done is not None:
            return done
        record = self.batch.stacks.get(key)
        if record is None:
            part: tuple[list[int], list[str], bool] = ([], [], False)
        else:
            addresses = record["address"][: int(record["length"])]
            rows = _frame_rows(self.symbols, addresses)
            names = [self.symbols[r].name for r in rows]
            skid = self.batch.text_readable and after_interrupt_enable(record["code"].tobytes())
            part = ([self._frame(r, int(a)) for r, a in zip(rows, addresses, strict=True)], names, skid)
        self._kernel[key] = part
        return part

    def _frame(self, row: int, address: int) -> int:
        if row < 0:
            return self.builder.frame(f"[unknown {address & ~0xFFF:#x}]", kind=FrameKind.UNKNOWN)
        frame = self._frames.get(row)
        if frame is None:
            symbol = self.symbols[row]
            frame = self._frames[row] = self.builder.frame(symbol.name, symbol.module, symbol.kind)
        return frame

    def _user_part(self, key: int, tgid: int) -> list[int]:
        done = self._users.get((key, tgid))
        if done is not None:
            return done
        record = self.batch.stacks.get(key)
        part: list[int] = []
        if record is not None:
            for number, address in enumerate(record["address"][: int(record["length"])].tolist()):
                name, module = ("", "")
                if self.user_symbol is not None:
                    name, module = self.user_symbol(tgid, address - (number > 0))
                part.append(self.builder.frame(name or "[unknown]", module, FrameKind.USER))
        self._users[key, tgid] = part
        return part


def kernel_names(symbols: KernelSymbols, record: Any) -> list[str]:
    """Names of one stack record (STACK), leaf first; an address that belongs to nothing known is ""."""
    addresses = record["address"][: int(record["length"])]
    return [symbols[row].name for row in _frame_rows(symbols, addresses)]


def _frame_rows(symbols: KernelSymbols, addresses: NDArray[np.uint64]) -> list[int]:
    """Symbol rows of a stack, leaf first. A return address points behind its call, possibly into the next function.

    So callers are looked up one byte earlier - unless the frame below is an interrupt or exception entry, whose
    "caller" is the interrupted instruction itself.
    """
    exact: list[int] = symbols.rows(addresses).tolist()
    if len(addresses) < 2:
        return exact
    before: list[int] = symbols.rows(np.asarray(addresses, "u8") - np.uint64(1)).tolist()
    rows = [exact[0]]
    for number in range(1, len(exact)):
        below = symbols[rows[-1]].name
        rows.append(exact[number] if below.startswith(_ENTRIES) else before[number])
    return rows


# What compilers and the kernel's patching put behind `sti` to fill the place of a paravirtual call (x86 nops).
_NOPS = tuple(
    bytes.fromhex(text)
    for text in (
        "90",
        "6690",
        "0f1f00",
        "0f1f4000",
        "0f1f440000",
        "660f1f440000",
        "0f1f8000000000",
        "0f1f840000000000",
        "660f1f840000000000",
    )
)
_ENABLES = tuple(b"\xfb" + nop for nop in _NOPS)
_POPF = b"\x9d"


def after_interrupt_enable(code: bytes) -> bool:
    """Whether the instruction bytes before a leaf address end in one that has just switched interrupts on.

    A tick that was due while interrupts were off is delivered exactly there: behind `sti` and the one instruction
    in its shadow, or behind `popf`. (x86; elsewhere always False.)
    """
    if not any(code):
        return False
    return code.endswith(_ENABLES) or any(code.endswith(_POPF + nop) for nop in (b"", *_NOPS))


def lost_share_by_cpu(
    batch: RawBatch, event: int = 0, *, busy_s: Mapping[int, float] | None = None
) -> dict[int, float]:
    """CPU -> share of its busy ticks that were not delivered; empty for events that are no timers.

    A virtual CPU that sleeps and wakes many thousand times a second can miss most of its ticks, its neighbour none.
    """
    if not batch.periods_ns[event]:
        return {}
    keys, values = batch.keys, batch.values
    found = {}
    for cpu in _cpus(batch, event):
        here = (keys["event"] == event) & (keys["cpu"] == cpu)
        idle_seen = int(values["count"][here & _idle(keys)].sum())
        expected = _expected(batch, event, cpu, idle_seen, busy_s)
        seen = int(values["count"][here].sum())
        found[cpu] = max(0.0, (expected - seen) / expected) if expected > 0 else 0.0
    return found


def losses(batch: RawBatch, event: int = 0, *, busy_s: Mapping[int, float] | None = None) -> Losses:
    """Where samples of one event went, summed over the batch's windows (docs/method.md, Losses).

    Expected are the ticks that were due by the timer's own count; on CPUs whose timer sleeps while they idle only
    those due in busy time. For events that are no timers nothing independent tells: expected is -1.
    """
    keys, values = batch.keys, batch.values
    mine = keys["event"] == event
    seen = int(values["count"][mine].sum())
    tally = [w.tallies[event] for w in batch.windows]
    total = {name: sum(int(t[name].sum()) for t in tally) for name in ("hits", "map_full", "stack_full", "no_stack")}
    throttled = [int(w.throttled[event]) for w in batch.windows]
    period = batch.periods_ns[event]
    expected = -1
    if period and batch.windows:
        idle_seen: dict[int, int] = {}
        idle = mine & _idle(keys)
        for cpu, count in zip(keys["cpu"][idle].tolist(), values["count"][idle].tolist(), strict=True):
            idle_seen[cpu] = idle_seen.get(cpu, 0) + count
        expected = sum(_expected(batch, event, cpu, idle_seen.get(cpu, 0), busy_s) for cpu in _cpus(batch, event))
    return Losses(
        expected=max(expected, total["hits"]) if expected >= 0 else -1,
        seen=seen,
        stack_collisions=total["stack_full"],
        map_full=total["map_full"],
        throttled=sum(throttled) if throttled and min(throttled) >= 0 else -1,
        lost_records=max(0, expected - total["hits"]) if expected >= 0 else 0,
        no_stack=total["no_stack"],
    )


def _idle(keys: NDArray[Any]) -> NDArray[np.bool_]:
    """Rows whose ticks were due in idle time: as the kernel's account says, else (where it says nothing) all that
    the idle task was sampled at."""
    told: NDArray[np.bool_] = keys["lateness"] == DUE_IDLE
    return told if told.any() else keys["pid"] == 0


def _cpus(batch: RawBatch, event: int) -> list[int]:
    return sorted({int(c) for w in batch.windows for c in np.flatnonzero(w.counts[event])})


def _expected(batch: RawBatch, event: int, cpu: int, idle_seen: int, busy_s: Mapping[int, float] | None) -> int:
    """Ticks due on one CPU. Each window loses up to one tick at its end, which is not due yet."""
    period = batch.periods_ns[event]
    due = sum(int(w.counts[event, cpu]) // period for w in batch.windows)
    wall_s = sum(w.seconds for w in batch.windows)
    if busy_s is not None and cpu in busy_s:
        idle_s = max(0.0, wall_s - busy_s[cpu])
    else:
        idle_s = sum(w.idle_s.get(cpu, 0.0) for w in batch.windows)
    hits = sum(int(w.tallies["hits"][event, cpu]) for w in batch.windows)
    if hits >= due:
        return hits
    idle_due = min(due, round(idle_s * 1e9 / period))
    unseen_idle = max(0, idle_due - idle_seen)
    expected = due - unseen_idle
    # Where idle ticks are swallowed, the number of busy ones is a sample of the busy share, not an exact count:
    # a shortfall that chance explains (three standard deviations) is none.
    if unseen_idle and due:
        share = expected / due
        if expected - hits <= 3 * math.sqrt(due * share * (1 - share)) + 2 * len(batch.windows):
            return hits
    return max(expected, hits)
