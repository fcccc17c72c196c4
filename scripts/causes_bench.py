"""The proof of `nsprof explain`: faults put in on purpose, their clean twins, and what it makes of them.

    causes_bench.py [--only NAME ...] [--runs N] [--seconds S] [--frequency HZ] [--nice N] [--keep DIR] [--from DIR]
                    [--kernel SPEC ...] [--faults FILE] [--write]

Native faults are timed here; `--kernel SPEC` runs those that the simulator can inject, in exact instructions.
`--from` judges profiles that an earlier `--keep` has stored, `--write` puts the table into docs/causes.md.
`--faults FILE` runs faults that somebody else has described (format: docs/causes.md), scored apart as "blind".
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import cycle, islice
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))

from scipy.stats import binomtest  # noqa: E402

from nsprof import store  # noqa: E402
from nsprof.analyse import Filter, causes  # noqa: E402
from nsprof.collect.sampling.sampler import SamplerConfig  # noqa: E402
from nsprof.errors import NsprofError  # noqa: E402
from nsprof.model.profile import Profile  # noqa: E402
from nsprof.observe import Observer  # noqa: E402
from tests.causes_bed import Fault, measure  # noqa: E402
from tests.causes_faults import FAULTS, PAIRS, TWINS  # noqa: E402
from tests.causes_files import faults_of  # noqa: E402
from tests.causes_more import GUEST, MORE  # noqa: E402


@dataclass(frozen=True)
class Verdict:
    """What came of one injection. `rank` is the right cause's place, 0 where it is missing."""

    name: str
    where: str
    expected: str
    first: str
    others: str
    rank: int
    sure: bool
    base: float
    new: float
    unit: str
    claimed: float  # share of new's cost that the right cause claims
    gained: float  # share of new's cost that removing the fault gains
    steady: bool  # whether 0 lies outside the interval of the gain
    answer: str

    @property
    def right(self) -> bool:
        return self.rank == 1


def judge(fault: Fault, profile: Profile, where: str) -> Verdict:
    """Explain a pair and compare with what was done."""
    e = causes.explain(
        profile,
        profile,
        base_scenario="clean",
        new_scenario="fault",
        where=Filter(side=fault.side, everyone=fault.everyone),
        per=fault.per,
    )
    names = [f.cause for f in e.findings]
    rank = next((i for i, n in enumerate(names, 1) if n in fault.expect), 0)
    if fault.both:
        places = [names.index(n) + 1 if n in names else 0 for n in fault.both]
        rank = 0 if 0 in places else 1 if max(places) <= len(fault.both) else max(places)
    right = [f for f in e.findings if f.cause in (fault.both or fault.expect) and not f.not_cpu]
    interval = e.total.interval
    return Verdict(
        name=fault.name,
        where=where,
        expected=" + ".join(fault.both) or " or ".join(fault.expect) or "(nothing)",
        first=names[0] if names else "-",
        others=", ".join(names[1:3]),
        rank=rank,
        sure=bool(e.findings) and e.findings[0].certainty == "found",
        base=e.total.base,
        new=e.total.new,
        unit=e.measure.label,
        claimed=sum(f.delta for f in right) / e.total.new if right and e.total.new else float("nan"),
        gained=e.total.delta / e.total.new if e.total.new else float("nan"),
        steady=e.measure.kind == "modelled" or (interval is not None and interval.low > 0),
        answer=e.answer,
    )


def _lasting(command: Sequence[str], seconds: int) -> tuple[str, ...]:
    """netperf's words with another length."""
    if command[:1] != ("netperf",):
        return tuple(command)
    pairs = zip(("", *command), command, strict=False)
    return tuple(str(seconds) if before == "-l" else word for before, word in pairs)


def _clean_sides() -> list[Fault]:
    """Every different clean side of the faults, as a pair against itself."""
    twins = {(repr(f.twin.spec), f.twin.command): f.twin for f in (*FAULTS, *MORE) if not f.everyone}
    return list(twins.values())


def _native(options: argparse.Namespace, faults: Sequence[Fault]) -> Iterator[tuple[Fault, Profile]]:
    with Observer(SamplerConfig(frequency_hz=options.frequency)) as observer:
        for fault in faults:
            words, clean = (_lasting(c, options.seconds) for c in (fault.command, fault.clean_command))
            try:
                yield fault, measure(observer, replace(fault, command=words, clean_command=clean), runs=options.runs)
            except (NsprofError, RuntimeError, OSError) as error:
                why = getattr(error, "message", "") or str(error)
                print(f"{fault.name}: could not be injected here: {why}", file=sys.stderr, flush=True)


def _stored(folder: Path, faults: Sequence[Fault]) -> Iterator[tuple[Fault, Profile]]:
    for fault in faults:
        path = folder / f"{_file(fault.name)}.nsprof"
        if path.exists():
            yield fault, store.open_any(path)


