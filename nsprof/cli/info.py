"""nsprof info: what is in a profile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from nsprof.cli.common import open_profile, output_options, write_csv, write_json, write_parts

if TYPE_CHECKING:
    from nsprof.model.profile import Profile

__all__ = ["command", "describe"]


def describe(profile: Profile) -> dict[str, Any]:
    """What a profile holds, as plain data: the content of `nsprof info --json`."""
    import numpy as np

    from nsprof.analyse.selection import scenario_names, usable_runs

    samples = profile.samples
    events = []
    for i, event in enumerate(profile.events):
        rows = samples.event == i
        events.append(
            {
                "name": event.name,
                "unit": event.unit,
                "kind": event.kind,
                "frequency_hz": event.frequency_hz,
                "samples": int(samples.count[rows].sum()),
                "rows": int(rows.sum()),
            }
        )
    counts = np.bincount(samples.run, weights=samples.count, minlength=len(profile.runs))
    runs = []
    for i, run in enumerate(profile.runs):
        runs.append(
            {
                "run": i,
                "scenario": run.scenario,
                "kernel": run.kernel,
                "label": run.label,
                "duration_s": run.duration_s,
                "samples": int(counts[i]),
                "lost_share": run.losses.lost_share,
                "losses": run.losses,
                "cpus": run.cpus,
                "cpu_busy_s": run.cpu_busy_s,
                "cpu_steal_s": run.cpu_steal_s,
                "denominators": run.denominators,
                "values": [v._asdict() for v in run.values],
                "command": run.command,
                "status": run.status,
                "probes_on": run.probes_on,
                "failed": run.failed,
                "warmup": run.warmup,
                "warnings": run.warnings,
            }
        )
    return {
        "meta": profile.meta,
        "scenarios": [{"name": n, "runs": len(usable_runs(profile, n))} for n in scenario_names(profile)],
        "events": events,
        "runs": runs,
        "probes": profile.probes,
        "namespaces": _namespaces(profile),
        "devices": [
            {"namespace": profile.namespace_label(d.namespace), "ifindex": d.ifindex, "name": d.name, "kind": d.kind}
            for d in profile.devices
        ],
        "stacks": len(profile.stacks),
        "frames": len(profile.frames),
        "counters": len(profile.counters),
        "ledger_lines": len(profile.ledger),
    }


def _namespaces(profile: Profile) -> list[dict[str, Any]]:
    """Every namespace with the runs in which something was recorded of it, and the devices that are known of it."""
    import numpy as np

    runs: list[set[int]] = [set() for _ in range(len(profile.namespaces) + 1)]
    devices: list[dict[str, None]] = [{} for _ in runs]
    samples = profile.samples
    for column in (samples.task_ns, samples.hop_ns):
        pairs = np.unique(column.astype("u8") << np.uint64(32) | samples.run)
        for pair in pairs.tolist():
            runs[pair >> 32].add(pair & 0xFFFFFFFF)
    for device in profile.devices:
        devices[device.namespace][device.name] = None
    for row in profile.counters:
        runs[row.namespace].add(row.run)
        if row.device:
            devices[row.namespace][row.device] = None
    for line in profile.ledger:
        runs[line.namespace].add(line.run)
    return [
        {
            "label": n.label,
            "inode": n.inode,
            "cookie": n.cookie,
            "role": n.role,
            "runs": sorted(runs[i]),
            "devices": list(devices[i]),
        }
        for i, n in enumerate(profile.namespaces, 1)
    ]


@click.command(short_help="What is in a profile.")
@click.argument("profile", required=False, type=click.Path())
@output_options
def command(profile: str | None, form: str | None) -> None:
    """Show what PROFILE (default: profile.nsprof) holds: scenarios, runs, events, losses, what was measurable."""
    from nsprof.render.info import info_parts

    described = describe(open_profile(profile))
    if form == "json":
        write_json("info", described)
    elif form == "csv":
        write_csv(described["runs"])
    else:
        write_parts(info_parts(described), form)
