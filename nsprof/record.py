"""`nsprof record`: observe while a command runs, or watch what already runs."""

from __future__ import annotations

import math
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsprof import files, netns, workload
from nsprof.collect.ledger.counting import BUDGET_SHARE, Ledger
from nsprof.collect.sampling.sampler import SamplerConfig
from nsprof.collect.system import host, names
from nsprof.errors import CommandNotFound, EvidenceError, NsprofError, PreflightError, TopologyError, UsageError
from nsprof.escape import own_name, safe, shell_word
from nsprof.model.builder import ProfileBuilder
from nsprof.model.profile import Namespace, Profile, Run
from nsprof.observe import Observer, Scene, Traffic
from nsprof.sources import LedgerSource
from nsprof.units import counted

__all__ = ["RecordOptions", "record"]

_OWN = "/proc/self/ns/net"
#: Above this share of lost samples a report is red and --strict fails.
_LOST = 0.01


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """What the command line of `nsprof record` says."""

    command: tuple[str, ...] = ()
    output: str = "profile.nsprof"
    frequency_hz: int = 499
    events: tuple[str, ...] = ("cpu-clock",)
    user_stacks: bool = False
    inside: str | None = None
    watched: tuple[str, ...] = ()
    duration_s: float | None = None
    reference: str | None = None
    runs: int = 1
    scenario: str = ""
    timeout_s: float = 0.0
    hop: bool = False
    count: bool = False
    probe_budget: float = BUDGET_SHARE * 100
    functions: tuple[str, ...] = ()
    debug: bool = False
    strict: bool = False
    quiet: bool = False


def record(options: RecordOptions, tell: Callable[[dict[str, Any]], None] | None = None) -> int:
    """Record, save, and say what to do next; returns the status to end with (the command's own).

    `tell` hears what was recorded, as plain data (docs/json.md, "record"); then nothing else is said.

    Raises UsageError for words that cannot go together, PreflightError when this machine cannot record,
    CommandNotFound, TopologyError; then no earlier profile is touched.
    """
    _check(options)
    if "" in (options.inside, *options.watched):
        raise UsageError("an empty word is no namespace", "nsprof record --in NAME -- COMMAND; ip netns lists names")
    inside = netns.resolve(options.inside) if options.inside else None
    watched = [netns.resolve(word) for word in options.watched]
    if options.output == "-":
        raise UsageError("a profile is not written to a terminal stream while a command owns stdout", "-o FILE")
    files.check_target(options.output)
    _check_command(options.command)
    if os.geteuid() != 0:
        raise PreflightError("recording samples the whole system, which needs root", "sudo nsprof record ...")
    builder = ProfileBuilder()
    voice = _Voice(silent=options.quiet or tell is not None)
    status = 0
    config = SamplerConfig(
        events=options.events,
        frequency_hz=options.frequency_hz,
        user_stacks=options.user_stacks,
        hop=options.hop,
    )
    with Observer(config) as observer:
        if observer.fallback:
            builder.meta["notes"] = [observer.fallback]
            voice.say(observer.fallback)
        for number in range(options.runs):
            scene = _scene(options, inside, watched)
            work = _command(options, inside) if options.command else _wait(options.duration_s)
            run = observer.window(builder, scene, work)
            status = run.status
            _say_run(voice, run, number + 1, options.runs, options.reference)
            if status > 128:  # ended by a signal: the user wants to stop
                break
    if options.count and status <= 128:
        try:
            status = _count(options, config, builder, inside, watched, voice) or status
        except NsprofError as error:
            if options.strict:
                raise
            # What was sampled is worth keeping without the counts.
            builder.meta.setdefault("notes", []).append(f"nothing was counted: {error.message}")
            voice.warn(f"nothing was counted: {error.message}")
    profile = _finish(builder, options, inside, watched)
    from nsprof import store

    store.save(profile, options.output, keep_old=True, measured=True)
    following = _next(profile, options)
    voice.say(f"wrote {options.output}; next: {following[0]}, or {following[1]}")
    if tell is not None:
        tell(_summary(profile, options, status, voice, following))
    if options.strict:
        _strict(profile)
    return max(status, 0)


