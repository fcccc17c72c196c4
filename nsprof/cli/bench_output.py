"""What `nsprof bench` shows: progress while it measures, then the table and the top deltas."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from nsprof.cli.common import tell
from nsprof.escape import own_name, shell_word, shell_words

if TYPE_CHECKING:
    from nsprof.model.metrics import ConditionRow, MetricTable, Scaling
    from nsprof.model.profile import Profile
    from nsprof.model.results import DiffReport, ScenarioRow, ScenarioTable
    from nsprof.render.tables import Part

__all__ = ["Advance", "progress", "show"]


class Advance:
    """Shows how far the bench is and how long it will take; on a terminal as a bar, otherwise a line a run."""

    def __init__(self, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._quiet = quiet
        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )
        self._plain = not quiet and not console.is_terminal
        self._task = self._bar.add_task("bench", total=None, left="")
        self._begun: tuple[float, int] | None = None

    def advance(self, done: int, total: int, what: str) -> None:
        """`done` of `total` runs are finished and `what` begins."""
        left = self._left(done, total)
        self._bar.update(self._task, completed=done, total=total, description=what or "done", left=left)
        if self._plain and what:
            more = f" ({left})" if left else ""
            tell(f"run {done + 1} of {total}: {what}{more}")

    def _left(self, done: int, total: int) -> str:
        """The time left if the other runs take as long as those so far; nothing before the first is over."""
        now = time.monotonic()
        if self._begun is None:
            self._begun = now, done
        began, first = self._begun
        if done <= first or done >= total:
            return ""
        seconds = (now - began) / (done - first) * (total - done)
        if seconds < 90:
            return f"about {seconds:.0f} s left"
        return f"about {seconds / 60:.0f} min left" if seconds < 5400 else f"about {seconds / 3600:.1f} h left"


@contextmanager
def progress(quiet: bool) -> Iterator[Advance]:
    """An Advance whose bar is removed at the end."""
    state = Advance(quiet)
    with state._bar:
        yield state


@dataclass(frozen=True, slots=True)
class Shown:
    """One part of a bench, ready to print: its tables in the report's order."""

    part: str
    title: str
    table: ScenarioTable
    metrics: tuple[MetricTable, ...]
    deltas: tuple[DiffReport, ...]
    scalings: tuple[Scaling, ...]


def show(
    profile: Profile,
    path: str,
    *,
    baseline: str = "",
    top: int = 15,
    form: str | None = None,
    commit_text: bool = False,
    quiet: bool = False,
) -> None:
    """Print what the bench's plan asks for: for each part the document-000 table, then the other tables.

    `form` is None (terminal), "markdown", "json" or "csv"; `commit_text` adds build-id, configuration and raw runs.
    """
    from nsprof.cli.common import write_csv, write_json, write_parts

    failures = Counter((run.scenario, run.failed) for run in profile.runs if run.failed)
    for (scenario, why), count in failures.items():
        runs = "a run" if count == 1 else f"{count} runs"
        tell(f"{runs} of {scenario} failed: {why}")
    shown = [s for part in _parts(profile) if (s := _part(profile, part, baseline)) is not None]
    if not shown:
        return
    if form == "json":
        write_json(
            "bench",
            {
                "parts": [
                    {
                        "title": s.title,
                        "scenarios": s.table,
                        "metrics": s.metrics,
                        "scaling": s.scalings,
                        "deltas": s.deltas,
                    }
                    for s in shown
                ],
                "conditions": _conditions(profile),
                "about": _about(profile),
                "warnings": list(dict.fromkeys(f"{r.scenario}: {text}" for r in profile.runs for text in r.warnings)),
            },
        )
        return
    if form == "csv":
        write_csv(
            {
                "part": s.title,
                "base": t.base_title,
                "new": t.new_title,
                **{f.name: getattr(row, f.name) for f in fields(row)},
            }
            for s in shown
            for t in s.metrics
            for row in t.rows
        )
        return
    write_parts(_text(profile, shown, top, commit_text), form)
    if not quiet:
        after = f"{own_name()} bench --show {shell_word(str(path))} --markdown --commit-text"
        pair = comparable(profile, shown)
        if pair is not None:
            base, new = pair
            words = ["diff", str(path), "--baseline", base, "--scenario", new]
            after += f", or {own_name()} {shell_words(words)}"
        tell(f"wrote {path}; next: {after}")


