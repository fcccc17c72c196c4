"""Headers of `perf script` without a time: which of their numbers is a process and which a period.

`perf script -F comm,pid,event` and `-F comm,period,event` print the same words. Where a header has no time, its
fields are the same in all headers of the text; so what they are is decided once, by what all have in common.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from nsprof.store.importers.text import to_utf8

__all__ = ["Layout", "layout_of"]

_PART, _PARTS = 1 << 14, 16  # bytes of a part of the text that is looked at, and how many
_FIRST = 1 << 16
_PID_MAX = 1 << 22  # PID_MAX_LIMIT of the kernel
_PID_WIDTHS, _PERIOD_WIDTH = (5, 7), 10  # %5d, or %7d since perf 6.2; %10u
_LEAST_PERIOD = 1000
_OFTEN = re.compile(rb"(?:cpu-clock|task-clock|cycles|cpu-cycles|instructions|ref-cycles)(?::|$)")
_MOST = 0.95
_HEAD = re.compile(
    rb"(?P<before>.*?)(?<!\S)(?P<event>(?=[^\s:]*[A-Za-z])[^\s:]+(?::[^\s:]+)*):(?:[ ]+(?P<more>.*))?$", re.DOTALL
)
_TIME = re.compile(rb"(?:^|\s)\d{1,12}\.\d{3,9}:(?:\s|$)")
_FRAME = re.compile(rb"\t *[0-9a-f]{4,16}(?:\s|$)|\s+[0-9a-f]{6,16}\s.*\)\s*$")
_FLAT = re.compile(rb" *[0-9a-f]{6,16} \S")
_FIELDS = re.compile(rb"(?P<lead>.*?)(?:\[(?P<cpu>\d{1,5})\] )?(?P<tail>(?: +|(?<!\S))-?\d{1,19} )? *$", re.DOTALL)
_PID = re.compile(rb"(?:^|\s)-?\d{1,10}(?:/-?\d{1,10})?\s*$")
_BOTH = re.compile(rb"(?:^|\s)-?\d{1,10}/-?\d{1,10}\s*$")
_PADDING = b"   "

AMBIGUOUS = (
    "the number before the event may be a process or a period, which this text does not tell: neither was taken from "
    "it, and each sample counts as 1 (perf script -F comm,pid,time,period,event,ip,sym,dso tells both)"
)


@dataclass(frozen=True)
class Layout:
    """The fields of headers without a time. `number`: what the number before the event is, "period", "unknown", or ""
    where there is none that is no pid."""

    comm: bool
    pid: bool
    cpu: bool
    number: str

    @property
    def note(self) -> str:
        """What a reader must be told."""
        return AMBIGUOUS if self.number == "unknown" else ""

    @cached_property
    def who(self) -> re.Pattern[bytes]:
        """What stands before the period and the event."""
        return re.compile(self._who + rb"\s*$", re.DOTALL)

    @cached_property
    def line(self) -> re.Pattern[bytes]:
        """A whole header."""
        number = {"period": rb"", "unknown": rb"-?\d{1,19}\s+", "": rb""}[self.number]
        period = rb"\d{1,19}\s+" if self.number == "period" else rb""
        event = rb"(?=[^\s:]*[A-Za-z])[^\s:]+(?::[^\s:]+)*:(?:\s.*|)"
        return re.compile(self._who + number + rb"(?P<rest>" + period + event + rb")$", re.DOTALL)

    @property
    def _who(self) -> bytes:
        comm = rb"(?:\S(?:.{0,62}?\S)??(?=\s|$))?" if self.comm else rb""
        pid = rb"(?P<pid>-?\d{1,10})(?:/(?P<tid>-?\d{1,10}))?(?:\s+|$)" if self.pid else rb"(?P<pid>)(?P<tid>)"
        cpu = rb"\[(?P<cpu>\d{1,5})\](?:\s+|$)" if self.cpu else rb"(?P<cpu>)"
        return rb"[ ]*(?P<comm>" + comm + rb")\s*" + pid + cpu + rb"(?P<time>)"


@dataclass(frozen=True, slots=True)
class _Seen:
    """A header: what stands before its numbers, whether it has a CPU, the number before the event, the columns that
    it takes with the blanks before it, and the event."""

    lead: bytes
    cpu: bool
    number: bytes
    width: int
    event: bytes


def layout_of(text: memoryview) -> Layout | None:
    """The layout of a text's headers; None where they have a time, or none is found."""
    if bytes(text[:3]).startswith((b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf")):
        text = memoryview(to_utf8(bytes(text)))
    seen: list[_Seen] = []
    timed = 0
    padded = False
    for number, part in enumerate(_parts(text)):
        padded = padded or _PADDING in part
        lines = part.replace(b"\r\n", b"\n").split(b"\n")
        for line, below in zip(lines, [*lines[1:], b""], strict=True):
            found = _header(line, below)
            if isinstance(found, _Seen):
                seen.append(found)
            timed += found is True
        if timed or (not number and not seen):
            return None
    return _decided(seen, padded=padded) if seen else None


def _parts(text: memoryview) -> Iterator[bytes]:
    """The first lines, and whole lines at equal distances behind them."""
    yield _whole(bytes(text[:_FIRST]), first=True, last=len(text) <= _FIRST)
    step = (len(text) - _FIRST) // _PARTS
    for n in range(_PARTS if step > 0 else 0):
        at = _FIRST + n * step
        yield _whole(bytes(text[at : at + min(_PART, step)]), first=False, last=False)


def _whole(part: bytes, *, first: bool, last: bool) -> bytes:
    begin = 0 if first else part.find(b"\n") + 1
    return part[begin:] if last else part[begin : part.rfind(b"\n") + 1]


def _header(line: bytes, below: bytes) -> _Seen | bool:
    """A header without a time; True for one with a time, False for what is no header."""
    if not line or line[:1] in b"\t#" or len(line) > 4096 or b":" not in line or b"PERF_RECORD_" in line:
        return False
    found = _HEAD.match(line)
    if found is None:
        return False
    before, more = found["before"], (found["more"] or b"").strip()
    if _TIME.search(before):
        return True
    if not (_FRAME.match(below) or (more and _FLAT.match(more))):
        return False
    fields = _FIELDS.match(before)
    if fields is None:
        return False
    tail = fields["tail"] or b""
    width = len(tail) - 1 - bool(fields["lead"].strip())
    return _Seen(fields["lead"], fields["cpu"] is not None, tail.strip(), max(0, width), found["event"])


def _mostly(truths: Sequence[bool]) -> bool:
    return sum(truths) >= _MOST * len(truths)


def _decided(seen: Sequence[_Seen], *, padded: bool) -> Layout:
    cpu = _mostly([each.cpu for each in seen])
    numbered = _mostly([bool(each.number) for each in seen])
    pid = _mostly([_PID.search(each.lead) is not None for each in seen])
    both = _mostly([_BOTH.search(each.lead) is not None for each in seen])
    comm = any(_PID.sub(b"", each.lead).strip() if pid else each.lead.strip() for each in seen)
    if not numbered or pid or both or cpu:
        return Layout(comm, pid, cpu, "period" if numbered else "")
    number = _meaning([each for each in seen if each.number], padded=padded)
    return Layout(comm, number == "pid", cpu, "" if number == "pid" else number)


def _meaning(seen: Sequence[_Seen], *, padded: bool) -> str:
    """What a lone number is: "pid", "period" or "unknown".

    No pid is above the kernel's limit. perf pads both, to different widths, which tells them apart unless something
    took the blanks away. The idle task has the pid 0, and no period is 0. Periods are either the same for all
    programs, or differ from sample to sample; pids are neither.
    """
    value = [int(each.number) for each in seen]
    if max(value) > _PID_MAX:
        return "period"
    if min(value) <= 0:
        return "pid"
    wide = [(each.width, len(each.number)) for each in seen]
    if all(width == _PERIOD_WIDTH for width, _ in wide):
        return "period"
    for least in _PID_WIDTHS:
        fits = all(width == max(least, digits) for width, digits in wide)
        if fits and (padded or any(digits < least for _, digits in wide)):
            return "pid"
    if any(each.lead.strip().startswith(b"swapper") for each in seen):
        return "period"  # above 0
    of_comm: dict[bytes, list[int]] = {}
    for each, number in zip(seen, value, strict=True):
        of_comm.setdefault(each.lead.strip(), []).append(number)
    alone = all(len(set(numbers)) == 1 for numbers in of_comm.values())
    short = 1 < min(value) <= max(value) < _LEAST_PERIOD
    if alone and short and all(_OFTEN.match(each.event) for each in seen):
        # As periods these would be set with -c: too short for a clock, or for what happens with each instruction.
        return "pid"
    often = [numbers for numbers in of_comm.values() if len(numbers) > 1]
    if len(often) > 1 and all(len(set(n)) == 1 for n in often) and len({n[0] for n in often}) == len(often):
        return "pid"
    return "unknown"