def _count(
    options: RecordOptions,
    config: SamplerConfig,
    builder: ProfileBuilder,
    inside: str | None,
    watched: list[str],
    voice: _Voice,
) -> int:
    """The counting pass: the same work once more with the ledger's probes instead of the sampler."""
    ledger = Ledger(budget_share=options.probe_budget / 100, functions=options.functions, say=voice.say)
    with Observer(config, lambda _: LedgerSource(ledger)) as observer:
        work = _command(options, inside) if options.command else _wait(options.duration_s)
        run = observer.window(builder, _scene(options, inside, watched), work)
    builder.meta["ledger"] = {"attach_s": ledger.attach_s, "budget_share": ledger.budget_share, "shed": ledger.shed}
    share = 100 * run.own_cpu_s / max(run.duration_s * run.cpus, 1e-9)
    voice.say(
        f"counting pass: {run.duration_s:.1f} s, probes cost {share:.2f} % of the CPUs; next: {own_name()} ledger"
    )
    for warning in run.warnings:
        voice.warn(warning)
    for probe in builder.probes:
        if probe.state == "refused" and probe.name in options.functions:
            voice.warn(f"{probe.name} is not counted: {probe.reason}")
    for refused in ledger.refusals if options.debug else ():
        voice.say(refused)
    return run.status


def _check(options: RecordOptions) -> None:
    if options.watched and (options.command or options.inside):
        what = "a command" if options.command else "--in"
        raise UsageError(
            f"--watch and {what} exclude each other", "--watch profiles what already runs, without a command"
        )
    if not options.command and not options.watched and options.duration_s is None:
        raise UsageError(
            "nothing to record: no command and no --watch or --duration",
            "nsprof record -- netperf -H 10.0.0.7 -l 10, or nsprof record --watch NETNS --duration 30",
        )
    if options.command and not options.command[0]:
        raise UsageError(
            "the command is an empty word", "write it after --, e.g. nsprof record -- ping -c 3 10.0.0.7"
        )
    if options.count and not options.command and options.duration_s is None:
        raise UsageError("--count watches twice, so the first watch needs an end", "add --duration SECONDS")
    if options.functions and not options.count:
        raise UsageError("--probe names functions for the counting pass, which was not asked for", "add --count")
    if options.command and options.duration_s is not None:
        raise UsageError("--duration is for watching; a command has its own length", "bound it with --timeout")


def _check_command(command: tuple[str, ...]) -> None:
    """A mistyped command is found out before the probes are loaded."""
    if command and "/" not in command[0] and shutil.which(command[0], os.F_OK) is None:
        raise CommandNotFound(f"{command[0]}: command not found")


def _scene(options: RecordOptions, inside: str | None, watched: list[str]) -> Scene:
    """All namespaces that can be found, those of interest first, each once, under the best name there is."""
    ours = [inside] if inside else watched or [_OWN]
    places = {netns.inode(path): path for path in ours}
    for inode, path in {netns.inode(_OWN): _OWN, **names.paths_of()}.items():
        places.setdefault(inode, path)
    labels = names.names_of(places)
    return Scene(
        scenario=options.scenario or (Path(options.command[0]).name if options.command else "watch"),
        namespaces={
            path: Namespace(
                i, _cookie(path), name=labels.get(i, ""), role="watched" if path in ours and path != _OWN else ""
            )
            for i, path in places.items()
        },
        ends=tuple(dict.fromkeys(ours)),
        reference=("", options.reference) if options.reference else None,
        kernel=platform.release(),
    )


def _cookie(path: str) -> int:
    try:
        return netns.cookie(path)
    except TopologyError:  # it vanished since it was listed: its samples, if any, keep the inode
        return 0


def _command(options: RecordOptions, inside: str | None) -> Callable[[], Traffic]:
    def work() -> Traffic:
        outcome = workload.run_plain(options.command, netns=inside, timeout_s=options.timeout_s)
        tool = workload.recognise(options.command)
        return Traffic(
            command=outcome.argv,
            status=outcome.status,
            values=outcome.values,
            warnings=(*outcome.warnings, *outcome.errors),
            denominators=workload.denominators(tool, outcome.argv, outcome.values),
        )

    return work


def _wait(duration_s: float | None) -> Callable[[], Traffic]:
    def work() -> Traffic:
        try:
            time.sleep(duration_s if duration_s is not None else 365 * 86_400)
        except KeyboardInterrupt:
            return Traffic(warnings=("ended by Ctrl-C",) if duration_s is not None else ())
        return Traffic()

    return work


