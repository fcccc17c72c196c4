"""Values of the runs as pyperf reads them: one benchmark a scenario and value, one pyperf run a run.

Format: pyperf's JSON, version "1.0" (https://pyperf.readthedocs.io/en/latest/api.html).
"""

from __future__ import annotations

import json
from typing import IO, Any

from nsprof import __version__
from nsprof.errors import EvidenceError
from nsprof.model.profile import Profile, Run
from nsprof.store.exporters.select import rows_of

__all__ = ["write"]

_SECONDS = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "usec": 1e-6, "µs": 1e-6, "ns": 1e-9}
_BYTES = ("B", "bytes", "byte")


def write(profile: Profile, stream: IO[bytes], *, scenario: str | None = None) -> None:
    """All values of runs that are no warm-up and did not fail.

    pyperf knows seconds, bytes and plain numbers: times become seconds, other units stand in the benchmark's name.
    Values that are not above 0 cannot be held and are left out. Raises EvidenceError when nothing is left.
    """
    rows_of(profile, scenario)
    benchmarks: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for run in profile.runs:
        if run.warmup or run.failed or (scenario is not None and run.scenario != scenario):
            continue
        for value in run.values:
            number, unit, name = _converted(value.name, value.value, value.unit)
            if number > 0 and number != float("inf"):
                entry = {"values": [number], "metadata": _metadata(run, value.source)}
                benchmarks.setdefault((run.scenario, name, unit), []).append(entry)
    if not benchmarks:
        raise EvidenceError("no run of this profile has a value that pyperf could hold", "record with a workload")
    data = {
        "version": "1.0",
        "metadata": {"nsprof_version": __version__},
        "benchmarks": [
            {"metadata": {"name": f"{scene}: {name}", "unit": unit}, "runs": runs}
            for (scene, name, unit), runs in benchmarks.items()
        ],
    }
    stream.write(json.dumps(data, indent=1).encode() + b"\n")


def _converted(name: str, value: float, unit: str) -> tuple[float, str, str]:
    if unit in _SECONDS:
        return value * _SECONDS[unit], "second", name
    if unit in _BYTES:
        return value, "byte", name
    return value, "integer", f"{name} ({unit})" if unit else name


def _metadata(run: Run, source: str) -> dict[str, Any]:
    import datetime

    made: dict[str, Any] = {"kernel": run.kernel, "label": run.label, "source": source}
    if run.started:
        made["date"] = datetime.datetime.fromtimestamp(run.started, datetime.UTC).replace(tzinfo=None).isoformat(" ")
    if run.duration_s:
        made["duration"] = run.duration_s
    return {k: v for k, v in made.items() if v != ""}
