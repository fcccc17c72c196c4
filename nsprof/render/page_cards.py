"""Findings of `nsprof explain` as cards of the report page."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nsprof.render.explain import COST_NOT_SHOWN, answer_words, cost_is_hidden, full_cpus, told
from nsprof.render.flamegraph_text import cost_text, delta_text, per_noun, percent
from nsprof.render.page_model import BY_CAUSE, Card

if TYPE_CHECKING:
    from nsprof.model.results import Explanation, Finding

__all__ = ["explanation_cards"]


def _weight(finding: Finding, unit: str, per: str) -> str:
    if finding.not_cpu:
        size = "" if math.isnan(finding.strength) else f", concerns {percent(finding.strength, 0)}"
        return f"not a CPU cost{size}"
    if cost_is_hidden(finding):
        return COST_NOT_SHOWN
    parts = [delta_text(finding.delta, unit, per)]
    if finding.interval is not None:
        parts.append(f"[{delta_text(finding.interval.low, unit)}, {delta_text(finding.interval.high, unit)}]")
    if not math.isnan(finding.share):
        parts.append(f"{percent(finding.share, 0)} {BY_CAUSE}")
    return ", ".join(parts)


def _card(number: int, finding: Finding, unit: str, per: str) -> Card:
    place = f" ({finding.place})" if finding.place else ""
    lines = [f"{finding.certainty}: {_weight(finding, unit, per)}", finding.what]
    for piece in finding.evidence:
        lines.append(f"{'evidence' if piece.agrees else 'against it'} ({piece.kind}): {piece.text}")
    for suggestion in finding.suggestions:
        command = f": {suggestion.command}" if suggestion.command else ""
        lines.append(f"try: {suggestion.text}{command}")
        lines.append(f"verify: {suggestion.verify}" if suggestion.verify else "")
    return Card(f"{number}. {finding.title}{place}", tuple(line for line in lines if line))


def explanation_cards(explanation: Explanation) -> tuple[Card, ...]:
    """One card a finding, in order, and one for what is not explained or must not be concluded."""
    measure = explanation.measure
    unit, per = measure.unit, per_noun(measure)
    cards = [_card(n, finding, unit, per) for n, finding in enumerate(explanation.findings, 1)]
    lines = []
    if not math.isnan(explanation.not_explained_share):
        lines.append(
            f"not explained: {cost_text(explanation.not_explained, unit, per)}, "
            f"{percent(explanation.not_explained_share, 0)} of the change"
        )
    full = full_cpus(explanation)
    lines += [full[0].upper() + full[1:]] if full else []
    lines += explanation.reasons
    lines += [f"note: {text}" for text in told(explanation)]
    lines += [f"not to be concluded: {text}" for text in explanation.forbids]
    lines += [f"next: {text}" for text in explanation.next]
    cards.append(Card(f"Answer: {answer_words(explanation)}", tuple(lines)))
    return tuple(cards)