def _finish(builder: ProfileBuilder, options: RecordOptions, inside: str | None, watched: list[str]) -> Profile:
    from nsprof import __version__

    paths = [inside] if inside else watched or [_OWN]
    places = dict(zip(options.watched or (options.inside or "own",), paths, strict=True))
    builder.meta.update(
        tool={"name": "nsprof", "version": __version__},
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        host=host.snapshot(places),
        record={"command": list(options.command), "in": options.inside, "watch": list(options.watched)},
    )
    return builder.build()


class _Voice:
    """What nsprof itself says while recording, on stderr: a warning that several runs have in common is said once."""

    def __init__(self, *, silent: bool) -> None:
        self._silent = silent
        self.warnings: list[str] = []

    def say(self, text: str) -> None:
        if not self._silent:
            print(f"nsprof: {safe(text)}", file=sys.stderr, flush=True)

    def warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)
            self.say(f"warning: {text}")


def _say_run(voice: _Voice, run: Run, number: int, total: int, wanted: str | None) -> None:
    which = f"run {number} of {total}: " if total > 1 else ""
    lost = run.losses.lost_share
    parts = [
        f"{run.losses.seen:,} samples in {run.duration_s:.1f} s",
        "loss unknown" if math.isnan(lost) else f"{lost * 100:.1f} % lost",
        f"own cost {100 * run.own_cpu_s / max(run.duration_s * run.cpus, 1e-9):.2f} % of the CPUs"
        if run.own_cpu_s
        else "own cost unknown",
    ]
    if run.denominators:
        # Only packets are counted at a device; the rest is the workload's own count.
        own = [_units(value, name) for name, value in run.denominators.items() if name not in ("skb", "segment")]
        seen = [_units(value, name) for name, value in run.denominators.items() if name in ("skb", "segment")]
        place = f" ({run.reference})" if run.reference and seen else ""
        parts.append(", ".join((*own, *seen)) + place)
    voice.say(which + "; ".join(parts))
    for warning in run.warnings:
        voice.warn(warning)
    if wanted and not run.reference:
        voice.warn(f"--per {wanted}: no packets were seen on a device of that name, so there is no cost per packet")


def _units(value: float, name: str) -> str:
    return f"{value:,.0f} KB" if name == "kb" else counted(round(value), name)


def _next(profile: Profile, options: RecordOptions) -> list[str]:
    """Commands that show what was recorded, the likeliest first."""
    shown = "" if options.output == "profile.nsprof" else f" {shell_word(options.output)}"
    verbs = ["report", "flamegraph", *(["ledger"] if profile.ledger else [])]
    return [f"{own_name()} {verb}{shown}" for verb in verbs]


def _summary(
    profile: Profile, options: RecordOptions, status: int, voice: _Voice, following: list[str]
) -> dict[str, Any]:
    runs = [
        {
            "scenario": run.scenario,
            "duration_s": run.duration_s,
            "samples": run.losses.seen,
            "lost_share": run.losses.lost_share,
            "own_cpu_s": run.own_cpu_s,
            "denominators": run.denominators,
            "reference": run.reference,
            "values": [value._asdict() for value in run.values],
            "probes_on": run.probes_on,
            "command": run.command,
            "status": run.status,
            "warnings": run.warnings,
        }
        for run in profile.runs
    ]
    expected = sum(run.losses.expected for run in profile.runs if run.losses.expected > 0)
    seen = sum(run.losses.seen for run in profile.runs if run.losses.expected > 0)
    return {
        "file": options.output,
        "status": status,
        "samples": sum(run.losses.seen for run in profile.runs),
        "lost_share": max(0.0, (expected - seen) / expected) if expected else math.nan,
        "runs": runs,
        "warnings": voice.warnings,
        "notes": profile.meta.get("notes", []),
        "next": following,
    }


def _strict(profile: Profile) -> None:
    worst = max((run.losses.lost_share for run in profile.runs), default=0.0)
    if worst > _LOST:
        raise EvidenceError(
            f"{worst * 100:.1f} % of the samples due were lost (--strict allows 1 %)",
            "lower -F, or see 'nsprof info' for where they went",
            exit_code=125,
        )
