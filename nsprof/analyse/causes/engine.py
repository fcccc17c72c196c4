"""`nsprof explain`: which known causes the extra cost belongs to, and what remains without one.

Order of work: bring both sides to one measure; say which conclusions the input forbids; ask every cause for its
evidence; let the accepted ones claim samples, leafmost first, each sample once; the remainder is "not explained".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nsprof.analyse.causes import forbids, verify, weigh
from nsprof.analyse.causes.annexes import Annexes
from nsprof.analyse.causes.case import Case, case_of
from nsprof.analyse.causes.evidence import Ownership
from nsprof.analyse.causes.judged import Judged, established, repeats
from nsprof.analyse.causes.look import full_share, not_received, read_share
from nsprof.analyse.causes.others import tasks_known, theirs
from nsprof.analyse.causes.owners import Claims, claims_of
from nsprof.analyse.causes.registry import rules as all_rules
from nsprof.analyse.causes.rule import Rule, Seen
from nsprof.analyse.comparing import Sides, two_sides
from nsprof.analyse.selection import Filter
from nsprof.analyse.stacks import function_table, leaf_functions
from nsprof.model.profile import Profile
from nsprof.model.results import DeltaRow, Evidence, Explanation, Finding, Interval, Measure
from nsprof.units import format_quantity

__all__ = ["explain"]

#: A repeated pass is not quite as dear as the first: caches are warm, or no longer.
_SLACK = 1.5
#: How often the path runs varies by a tenth by itself (coalescing).
_OFTEN = 1.25
#: So many functions are named in a line of evidence.
_NAMED = 4
#: Shares above this are printed as more than 100 %.
_WHOLE = 1.005
#: What made this part of something cheaper is worth a name.
_NAMEABLE = 0.03
#: Other load is named from this share of the cost on.
_OTHERS = 0.01

_Array = NDArray[np.float64]


def explain(
    base: Profile,
    new: Profile,
    *,
    base_scenario: str | None = None,
    new_scenario: str | None = None,
    event: str | None = None,
    per: str | None = None,
    where: Filter | None = None,
    force: bool = False,
    files: tuple[str, str] = ("", ""),
    rules: Sequence[Rule] | None = None,
) -> Explanation:
    """Causes of what `new` costs more than `base`; scenarios, event, unit and filters as for `diff`. `files` are the
    paths of both profiles, for the commands that are suggested.

    Raises ComparisonError where the two have no event or unit in common, EvidenceError without samples.
    """
    sides = two_sides(
        base,
        new,
        base_scenario=base_scenario,
        new_scenario=new_scenario,
        event=event,
        per=per,
        where=where,
        force=force,
    )
    return _Engine(sides, all_rules() if rules is None else tuple(rules), files).run()


class _Engine:
    def __init__(self, sides: Sides, rules: tuple[Rule, ...], files: tuple[str, str]) -> None:
        self.sides, self.rules = sides, rules
        self.case: Case = case_of(sides)
        self.verify = verify.command(self.case, files)
        self.exact = sides.measure.kind in ("modelled", "counted")
        _, maps = function_table([v.profile.frames for v in sides.views])
        self.others = [theirs(v, t) for v, t in zip(sides.views, sides.tables, strict=True)]
        self.own_known = any(tasks_known(v) for v in sides.views)
        self.claims: Claims = claims_of(rules, sides, maps, self.others)
        self.totals = (sides.views[0].totals(), sides.views[1].totals())
        self.samples = (float(sides.views[0].count.sum()), float(sides.views[1].count.sum()))
        number = len(self.claims.groups)
        pairs = list(zip(sides.views, self.claims.key, strict=True))
        self.costs = [v.by_run(k, number) for v, k in pairs]
        self.counts = [v.by_run(k, number, v.count) for v, k in pairs]
        self.exposed = [np.bincount(v.run, weights=v.count, minlength=len(v.runs)).astype("f8") for v in sides.views]
        self.notes: list[str] = []
        self.limits = forbids.limits_of(self.case, self.samples)
        self.heirs: dict[int, int] = {}
        self.waits: dict[int, Judged] = {}

    # -- evidence

    def run(self) -> Explanation:
        judged = [j for j in map(self._judge, range(len(self.rules))) if j is not None]
        accepted = self._settle(self._absorb(judged))
        shares = self._attribute(accepted)
        self._note_others()
        self._note_lost()
        self.owned = Ownership(
            self.claims, self._owners(accepted), self.heirs, self.costs[1].mean(axis=1) - self.costs[0].mean(axis=1),
            self.sides.functions.name, self.rules,
        )  # fmt: skip
        findings = [self._finding(j, shares.get(j.number)) for j in accepted]
        dearer = sum(f.delta for f in findings if f.certainty == "found" and not f.not_cpu and not _hidden(f))
        findings.sort(key=lambda f: (f.certainty != "found", _hidden(f), -self._rank(f, dearer)))
        return self._answer(findings, shares)

    def _inclusive(self, number: int) -> tuple[_Array, _Array, weigh.Counted]:
        there = np.array([number in g for g in self.claims.groups])
        base, new = (c[there].sum(axis=0) for c in self.costs)
        one, two = (c[there].sum(axis=0) for c in self.counts)
        return base, new, weigh.Counted(one, two, self.exposed[0], self.exposed[1])

    def _signed(self, number: int) -> tuple[float, float]:
        """Samples with the rule's signature on their stack, on both sides."""
        there = np.array([number in m for m in self.claims.marks])
        pairs = zip(self.sides.views, self.claims.marked, strict=True)
        one, two = (float(v.count[there[m]].sum()) for v, m in pairs)
        return one, two

    def _judge(self, number: int) -> Judged | None:
        rule = self.rules[number]
        looked = [(c, c.look(self.case) if self._may(c.kind) else None) for c in rule.checks]
        seen = tuple(s for _, s in looked if s is not None)
        if any(c.must and s is None for c, s in looked):
            return None
        against = tuple(s for s in (c.look(self.case) for c in rule.contradictions if self._may(c.kind)) if s)
        base, new, counted = self._inclusive(number)
        weight = weigh.weigh(base, new, self.totals, counted, exact=self.exact, tested=self.tested)
        own = [s for s in seen if s.own or not self.own_known]
        shown = not self.limits.functions and self._shown(weight, bool(own))
        # How many skbs a unit takes depends on load and pacing too, so that a count alone is no evidence here.
        told = any(s.kind in ("host", "workload", "ledger") for s in seen)
        if seen and not own and not shown:
            self.notes += [f"other load? {s.text} on the whole machine ({rule.title})" for s in seen]
            return None
        if rule.spread is not None and not shown and told and rule.owns:
            ratio = rule.spread.ratio(self.case)
            if ratio >= _OFTEN:
                shown_often = Seen("counters", f"{ratio:.3g} times as often: {rule.spread.about}")
                return Judged(number, rule, weight, False, (*seen, shown_often), against)
        strength = max((s.strength for s in seen), default=0.0)
        if rule.not_cpu:
            ok = bool(seen)
        elif rule.spread is not None and not rule.owns:
            ok = told
        elif not shown and established(rule, own, seen):
            ok = weight.delta > weigh.MIN_EFFECT * self.case.base_total
        else:
            ok = shown and (bool(seen) or self._exactly_new(number) or not (rule.needs_check or self.limits.alone))
        if not ok or (against and len({s.kind for s in seen}) < 2):
            return None
        return Judged(number, rule, weight, shown, seen, against, strength)

    def _exactly_new(self, number: int) -> bool:
        """Exact counts, and the signature runs on one side only: that needs no second opinion to be possible."""
        first, second = self._signed(number)
        return self.exact and first == 0 < second

    def _may(self, kind: str) -> bool:
        return not (self.limits.counters and kind in ("counters", "ledger"))

    def _shown(self, weight: weigh.Weight, supported: bool) -> bool:
        """Whether the cost is shown to be higher. Where its code runs on one side only even a small cost is one, if
        something else than functions speaks for it."""
        if weight.delta <= weigh.MIN_EFFECT * self.case.base_total and not (supported and weight.only_new):
            return False
        return weight.shown if supported else weight.alone

    @cached_property
    def tested(self) -> int:
        """How many causes have any samples at all: that many chances to be wrong."""
        there = self.counts[0].sum(axis=1) + self.counts[1].sum(axis=1)
        return len({r for g, n in zip(self.claims.groups, there, strict=True) if n > 0 for r in g})

    def _note_others(self) -> None:
        """Say how much of the cost is provably somebody else's (see `others`)."""
        for v, rows, title in zip(self.sides.views, self.others, self.sides.titles, strict=True):
            part = float(v.weight[rows].sum()) / float(v.weight.sum() or 1.0)
            if part >= _OTHERS:
                self.notes.append(
                    f"other load: {part:.0%} of {title}'s cost are softirqs in system calls of tasks in other "
                    "namespaces; no cause is drawn from them"
                )

    def _note_lost(self) -> None:
        """Say what of the datagrams sent was paid for in vain."""
        lost = [not_received(side) for side in (self.case.base, self.case.new)]
        if not any(map(math.isnan, lost)) and max(lost) >= _OTHERS:
            words = (f"{part:.0%} in {title}" for part, title in zip(lost, self.sides.titles, strict=True))
            self.notes.append(f"datagrams sent and not received, by the workload's own count: {', '.join(words)}")

    # -- attribution

    def _settle(self, judged: list[Judged]) -> list[Judged]:
        """Leave out what keeps nothing once the others have taken theirs (the outer one of two nested causes)."""
        accepted = judged
        while True:
            shares = self._attribute(accepted)
            least = weigh.MIN_EFFECT * self.case.base_total
            weak = [
                j
                for j in accepted
                if not j.rule.not_cpu
                and not repeats(j)
                and self._delta(shares.get(j.number)) < least
                and not (
                    len(j.kinds) > 1
                    and j.shown
                    and (self._delta(shares.get(j.number)) > 0 or self.annexes.of(j.number, "replaced"))
                )
            ]
            if not weak:
                return accepted
            lightest = min(weak, key=lambda j: self._delta(shares.get(j.number)))
            accepted = [j for j in accepted if j is not lightest]

    def _absorb(self, judged: list[Judged]) -> list[Judged]:
        """Consequences without evidence of their own go to their cause."""
        by_name = {j.rule.name: j for j in judged}
        for j in judged:
            for name in (*j.rule.absorbs, *j.rule.subsumes):
                other = by_name.get(name)
                # What follows is no better evidenced than what it follows from.
                sure = other is not None and len(j.kinds) >= min(2, len(other.kinds))
                if other is not None and sure and (not other.set_up or name in j.rule.subsumes):
                    self.heirs[other.number] = j.number
        # Waiting is what is left to say where nothing else holds the traffic back.
        sure_reasons = (j for j in judged if j.rule.not_cpu and not j.rule.fallback and len(j.kinds) >= 2)
        reason = next((j for j in sure_reasons if not j.against), None)
        for j in judged:
            if reason is not None and j.rule.fallback and j.rule.not_cpu:
                self.heirs[j.number] = reason.number
        self.waits = {
            self.heirs[j.number]: j for j in judged if j.number in self.heirs and j.rule.not_cpu and j.rule.fallback
        }
        self._repeated(judged)
        return [j for j in judged if j.number not in self.heirs]

    def _widest(self, judged: Sequence[Judged]) -> Judged | None:
        """The cause by which the path runs more often: the best evidenced, then the one with the largest ratio."""
        found = [(len(j.kinds), j.rule.spread.ratio(self.case), -j.number, j) for j in judged if j.rule.spread]
        return max(found, key=lambda row: row[:3])[3] if found else None

    def _repeated(self, judged: list[Judged]) -> None:
        """Where a cause makes the path run `ratio` times as often, whatever else is on the path costs as much more:
        that alone does not make it a cause of its own, nor do counters that moved in the same proportion."""
        widest = self._widest([j for j in judged if len(j.kinds) >= 2])
        if widest is None or widest.rule.spread is None:
            return
        ratio = widest.rule.spread.ratio(self.case)
        for j in judged:
            repeated = all(s.ratio <= ratio * _SLACK for s in j.seen)
            if j is not widest and repeated and 0 < j.weight.new <= ratio * _SLACK * j.weight.base:
                self.heirs.setdefault(j.number, widest.number)

    def _delta(self, cost: tuple[_Array, _Array] | None) -> float:
        return float(cost[1].mean() - cost[0].mean()) if cost is not None else 0.0

    def _owners(self, accepted: Sequence[Judged]) -> NDArray[np.int64]:
        """Owner (number of a rule, -1 none) of each group of claims."""
        ours = {j.number for j in accepted if not j.rule.not_cpu or j.rule.owns or j.rule.spread}
        owner = np.full(len(self.claims.groups), -1, "i8")
        for i, group in enumerate(self.claims.groups):
            chosen = [r for r in (self.heirs.get(r, r) for r in group) if r in ours]
            first = [r for r in chosen if not self.rules[r].fallback]
            if chosen:
                owner[i] = (first or chosen)[0]
        return owner

    def _attribute(self, accepted: Sequence[Judged]) -> dict[int, tuple[_Array, _Array]]:
        """Rule -> its own cost by run on both sides; -1 is what nobody owns."""
        owner = self._owners(accepted)
        shares = {
            int(r): (self.costs[0][owner == r].sum(axis=0), self.costs[1][owner == r].sum(axis=0))
            for r in np.unique(owner)
        }
        shares.setdefault(-1, (np.zeros_like(self.totals[0]), np.zeros_like(self.totals[1])))
        # Samples without a candidate are in group 0 and so in the rest already.
        self.annexes = Annexes(self.sides, self.claims, owner)
        for j in accepted:
            if j.rule.replaces and j.shown:
                self.annexes.replaced(j.number)
            if j.rule.programs and j.shown:
                self.annexes.programs(j.number)
        widest = self._widest(accepted)
        if widest is not None and widest.rule.spread is not None:
            spread = widest.rule.spread
            further = () if spread.further is None else spread.further(self.case)
            self.annexes.repeated(widest.number, (*spread.categories, *further))
        return self.annexes.added(shares)

    # -- the answer

    def _finding(self, j: Judged, cost: tuple[_Array, _Array] | None) -> Finding:
        rule = j.rule
        share, around = (float("nan"), None) if cost is None else weigh.share(cost, self.totals)
        kind = "simulation" if self.exact else "functions"
        evidence = [Evidence(s.kind, s.text) for s in j.seen]
        if j.shown:
            evidence.insert(0, Evidence(kind, self._cost_text(j)))
        waits = None if rule.not_cpu else self.waits.get(j.number)
        evidence += [Evidence(s.kind, f"{s.text}, its consequence") for s in (waits.seen if waits else ())]
        evidence += [Evidence(s.kind, s.text, agrees=False) for s in j.against]
        certainty = "found" if len(j.kinds) >= 2 and not j.against else "possible"
        return Finding(
            cause=rule.name,
            title=rule.title,
            what=rule.what,
            place=j.place,
            certainty=certainty,
            not_cpu=rule.not_cpu,
            delta=self._delta(cost),
            interval=self._bounds(j, cost),
            share=share,
            share_interval=around,
            strength=j.strength if rule.not_cpu else waits.strength if waits else 0.0,
            evidence=tuple(evidence),
            functions=() if cost is None else self._leaves(self.owned.groups(j.number), 8, 0.0),
            suggestions=tuple(verify.suggestion(t, j.place, self.case, self.verify) for t in rule.tries),
            source=rule.source,
            threshold=rule.threshold,
        )

    def _bounds(self, j: Judged, cost: tuple[_Array, _Array] | None) -> Interval | None:
        """Interval of what is attributed to a cause: Welch's over the runs. Where that includes 0, the one that
        showed the cost, in the proportion of what is attributed to it."""
        if cost is None or min(len(run) for run in cost) < 2:
            return None  # nothing is known of how much runs differ
        around, shown = weigh.difference(*cost), j.weight.interval
        if self.exact or not j.shown or shown is None or (around is not None and around.low > 0):
            return around
        if self.annexes.of(j.number, "replaced"):
            return around  # what showed the cost knows nothing of what is set off
        delta, whole = self._delta(cost), j.weight.delta
        if delta <= 0 or whole <= 0:
            return around
        return Interval(shown.low * delta / whole, shown.high * delta / whole, shown.level)

    def _cost_text(self, j: Judged) -> str:
        """The functions that carry the cost, each with its own part; then what all they call costs, and whose it is
        where that is not what the cause was given."""
        rows, measure, w = self.owned.named(j.number), self.sides.measure, j.weight
        more = rows[_NAMED:]
        parts = [f"{name} {_amount(delta, measure, '+')}" for name, delta in rows[:_NAMED]]
        parts += [f"{_amount(sum(d for _, d in more), measure, '+')} in {len(more)} more"] if more else []
        top = ", ".join(parts) or "its functions"
        if w.only_new:
            seen = "" if self.exact else f"{w.samples_new:,.0f} samples against none; "
            text = f"{top} {measure.label} with what they call; they run only in {self.sides.titles[1]}"
            text += f" ({seen}{_amount(w.new, measure)} {measure.label} in all)"
        else:
            text = (
                f"{top} with what they call: {_amount(w.base, measure)} -> {_amount(w.new, measure)} {measure.label}"
            )
        rest = [f"{_amount(d, measure, '+')} as '{t}'" for t, d in self.owned.elsewhere(j.number).items()]
        text += f"; of this counts {', '.join(rest)}" if rest else ""
        inherited = self.owned.inherited(j.number)
        text += "".join(f"; {_amount(d, measure, '+')} '{t}', its consequence" for t, d in inherited.items())
        return text + self._annex_text(j)

    def _annex_text(self, j: Judged) -> str:
        """What a cause was given besides its functions."""
        measure, text = self.sides.measure, ""
        for kind, why in (("replaced", "that they replace, set off"), ("programs", "of the programs that do it")):
            annex = self.annexes.of(j.number, kind)
            if annex is not None:
                rows = sorted(annex.parts.items(), key=lambda row: -abs(row[1]))[:_NAMED]
                names = ", ".join(f"{name} {_amount(d, measure, '+')}" for name, d in rows)
                text += f"; {_amount(annex.delta, measure, '+')} {why}: {names}"
        repeated = self.annexes.of(j.number, "repeated")
        if j.rule.spread is not None and repeated is not None:
            text += f"; {_amount(repeated.delta, measure, '+')} more: {j.rule.spread.about}"
        return text

    def _leaves(
        self, there: NDArray[np.bool_], number: int, least: float, *, falling: bool = False
    ) -> tuple[tuple[str, float], ...]:
        """Leaf functions of the samples in these groups, by how much more (`falling`: less) they cost themselves."""
        f = self.sides.functions
        total = np.zeros(len(f))
        sides = zip((-1, 1), self.sides.views, self.sides.tables, self.claims.key, self.annexes.taken, strict=True)
        for sign, v, t, k, gone in sides:
            leaf = leaf_functions(v, t, f)
            keep = there[k] & (leaf >= 0) & ~v.skid & ~gone
            total += sign * np.bincount(leaf[keep], weights=v.cost[keep], minlength=len(f)) / len(v.runs)
        order = np.argsort(total if falling else -total)[:number]
        return tuple((f.name[i], float(total[i])) for i in order if total[i] > least)

    def _rank(self, f: Finding, dearer: float) -> float:
        """Size of a finding. What is lost is a share of what there is now, as costs are; but on a full CPU throughput
        falls by the share by which a unit became dearer, and that part is the dearer causes' own."""
        if f.not_cpu:
            return max(f.strength * self.case.new_total - dearer, f.delta)
        return f.delta

    def _cheaper(self, findings: Sequence[Finding], rest: tuple[_Array, _Array]) -> list[str]:
        """Where causes cost more than all that is extra, or the rest is shown to cost less: what did, by name."""
        beyond, around = any(f.share > _WHOLE for f in findings), weigh.difference(*rest)
        shown = around is not None and around.high < 0 and any(f.delta > 0 for f in findings)
        if not (beyond or shown) or self._delta(rest) >= 0:
            return []
        measure, fell = self.sides.measure, self._delta(rest)
        rows = list(self._leaves(self.owned.groups(-1), _NAMED, -math.inf, falling=True))
        rows.append(("samples that came late, so that their function is not known", self._late_rest()))
        named = sorted((row for row in rows if row[1] < _NAMEABLE * fell), key=lambda row: row[1])
        names = ", ".join(f"{name} ({_amount(d, measure)})" for name, d in named) or "many functions a little"
        whole = "a share above 100%: " if beyond else ""
        by = f"{_amount(-fell, measure)} {measure.label}"
        return [f"{whole}what no cause owns became cheaper by {by}, mostly {names}{self._fewer_sent()}"]

    def _late_rest(self) -> float:
        """Change of the cost of late samples that no cause owns."""
        nobody, total = self.owned.groups(-1), 0.0
        pairs = zip((-1, 1), self.sides.views, self.claims.key, self.annexes.taken, strict=True)
        for sign, v, k, gone in pairs:
            total += sign * float(v.cost[nobody[k] & v.skid & ~gone].sum()) / len(v.runs)
        return total

    def _fewer_sent(self) -> str:
        """A sender that outruns its reader less pays less for each datagram that is read."""
        base, new = (read_share(side) for side in (self.case.base, self.case.new))
        if self.case.per not in ("datagram", "kb") or new < base * (1 + _OTHERS):
            return ""
        return f"; {new:.0%} of the datagrams sent are read (base: {base:.0%}), so that fewer are paid for in vain"

    def _answer(self, findings: list[Finding], shares: dict[int, tuple[_Array, _Array]]) -> Explanation:
        rest = shares.get(-1, self.totals)
        around = weigh.difference(*self.totals)
        delta = float(self.totals[1].mean() - self.totals[0].mean())
        share, _ = weigh.share(rest, self.totals)
        total = DeltaRow(
            "total", "", "", self.case.base_total, self.case.new_total, delta, interval=around,
            samples_base=int(self.samples[0]), samples_new=int(self.samples[1]),
        )  # fmt: skip
        answer, reasons = forbids.answer_of(self.case, findings, total, share, self.limits)
        reasons += self._cheaper(findings, rest)
        runs = [len(v.runs) for v in self.sides.views]
        return Explanation(
            base_title=self.sides.titles[0],
            new_title=self.sides.titles[1],
            measure=self.sides.measure,
            answer=answer,
            total=total,
            findings=tuple(findings),
            not_explained=self._delta(rest),
            not_explained_interval=weigh.difference(*rest),
            not_explained_share=share,
            unexplained_functions=self._leaves(self.owned.groups(-1), 6, weigh.MIN_EFFECT * self.case.base_total),
            runs_base=runs[0],
            runs_new=runs[1],
            forbids=self.limits.lines,
            reasons=tuple(reasons),
            next=forbids.next_steps(self.case, findings, self.rules, self.limits, runs),
            warnings=self.sides.warnings,
            notes=tuple(
                f"{t}: {n}" for v, t in zip(self.sides.views, self.sides.titles, strict=True) for n in v.notes
            )
            + tuple(dict.fromkeys(self.notes)),
            tested=self.tested,
            cpu_full=full_share(self.case.new),
            cpu_full_others=self._others_share(),
        )

    def _others_share(self) -> float:
        """What tasks outside the scenario's namespaces took of the busy time sampled where CPUs are full."""
        chosen = self.sides.views[1]
        whole = chosen.other_weight + float(chosen.weight.sum())
        return math.nan if whole <= 0 or math.isnan(full_share(self.case.new)) else chosen.other_weight / whole


def _hidden(finding: Finding) -> bool:
    """Whether noise hides what a cause of CPU time costs."""
    return not finding.not_cpu and finding.interval is not None and finding.interval.low <= 0


def _amount(value: float, measure: Measure, sign: str = "") -> str:
    if measure.unit != "ns":
        return (sign if value >= 0 else "") + format_quantity(value)
    return f"{value:{sign},.0f}" if abs(value) >= 10 else f"{value:{sign}.2g}"