def _file(name: str) -> str:
    return name.replace(" ", "_").replace("/", "-")


def _print(v: Verdict) -> None:
    mark = "ok " if v.right or (v.expected == "(nothing)" and v.first == "-") else "BAD"
    print(
        f"{mark} {v.name:26} {v.where:9} {v.expected:32.32} first {v.first:22} rank {v.rank} "
        f"{v.base:10,.0f} -> {v.new:10,.0f} {v.unit:16} claimed {v.claimed:5.0%} gained {v.gained:5.0%} {v.others}",
        flush=True,
    )


def _summary(rows: Sequence[Verdict]) -> list[str]:
    faults = [v for v in rows if v.expected != "(nothing)" and " + " not in v.expected]
    pairs = [v for v in rows if " + " in v.expected]
    clean = [v for v in rows if v.expected == "(nothing)"]
    bounds = _exactly(sum(v.first == "-" for v in clean), len(clean))
    near = [v for v in faults if v.rank and v.steady and v.claimed == v.claimed]
    return [
        f"right cause first: {sum(v.rank == 1 for v in faults)} of {len(faults)} injections; "
        f"among the first three: {sum(1 <= v.rank <= 3 for v in faults)}",
        f"clean twins without a finding: {sum(v.first == '-' for v in clean)} of {len(clean)}{bounds}",
        f"claimed share within 15 points of what removing the fault gains: "
        f"{sum(abs(v.claimed - v.gained) <= 0.15 for v in near)} of {len(near)} whose gain is shown to differ from 0",
        f"pairs of faults, both found: {sum(v.rank == 1 for v in pairs)} of {len(pairs)}",
    ]


def _exactly(right: int, number: int) -> str:
    """The exact 95 % interval (Clopper and Pearson) of a share, in words; "" of nothing."""
    if not number:
        return ""
    around = binomtest(right, number).proportion_ci(0.95, method="exact")
    return f" ({right / number:.1%}, exact 95 % interval [{around.low:.1%}, {around.high:.1%}])"


def _table(rows: Sequence[Verdict], head: str) -> str:
    out = [head, "", *(f"- {line}" for line in _summary(rows)), ""]
    out.append(
        "| injected | measured in | right | first | its place | clean -> faulty | claims | removing it gains |"
    )
    out.append("| --- | --- | --- | --- | ---: | --- | ---: | ---: |")
    for v in rows:
        claims = "-" if v.claimed != v.claimed else f"{v.claimed:.0%}"
        gains = f"{v.gained:.0%}" + ("" if v.steady else " (not shown)")
        place = str(v.rank) if v.rank else ("-" if v.expected == "(nothing)" else "missing")
        out.append(
            f"| {v.name} | {v.where} | {v.expected} | {v.first}{'' if v.sure or v.first == '-' else ' (possible)'} | "
            f"{place} | {v.base:,.0f} -> {v.new:,.0f} {v.unit} | {claims} | {gains} |"
        )
    return "\n".join(out) + "\n"


def _without(rows: Sequence[Verdict], head: str) -> str:
    """Pairs without a fault in numbers, and those in which something was found nevertheless."""
    out = [head, ""]
    for where in (*dict.fromkeys(v.where for v in rows), ""):
        some = [v for v in rows if not where or v.where == where]
        clean = sum(v.first == "-" for v in some)
        noun = "all together" if not where else "natively" if where == "ns" else f"simulated, {where}"
        out.append(f"- {noun}: {clean} of {len(some)} without a finding{_exactly(clean, len(some))}")
    for v in rows:
        if v.first != "-":
            sure = "found" if v.sure else "possible"
            out.append(f"- {v.name} ({v.where}): {v.first} ({sure}), {v.base:,.0f} -> {v.new:,.0f} {v.unit}")
    answers = Counter(v.answer for v in rows)
    out.append(f"- what it said: {', '.join(f'{answer}: {n}' for answer, n in answers.most_common())}")
    return "\n".join(out) + "\n"


def _list() -> str:
    out = ["| cause | what it is | needs to agree | limit |", "| --- | --- | --- | --- |"]
    for rule in causes.rules():
        checks = "; ".join(c.about for c in rule.checks) or "functions only (never more than possible)"
        out.append(f"| `{rule.name}` | {rule.title} | {checks} | {rule.threshold} |")
    return "\n".join(out).replace("_", "\\_") + "\n"


