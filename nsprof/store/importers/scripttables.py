"""What stands in text of `perf script`: headers, stack lines, and the tables that samples of it are put into."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsprof.model.profile import Event, FrameKind
from nsprof.store.importers import assemble as a
from nsprof.store.importers.scriptlayout import Layout
from nsprof.store.importers.text import event_unit, kernel_dso

__all__ = [
    "BY_ADDRESS",
    "BY_HALF",
    "BY_LINE",
    "KERNEL_HALF",
    "MEMO_ROWS",
    "NOWHERE",
    "NO_DSO",
    "NO_TIME",
    "REST",
    "SOURCE",
    "TRACE",
    "UNSEEN",
    "Tables",
    "header_match",
]

_HEADER = re.compile(
    rb"[ ]*(?P<comm>\S(?:.{0,62}?\S)??)\s+(?P<pid>-?\d{1,10})(?:/(?P<tid>-?\d{1,10}))?\s+"
    rb"(?:\[(?P<cpu>\d{1,5})\]\s+)?"
    rb"(?:(?P<time>\d{1,12}\.\d{3,9}):\s*)?"
    rb"(?P<rest>(?:\d{1,19}\s+)?(?=[^\s:]*[A-Za-z])[^\s:]+(?::[^\s:]+)*:(?:\s.*|))$"
)
_NAMELESS = re.compile(  # without a comm (not asked for, or an empty one): only the time behind it tells a pid
    rb"[ ]*(?P<comm>)(?P<pid>-?\d{1,10})(?:/(?P<tid>-?\d{1,10}))?\s+(?:\[(?P<cpu>\d{1,5})\]\s+)?"
    rb"(?P<time>\d{1,12}\.\d{3,9}):\s*"
    rb"(?P<rest>(?:\d{1,19}\s+)?(?=[^\s:]*[A-Za-z])[^\s:]+(?::[^\s:]+)*:(?:\s.*|))$"
)
_NO_PID = re.compile(
    rb"[ ]*+(?P<comm>(?:(?!\[\d{1,5}\]\s)\S(?:.{0,62}?\S)??(?=\s))?)(?P<pid>)(?P<tid>)\s*(?<!\S)"
    rb"(?:\[(?P<cpu>\d{1,5})\]\s+)?"
    rb"(?P<time>\d{1,12}\.\d{3,9}):\s*(?P<rest>(?:\d{1,19}\s+)?(?=[^\s:]*[A-Za-z])[^\s:]+(?::[^\s:]+)*:\s*"
    rb"(?:[0-9a-f]{6,16}\s.*)?)$"
)
_STAMPED = re.compile(rb"(?:^|\s)\d{1,12}\.\d{3,9}:$")
REST = re.compile(rb"(?:(?P<period>\d{1,19})\s+)?(?P<event>[^\s:]+(?::[^\s:]+)*):(?:\s+(?P<more>.*))?$", re.DOTALL)
TRACE = re.compile(  # perf trace: milliseconds, comm/tid, event(payload)
    rb"\s*(?P<time>\d{1,12}\.\d{3}) (?:\([^)]*\): )?(?P<comm>.{1,64})/(?P<tid>-?\d{1,10}) "
    rb"(?P<event>[\w-]+:[\w-]+)\(.*\)$"
)
_FRAME = re.compile(
    rb"\s+(?P<ip>[0-9a-f]+)\s+(?P<name>\S.*?)?(?:\+0x[0-9a-f]+)? "
    rb"\((?P<dso>(?:[/\[]|inlined\)$|bpf_prog_|anon|memfd).*)\)\s*$"
)
_FRAME_ANY_DSO = re.compile(rb"\s+(?P<ip>[0-9a-f]+)\s+(?P<name>\S.*?)(?:\+0x[0-9a-f]+)? \((?P<dso>[^()]*)\)\s*$")
_FRAME_BARE = re.compile(  # an address of few digits is one in perf's column of 16 only
    rb"(?:\s+(?=[0-9a-f]{3})|\t(?=[ 0-9a-f]{16}(?:\s|$)) *)"
    rb"(?P<ip>[0-9a-f]{1,16})(?:\s+(?P<name>\S.*?)(?:\+0x[0-9a-f]+)?)?(?P<dso>)\s*$"
)
_FLAT_BARE = re.compile(rb"[0-9a-f]{8,16} \S")  # behind the event of a header, where a tracepoint's words may stand
_FRAME_NO_IP = re.compile(rb"\s+(?P<ip>)(?P<name>\S.*?)(?:\+0x[0-9a-f]+)? \((?P<dso>[/\[].*)\)\s*$")
_ADDRESS = re.compile(rb"\t *[0-9a-f]+ \S")
NOWHERE = b"[unknown] ([unknown])"
_NOWHERE = b" " + NOWHERE
BY_ADDRESS = (b"([unknown])", b"([kernel.kallsyms])", b"()", b"(inlined)", b"])")
#: DSOs that say nothing, so that a frame's kind hangs on its address
NO_DSO = (b"([unknown])", b"()")
SOURCE = re.compile(rb"\s+\S+:\d+(?: \(discriminator \d+\))?$")

#: in place of a frame: look at each line, at its address; not asked for yet
BY_LINE, BY_HALF, UNSEEN = -2, -3, -4
_HEX_DIGITS = b"0123456789abcdef"
_BLANKS = (b"", b" ", b"\t")
_NO_NAME = (*_BLANKS, b"[")
NO_TIME = 2**64 - 1
MEMO_ROWS = 400_000
KERNEL_HALF = 0xFFFF_8000_0000_0000


def header_match(line: bytes, layout: Layout | None = None) -> re.Match[bytes] | None:
    """The fields of a header line. `layout` is that of headers without a time, where the text has some."""
    line = line[:4096]
    if layout is not None:
        found = layout.line.match(line)
        if found is not None:
            return None if b"PERF_RECORD_" in found["rest"] else found
    found = _NAMELESS.match(line) or _HEADER.match(line)
    if found is None or _STAMPED.search(found["comm"]):  # what seemed to be a pid is a period
        found = _NO_PID.match(line)
    if found is None or b"PERF_RECORD_" in found["rest"] or (layout is not None and not found["time"]):
        return None
    return found


class Tables:
    """Frames, stacks, tasks and events seen so far; the columns of the samples."""

    def __init__(self, layout: Layout | None = None) -> None:
        self.layout = layout
        self.frames = a.FrameTable()
        self.named: list[bool] = []
        self.lines: dict[bytes, int] = {}
        self.tails: dict[bytes, int] = {}
        self.symbols: dict[bytes, int] = {}
        self.places: dict[bytes, tuple[FrameKind, str]] = {}
        self.flat = array("I")
        self.offsets = array("q", [0])
        self.who: dict[bytes, tuple[int, int, int]] = {}
        self.what: dict[tuple[bool, bytes], int] = {}
        self.last_is_odd = False
        self.tasks: dict[tuple[int, int, str], int] = {}
        self.events: dict[Event, int] = {}
        self.info: dict[str, str] = {}
        self.trouble: Counter[str] = Counter()
        self.columns: list[tuple[Any, ...]] = []
        self.task: list[int] = []
        self.cpu: list[int] = []
        self.event: list[int] = []
        self.weight: list[float] = []
        self.time: list[int] = []
        self.leaf: list[int] = []
        self.rest: list[int] = []
        self.bare = 0
        self.unknown = self.frame_number("[unknown]", "", FrameKind.UNKNOWN, False)
        self.empty = self.stack(())

    def frame_number(self, name: str, module: str, kind: FrameKind, named: bool) -> int:
        index = self.frames.add(name, module, kind)
        if index == len(self.named):
            self.named.append(named)
        return index

    def line(self, text: bytes) -> int:
        """Frame of a stack line; -1 when it is none."""
        got = self.lines.get(text)
        if got is None:
            if len(self.lines) > MEMO_ROWS:
                self.lines.clear()
            got = self.lines[text] = self._known_symbol(text)
        return got

    def _known_symbol(self, text: bytes) -> int:
        """The frame of a line that differs in address and offset only from one that was parsed; else parse it."""
        if text.endswith(_NOWHERE) and _ADDRESS.match(text) and int(text[: -len(_NOWHERE)][-16:], 16) < KERNEL_HALF:
            return self.frame_number("[unknown]", "", FrameKind.USER, False)
        cut = text.rfind(b"+0x")
        place = text.find(b" (", cut) if cut >= 0 else text.find(b"[unknown] (") + 9
        if place < 9 or not _ADDRESS.match(text) or text.count(b"+0x") > 1:
            return self.parse_frame(text)
        key = text.lstrip().partition(b" ")[2].partition(b"+0x" if cut >= 0 else b" (")[0] + text[place:]
        got = self.symbols.get(key)
        if got is None:
            got = self.parse_frame(text)
            # A nameless frame whose kind hangs on its address, or whose name is its address, stands for itself only.
            if (
                got >= 0
                and not key.endswith(NO_DSO)
                and (self.named[got] or (cut < 0 and not key.endswith(BY_ADDRESS)))
            ):
                if len(self.symbols) > MEMO_ROWS:
                    self.symbols.clear()
                self.symbols[key] = got
        return got

    @property
    def nowhere(self) -> int:
        """The frame of user code in no mapping."""
        return self.frame_number("[unknown]", "", FrameKind.USER, False)

    def tail(self, text: bytes) -> int:
        """Frame of all lines that end so behind their address; BY_HALF where it is `nowhere` for an address that is
        not the kernel's, BY_LINE where each line must be looked at."""
        name, plus, offset = text.partition(b"+0x")
        if not plus:
            return self._bare_tail(text)
        digits, _, dso = offset.partition(b" (")
        if not digits or digits.strip(_HEX_DIGITS) or len(digits) > 16 or name[:1] in _NO_NAME:
            return BY_LINE
        key = name + b" (" + dso
        got = self.symbols.get(key)
        if got is not None:
            return got
        if not dso.endswith(b")") or key.endswith(NO_DSO) or dso.startswith(b"[unknown") or b"+0x" in dso:
            return BY_LINE
        got = self.kernel_or_user(name, dso[:-1]) if dso[:1] in b"[/" else self.parse_frame(b"\t0 " + text)
        if got < 0:
            return BY_LINE
        if len(self.symbols) > MEMO_ROWS:
            self.symbols.clear()
        self.symbols[key] = got
        return got

    def _bare_tail(self, text: bytes) -> int:
        """`tail` of one without an offset."""
        if text == NOWHERE:
            return BY_HALF
        if text[:1] in _BLANKS or not text.endswith(b")") or text.endswith(NO_DSO) or b"([unknown" in text:
            return BY_LINE
        nameless = text.startswith(b"[unknown] (")
        if text.endswith(BY_ADDRESS) if nameless else text.startswith(b"["):
            return BY_LINE
        got = self.parse_frame(b"\t0 " + text)
        return got if got >= 0 else BY_LINE

    def kernel_or_user(self, name: bytes, dso: bytes) -> int:
        """Frame of a name in a DSO that says by itself whether it is the kernel's."""
        place = self.places.get(dso)
        if place is None:
            place = self.places[dso] = kernel_dso(dso.decode("utf-8", "backslashreplace"))
        return self.frame_number(name.decode("utf-8", "backslashreplace"), place[1], place[0], True)

    def parse_frame(self, text: bytes) -> int:
        found = (
            _FRAME.match(text) or _FRAME_ANY_DSO.match(text) or _FRAME_BARE.match(text) or _FRAME_NO_IP.match(text)
        )
        if found is None or (not text.startswith(b"\t") and header_match(text, self.layout)):
            return -1
        name = (found["name"] or b"[unknown]").decode("utf-8", "backslashreplace")
        kind, module = kernel_dso(found["dso"].decode("utf-8", "backslashreplace"))
        address = int(found["ip"][-16:], 16) if found["ip"] else 0
        if kind is FrameKind.UNKNOWN and found["dso"] != b"inlined":
            kind = FrameKind.KERNEL if address >= KERNEL_HALF else FrameKind.USER if found["ip"] else kind
        named = name != "[unknown]"
        if name.startswith("[0x") and name.endswith("]"):
            name, named = name[1:-1], False
        if not named and kind is FrameKind.KERNEL and found["ip"]:
            name = f"{address:#018x}"
        return self.frame_number(name, module, kind, named)

    def stack(self, frames: Sequence[int]) -> int:
        """Number of a stack without its leaf."""
        if not len(frames) and len(self.offsets) > 1:
            return self.empty
        self.flat.extend(frames)
        self.offsets.append(len(self.flat))
        return len(self.offsets) - 2

    def stacks(self, flat: NDArray[np.uint32], offsets: NDArray[np.int64]) -> int:
        """Number of the first of several stacks without their leaves; the others follow it."""
        first = len(self.offsets) - 1
        self.offsets.frombytes((offsets[1:] + len(self.flat)).tobytes())
        self.flat.frombytes(flat.astype("u4").tobytes())
        return first

    def header(self, line: bytes) -> tuple[int, int, int, float, int, int] | None:
        """(task, cpu, event, weight, time_ns, leaf frame or -1) of a header line, None when it is none."""
        found = header_match(line, self.layout)
        if found is None:
            return self._trace_header(line)
        rest = REST.match(found["rest"])
        if rest is None:
            return None
        task, cpu = self.who_of(found)
        event, weight, leaf = self.what_of(rest)
        return task, cpu, event, weight, _nanoseconds(found["time"]), leaf

    def who_of(self, found: re.Match[bytes]) -> tuple[int, int]:
        pid = int(found["pid"] or -1)
        tid = int(found["tid"]) if found["tid"] else pid
        tgid = pid if found["tid"] else (0 if pid == 0 else -1)
        comm = found["comm"].decode("utf-8", "backslashreplace")
        task = self.tasks.setdefault((tgid if found["tid"] else pid, tid, comm), len(self.tasks))
        return task, min(int(found["cpu"]), 0xFFFF) if found["cpu"] else 0xFFFF

    def what_of(self, rest: re.Match[bytes]) -> tuple[int, float, int]:
        name = rest["event"].decode("utf-8", "backslashreplace")
        weight = float(rest["period"]) if rest["period"] else 1.0
        unit = event_unit(name) if rest["period"] else "count"
        event = self.events.setdefault(Event(name, unit), len(self.events))
        more = (rest["more"] or b"").rstrip()
        framed = more and (_FRAME.match(b"\t" + more.lstrip()) or _FLAT_BARE.match(more.lstrip()))
        leaf = self.line(b"\t" + more.lstrip()) if framed else -1
        return event, weight, leaf

    def _trace_header(self, line: bytes) -> tuple[int, int, int, float, int, int] | None:
        found = TRACE.match(line[:4096])
        if found is None:
            return None
        tid = int(found["tid"])
        comm = found["comm"].decode("utf-8", "backslashreplace")
        task = self.tasks.setdefault((tid, tid, "swapper" if comm == ":0" else comm), len(self.tasks))
        event = self.events.setdefault(Event(found["event"].decode(errors="replace"), "count"), len(self.events))
        return task, 0xFFFF, event, 1.0, int(float(found["time"]) * 1e6), -1

    def add(self, head: tuple[int, int, int, float, int, int], leaf: int, rest: int) -> None:
        self.task.append(head[0])
        self.cpu.append(head[1])
        self.event.append(head[2])
        self.weight.append(head[3])
        self.time.append(head[4])
        self.leaf.append(leaf)
        self.rest.append(rest)

    def flush(self, *, last: bool = False) -> None:
        """Put the lists away as numpy columns - but for the last row, which a stray stack may still belong to."""
        if len(self.task) > (0 if last else 1):
            lists = (self.task, self.cpu, self.event, self.weight, self.time, self.leaf, self.rest)
            kinds = ("u4", "u2", "u2", "f8", "u8", "u4", "u4")
            stop = None if last else -1
            self.columns.append(tuple(np.array(x, k)[:stop] for x, k in zip(lists, kinds, strict=True)))
            for values in (self.task, self.cpu, self.event, self.time, self.leaf, self.rest):
                del values[:stop]
            del self.weight[:stop]


def _nanoseconds(text: bytes | None) -> int:
    if not text:
        return NO_TIME
    seconds, _, fraction = text.partition(b".")
    return min(int(seconds) * 1_000_000_000 + int(fraction.ljust(9, b"0")), NO_TIME - 1)
