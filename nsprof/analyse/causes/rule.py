"""What a cause says about itself, as data.

Evidence comes in kinds: "functions" (samples), "simulation" (exact instruction counts), "counters", "ledger", "host"
(settings and what stands on the path), "workload" (how the traffic was made). Two kinds that do not depend on each
other make a finding, one makes it possible.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsprof.analyse.causes.case import Case

__all__ = ["Check", "Owned", "Rule", "Seen", "Spread", "Try", "words"]


def words(text: str) -> tuple[str, ...]:
    """Names separated by blanks."""
    return tuple(text.split())


@dataclass(frozen=True, slots=True)
class Owned:
    """Call paths whose cost belongs to the cause: everything at or leafward of a frame that `names` matches.

    A name that ends in `*` is a prefix. With `under`, only where a frame further to the root matches one of these;
    `not_under` excludes. `leaf` owns only samples whose leaf it is, not what it calls. `passes_to` are functions that
    take the packet over from these: they would run without them, too, and so they and what they call are not owned.
    `late` owns only samples that came late and landed there, in an interrupt that one of `under` delivers: their time
    was spent with interrupts off, from its arrival on.
    """

    names: tuple[str, ...]
    under: tuple[str, ...] = ()
    not_under: tuple[str, ...] = ()
    leaf: bool = False
    passes_to: tuple[str, ...] = ()
    late: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """One piece of evidence: its kind, what was seen in words, and where (namespace, device) if that is known.

    `strength` is a size that ranks causes which no CPU time tells of: the share of throughput or of packets. `own` is
    False where the whole machine was counted: that may be somebody else's. `ratio` is how many times as often a
    counter moves a unit of work: a cause that repeats the path brings that about by itself.
    """

    kind: str
    text: str
    place: str = ""
    strength: float = 0.0
    own: bool = True
    ratio: float = inf


@dataclass(frozen=True, slots=True)
class Check:
    """Something that must agree (or, as a contradiction, must not hold).

    `look` returns what it saw or None. `about` says in words what it looks for, with its threshold and the reason
    for it; `needs` what to record where it could not look. Without a `must` check there is no cause, whatever else.
    """

    kind: str
    about: str
    look: Callable[[Case], Seen | None]
    needs: str = ""
    must: bool = False


@dataclass(frozen=True, slots=True)
class Spread:
    """A cause that makes the whole path run more often: a unit of work takes `ratio` times as many passes.

    It owns no function; the part of the delta that no other cause owns is its own in the given `categories`, and in
    those that `further` gives for a case.
    """

    ratio: Callable[[Case], float]
    about: str
    categories: tuple[str, ...]
    further: Callable[[Case], tuple[str, ...]] | None = None


@dataclass(frozen=True, slots=True)
class Try:
    """What to do: words, a command that can be run ("" if there is none), and one that verifies that it helped ("":
    the same measurement once more, see `verify.py`). In commands DEV stands for the device that was found."""

    text: str
    command: str = ""
    verify: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """One cause.

    `owns` are the call paths that carry its cost; `signature` those that only run because of it (presence counts even
    where cost is small). `checks` must agree, `contradictions` must not. `needs_check` says that functions alone
    do not even make it possible (their cost has everyday reasons). `not_cpu` marks causes that cost throughput or
    latency without CPU time. `absorbs` names causes that are a mere consequence of this one: where no
    setting speaks for them, their cost is this one's; `subsumes` those that it brings about, settings
    and all. A `fallback` owns what no other cause does; one without CPU cost is none where another such cause is.
    `control` marks work of tasks that configure, never done for a packet: where the scenario's namespaces
    are known, only their own tasks' samples count. `replaces` are call paths that no longer run where these functions
    do their work instead: what they cost less is set off. `programs` says that programs outside the scenario in
    which the signature runs are the cause's altogether. `threshold` states where its limits come from.
    """

    name: str
    title: str
    what: str
    tries: tuple[Try, ...]
    source: str
    owns: tuple[Owned, ...] = ()
    signature: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    contradictions: tuple[Check, ...] = ()
    spread: Spread | None = None
    needs_check: bool = False
    not_cpu: bool = False
    fallback: bool = False
    control: bool = False
    absorbs: tuple[str, ...] = ()
    subsumes: tuple[str, ...] = ()
    replaces: tuple[Owned, ...] = ()
    programs: bool = False
    threshold: str = ""
    kernels: tuple[str, ...] = field(default=())
