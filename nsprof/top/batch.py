"""`nsprof top -b`: one interval after another as text or as JSON lines, for scripts."""

from __future__ import annotations

import json
import math
import shutil
import sys
import time
from dataclasses import replace
from typing import Any

from nsprof.render.top import plain_text
from nsprof.top import TopOptions
from nsprof.top.table import State, cells_of, row_dict, view_of
from nsprof.top.watch import Snapshot, Watch, watching

__all__ = ["run_batch"]


def run_batch(options: TopOptions) -> int:
    """Print `options.count` intervals (0: until interrupted). Returns the exit status."""
    state = State.of(options)
    with watching(frequency_hz=options.frequency_hz, hop=options.hop, keep_s=options.keep_s) as watch:
        if not options.quiet:
            for note in watch.notes:
                print(f"nsprof: {note}", file=sys.stderr)
        watch.begin()
        due = time.monotonic()
        number = 0
        while not options.count or number < options.count:
            due += options.interval_s
            time.sleep(max(0.0, due - time.monotonic()))
            snapshot = watch.tick()
            number += 1
            _write(snapshot, watch, state, options, first=number == 1)
    return 0


def _write(snapshot: Snapshot, watch: Watch, state: State, options: TopOptions, *, first: bool) -> None:
    view = view_of(snapshot, watch.devices, state, hop=watch.hop, notes=())
    if options.limit:
        view = replace(view, rows=view.rows[: options.limit])
    if options.as_json:
        cells = cells_of(snapshot, state.by)
        content = {
            "nsprof": "top",
            "version": 1,
            "interval": snapshot.number,
            "time": snapshot.wall,
            "seconds": snapshot.seconds,
            "seconds_uncertain": snapshot.uncertain_s,
            "hop_context": watch.hop,
            "busy_s": {str(cpu): s for cpu, s in snapshot.busy_s.items()},
            "samples": snapshot.samples,
            "lost_share": snapshot.losses.lost_share,
            "own_cpu_s": snapshot.own_s,
            "namespaces": len(watch.devices.paths),
            "notes": list(watch.notes),
            "rows": [row_dict(row, cells.get(row.key), snapshot.seconds) for row in view.rows],
        }
        sys.stdout.write(json.dumps(_finite(content), ensure_ascii=True, allow_nan=False) + "\n")
    else:
        sys.stdout.write(
            ("" if first else "\n") + plain_text(view, max(60, shutil.get_terminal_size((110, 24)).columns))
        )
    sys.stdout.flush()


def _finite(value: Any) -> Any:
    """nan as null: JSON has none."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