def _tree() -> str:
    """The commit that is measured, and whether the files are still its own."""
    words = ["git", "-C", str(REPO)]
    commit = subprocess.run([*words, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    rooms = ["nsprof/analyse", "tests/causes_bed.py", "tests/causes_faults.py", "tests/causes_more.py"]
    changed = subprocess.run(
        [*words, "status", "--porcelain", "--", *rooms], capture_output=True, text=True, check=False
    )
    return (commit.stdout.strip() or "unknown") + (" with changes" if changed.stdout.strip() else "")


def _note(options: argparse.Namespace) -> None:
    """Beside the recordings: when, at which commit, how, and how busy the machine was."""
    path = options.keep / "recorded.json"
    before = json.loads(path.read_text()) if path.exists() else []
    what = ", ".join(options.kernel) or ("guest" if options.guest else "native")
    how = "" if options.kernel else f", {options.runs} runs of {options.seconds} s a side"
    load = "" if options.kernel or options.guest else f", load average {os.getloadavg()[0]:.1f} at the end"
    line = f"{what}: {time.strftime('%Y-%m-%d %H:%M')} at commit {options.tree}{how}{load}"
    path.write_text(json.dumps([*before, line], indent=1))


def _head(options: argparse.Namespace) -> str:
    """When and how what is shown was recorded."""
    folder = options.stored or options.keep
    path = folder / "recorded.json" if folder else None
    if path is None or not path.exists():
        return f"Measured {time.strftime('%Y-%m-%d')} at commit {_tree()}."
    recorded = "; ".join(json.loads(path.read_text()))
    return f"Recorded {recorded}. Judged at commit {_tree()}."


def _write(marker: str, text: str) -> None:
    path = REPO / "docs" / "causes.md"
    whole = path.read_text()
    begin, end = f"<!-- {marker}: begin -->", f"<!-- {marker}: end -->"
    head, _, rest = whole.partition(begin)
    _, _, tail = rest.partition(end)
    path.write_text(f"{head}{begin}\n{text}{end}{tail}")


def main() -> int:
    """Run, print, and return 1 where a right cause is not first."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--seconds", type=int, default=1)
    parser.add_argument("--frequency", type=int, default=1999)
    parser.add_argument("--nice", type=int, default=0, help="priority of the traffic on a machine shared with others")
    parser.add_argument("--kernel", action="append", default=[], metavar="SPEC")
    parser.add_argument("--keep", type=Path, metavar="DIR")
    parser.add_argument("--from", dest="stored", type=Path, metavar="DIR")
    parser.add_argument("--faults", type=Path, metavar="FILE", help="faults described in TOML, scored apart")
    parser.add_argument("--aa", type=int, default=0, metavar="N", help="N pairs without a fault, of all clean sides")
    parser.add_argument("--skip", type=int, default=0, metavar="N", help="leave out the first N (to go on)")
    parser.add_argument("--seeds", type=int, default=0, metavar="N", help="with --kernel: pairs of N boots, no fault")
    parser.add_argument("--guest", action="store_true", help="faults of the whole machine: run it inside a guest")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    options.tree = _tree()
    every = faults_of(options.faults) if options.faults else (*FAULTS, *MORE, *PAIRS, *TWINS)
    if options.guest:
        every = GUEST
    elif options.stored and not (options.faults or options.aa):
        every = (*every, *GUEST)
    if options.aa:
        clean = islice(cycle(_clean_sides()), options.skip + options.aa)
        every = tuple(replace(f, name=f"{f.name} {i}") for i, f in enumerate(clean, 1))[options.skip :]
    wanted = [f for f in every if not options.only or f.name in options.only]
    rows: list[Verdict] = []
    if options.nice:
        os.nice(options.nice)
    if options.stored:
        source: Iterator[tuple[Fault, Profile]] = _stored(options.stored, wanted)
    elif options.kernel:
        source = iter(())
    else:
        source = _native(options, wanted)
    for fault, profile in source:
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            store.save(profile, options.keep / f"{_file(fault.name)}.nsprof")
        rows.append(judge(fault, profile, "guest" if fault in GUEST else "ns"))
        _print(rows[-1])
    if options.kernel or (options.stored and not options.faults):
        from tests.causes_simulated import seeds, simulated, stored

        if options.seeds:
            pairs = seeds(options.kernel, options.seeds, options.keep or options.stored)
        elif options.stored:
            pairs = stored(options.stored)
        else:
            pairs = simulated(options.kernel, options.only, options.keep)
        for fault, kernel, profile in pairs:
            rows.append(judge(fault, profile, kernel))
            _print(rows[-1])
    print("\n".join(_summary(rows)))
    if options.keep and rows:
        (options.keep / "verdicts.json").write_text(json.dumps([asdict(v) for v in rows], indent=1))
        if not options.stored:
            _note(options)
    if options.write:
        if options.aa or options.seeds:
            _write("aa", _without(rows, _head(options)))
        else:
            _write("blind" if options.faults else "measured", _table(rows, _head(options)))
        _write("causes", _list())
    return int(any(v.rank != 1 for v in rows if v.expected != "(nothing)"))


if __name__ == "__main__":
    sys.exit(main())