def comparable(profile: Profile, shown: Sequence[Shown]) -> tuple[str, str] | None:
    """Two names that `nsprof diff` takes and that ran the same workload: the baseline and the last line of the last
    part with more lines than one. None where no part has."""
    from nsprof.analyse.selection import scenario_names

    names = {n for n in scenario_names(profile) if profile_has(profile, n)}
    for each in reversed(shown):
        pair = tuple(_whole(each.part, label) for label in (each.table.baseline, each.table.rows[-1].scenario))
        if len(each.table.rows) > 1 and names.issuperset(pair):
            return pair[0], pair[1]
    return None


def _whole(part: str, label: str) -> str:
    """The name in the file of a line of a part: `tbench/host`, `6.12:tbench/host`."""
    kernel, colon, scenario = label.rpartition(":")
    return f"{kernel}{colon}{part}/{scenario}" if part else label


def profile_has(profile: Profile, name: str) -> bool:
    """Whether a scenario has a usable run."""
    from nsprof.analyse.selection import usable_runs

    return bool(usable_runs(profile, name))


def _plan(profile: Profile) -> dict[str, Any]:
    found: dict[str, Any] = profile.meta.get("bench", {}).get("plan", {})
    return found


def _parts(profile: Profile) -> list[str]:
    cases = _plan(profile).get("cases")
    if cases:
        return list(dict.fromkeys(c["part"] for c in cases))
    return list(dict.fromkeys(name.rpartition("/")[0] for name in profile.scenarios))


def _part(profile: Profile, part: str, baseline: str) -> Shown | None:
    from nsprof import analyse
    from nsprof.analyse import metrics
    from nsprof.analyse.reporting import own_count
    from nsprof.analyse.selection import scenario_names, usable_runs
    from nsprof.bench.run import only_part
    from nsprof.errors import EvidenceError

    chosen = only_part(profile, part)
    usable = [n for n in scenario_names(chosen) if profile_has(chosen, n)]
    if not usable:
        return None
    plan = _plan(profile)
    wanted = baseline or plan.get("baseline", "")
    base = next((n for n in usable if wanted and (n == wanted or n.partition(":")[2] == wanted)), "")
    if not base:
        base = next((n for n in usable if n == "host" or n.endswith(":host")), usable[0])
    per = plan.get("per") or None
    title = " - ".join(filter(None, (plan.get("title", ""), part)))
    table = _in_order(analyse.scenario_table(chosen, baseline=base, per=per, title=title or ""), plan, part)
    tables = plan.get("tables", ("document", "delta"))
    compared, deltas = [], []
    for name in usable:
        if name == base:
            continue
        try:
            compared.append(metrics.metric_table(chosen, base, name, per=per))
            if "delta" in tables:
                delta = analyse.diff(chosen, chosen, base_scenario=base, new_scenario=name, per=per)
                runs = [chosen.runs[i] for which in (base, name) for i in usable_runs(chosen, which)]
                deltas.append(replace(delta, measure=own_count(delta.measure, runs)))
        except EvidenceError as error:
            tell(f"{name}: {error.message}")
    return Shown(part, title, table, tuple(compared), tuple(deltas), tuple(_scalings(chosen, part, usable, plan)))


def _in_order(table: ScenarioTable, plan: dict[str, Any], part: str) -> ScenarioTable:
    """Lines in the order of the plan, the baseline first; runs came in a random one."""
    labels = [c["label"] for c in plan.get("cases", ()) if c["part"] == part]

    def place(row: ScenarioRow) -> tuple[bool, int]:
        label = row.scenario.partition(":")[2] or row.scenario
        return not row.is_baseline, labels.index(label) if label in labels else len(labels)

    return replace(table, rows=tuple(sorted(table.rows, key=place)))


def _scalings(chosen: Profile, part: str, usable: list[str], plan: dict[str, Any]) -> Iterator[Scaling]:
    if "scaling" not in plan.get("tables", ()):
        return
    from nsprof.analyse import metrics
    from nsprof.errors import EvidenceError

    shapes = dict.fromkeys(c["shape"] for c in plan["cases"] if c["part"] == part and c["shape"] != "host")
    for shape in shapes:
        counts = {c["label"]: c["containers"] for c in plan["cases"] if c["part"] == part and c["shape"] == shape}
        kernels = dict.fromkeys(n.rpartition(":")[0] for n in usable)
        for kernel in kernels:
            names = {
                n: counts[n.rpartition(":")[2]]
                for n in usable
                if n.rpartition(":")[0] == kernel and n.rpartition(":")[2] in counts
            }
            title = " ".join(filter(None, (kernel, part, shape, "against the number of containers")))
            try:
                yield metrics.scaling(chosen, names, title=title)
            except EvidenceError as error:
                tell(error.message)


def _conditions(profile: Profile) -> list[ConditionRow]:
    from nsprof.analyse import metrics
    from nsprof.analyse.selection import scenario_names

    names = [n for n in scenario_names(profile) if profile_has(profile, n)]
    return metrics.conditions(profile, names, profile.meta.get("bench", {}).get("conditions", ()))


def _text(profile: Profile, shown: list[Shown], top: int, commit_text: bool) -> list[Part]:
    from nsprof.bench.run import only_part
    from nsprof.render import bench_tables, text
    from nsprof.render.tables import Heading, Lines

    plan = _plan(profile)
    tables = plan.get("tables", ("document", "delta"))
    parts: list[Part] = []
    said: set[str] = set()
    if plan.get("about"):
        parts.append(Lines((plan["about"],), "dim"))
    for each in shown:
        if "document" in tables:
            said.update(each.table.alarms)
            parts += [*bench_tables.document_parts(each.table), text.gap()]
        if "rates" in tables:
            chosen = only_part(profile, each.part)
            runs = {s: [chosen.runs[i] for i in chosen.runs_of(s)] for s in chosen.scenarios if chosen.runs_of(s)}
            parts += [*bench_tables.value_parts(f"{each.title}: what the workload told", runs), text.gap()]
        for scaling in each.scalings:
            parts += [*bench_tables.scaling_parts(scaling), text.gap()]
        if "lkp" in tables or commit_text:
            for table in each.metrics:
                parts += [*bench_tables.metric_parts(table), text.gap()]
        for delta in each.deltas if top else ():
            parts += [*text.diff_parts(delta, limit=top, said=said), text.gap()]
    parts += bench_tables.condition_parts(_conditions(profile))
    if commit_text:
        parts += [text.gap(), Heading("Where this was measured", 2), Lines(tuple(_about(profile)), bullet=True)]
        parts += [text.gap(), *bench_tables.raw_run_parts(profile.runs)]
    return parts


_KERNEL_FACTS = ("release", "version", "architecture", "build_id", "commit", "tainted")


def _about(profile: Profile) -> list[str]:
    """Kernels with build-id, what differs in their configurations, tool, seed, command: a line each."""
    meta = profile.meta
    hosts = meta.get("hosts") or {"": meta.get("host", {})}
    lines = []
    for host in hosts.values():
        kernel = host.get("kernel", {}) if isinstance(host, dict) else {}
        if isinstance(kernel, dict):
            lines.append(
                "kernel "
                + ", ".join(
                    f"{k} {v}" for k, v in kernel.items() if isinstance(v, (str, int)) and v and k != "cmdline"
                )
            )
    configs = [h.get("config", {}) for h in hosts.values() if isinstance(h, dict)]
    if len(configs) > 1:
        keys = sorted({k for c in configs for k in c})
        changed = [
            f"{k}={'/'.join(str(c.get(k, 'unset')) for c in configs)}"
            for k in keys
            if len({c.get(k) for c in configs}) > 1
        ]
        lines.append(f"configuration differs in: {', '.join(changed) or 'nothing that was looked at'}")
    bench = meta.get("bench", {})
    commands = [" ".join(c["command"]) for c in bench.get("plan", {}).get("cases", ())]
    commands = commands or [" ".join(bench.get("command", ()))]
    lines += [f"command {command}" for command in dict.fromkeys(filter(None, commands))]
    if "seed" in bench:
        lines.append(f"order drawn from seed {bench['seed']}")
    tool = meta.get("tool", {})
    lines.append(f"{tool.get('name', 'nsprof')} {tool.get('version', '')}, {meta.get('created', '')}")
    return [*lines, *map(str, meta.get("notes", ()))]
