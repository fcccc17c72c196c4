"""Warm-up: what of a run is not yet steady, found by a rule, and taken out of its figures.

A watcher reads the reference device's counters five times a second while traffic flows. MSER-5 decides on them:
observations are put together in batches of five (here: one second), and of all cuts the one is taken that makes the
standard error of what remains smallest (K. P. White, "An effective truncation heuristic for bias reduction in
simulation output", Simulation 69, 1997; K. Hoad, S. Robinson, R. Davies, "Automating warm-up length estimation",
J. Oper. Res. Soc. 61, 2010). A cut beyond the first half means that no steady state was seen: then nothing is cut and
the run says so. Noise has a smallest standard error somewhere as well, so seconds are cut only as far as their rate
is more than FAR standard deviations (and 1 %) away from the mean of the rest.

The cut part stays in the file as a run of its own, marked `warmup`, which no figure uses.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from nsprof.collect.system import cputime
from nsprof.collect.system.cputime import CpuTimes
from nsprof.model.profile import Profile, Run
from nsprof.netns import entered

__all__ = ["Cut", "RateWatch", "cut_of", "mser5", "take_out", "trim"]

OBSERVATION_S = 0.2
BATCH = 5
#: Fewer whole batches than these cannot tell a warm-up from noise.
LEAST_BATCHES = 6
FAR = 4.0
#: The CPU's times are read at each of the first so many seconds: a longer warm-up is no warm-up.
LONGEST_S = 10


@dataclass(slots=True)
class RateWatch:
    """Counts on one device, (seconds since the start, skbs, bytes), and CPU times at whole seconds."""

    netns_path: str
    device: str
    rows: list[tuple[float, int, int]] = field(default_factory=list)
    cpu: dict[int, CpuTimes] = field(default_factory=dict)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch within the block, from a thread of its own."""
        ended = threading.Event()
        with entered(self.netns_path):
            # What is opened here shows this namespace, whoever reads it later.
            fd = os.open("/proc/thread-self/net/dev", os.O_RDONLY | os.O_CLOEXEC)
        thread = threading.Thread(target=self._watch, args=(fd, ended), name="nsprof-rate", daemon=True)
        try:
            thread.start()
            yield
        finally:
            ended.set()
            thread.join()
            os.close(fd)

    def _watch(self, fd: int, ended: threading.Event) -> None:
        began, number = time.monotonic(), 0
        self.cpu[0] = cputime.read()
        while True:
            skbs, size = _read(fd, self.device)
            self.rows.append((time.monotonic() - began, skbs, size))
            number += 1
            if ended.wait(max(0.0, began + number * OBSERVATION_S - time.monotonic())):
                return
            if number % BATCH == 0 and number // BATCH <= LONGEST_S:
                self.cpu[number // BATCH] = cputime.read()


def _read(fd: int, device: str) -> tuple[int, int]:
    """(skbs, bytes) of a device in both directions; zeros when it is gone."""
    data = b""
    os.lseek(fd, 0, os.SEEK_SET)
    while part := os.read(fd, 65536):
        data += part
    for line in data.decode(errors="surrogateescape").split("\n"):
        name, colon, rest = line.partition(":")
        if colon and name.strip() == device:
            words = rest.split()
            return int(words[1]) + int(words[9]), int(words[0]) + int(words[8])
    return 0, 0


def mser5(rates: Sequence[float] | NDArray[np.float64]) -> int:
    """MSER-5: how many leading batches of five observations to leave out; -1 when the best cut is in the second half.

    Of n batches with means y, the cut d makes sum((y[d:] - mean(y[d:]))**2) / (n - d)**2 smallest.
    """
    number = len(rates) // BATCH
    batches = np.asarray(rates[: number * BATCH], "f8").reshape(number, BATCH).mean(axis=1)
    # The last few cuts have next to nothing left to vary and are left out (Hoad et al.: the last five).
    last = max(1, number - 5)
    scores = [float(((batches[d:] - batches[d:].mean()) ** 2).sum()) / (number - d) ** 2 for d in range(last)]
    best = int(np.argmin(scores))
    return -1 if best > number // 2 else best


@dataclass(frozen=True, slots=True)
class Cut:
    """`seconds` to leave out, and which shares of the run's skbs and bytes passed in them; `steady` is False when
    the rate never settled. `busy_s` is each CPU's busy time in them."""

    seconds: int = 0
    skbs: float = 0.0
    size: float = 0.0
    busy_s: Mapping[int, float] = field(default_factory=dict)
    steady: bool = True


def cut_of(watch: RateWatch) -> Cut:
    """What the rule says of a finished watch."""
    if len(watch.rows) < BATCH * LEAST_BATCHES + 1:
        return Cut()
    time_s, skbs, size = (np.array(column, "f8") for column in zip(*watch.rows, strict=True))
    spans = np.diff(time_s)
    rates = np.diff(skbs) / np.where(spans > 0, spans, np.inf)
    found = mser5(rates)
    if found < 0:
        return Cut(steady=False)
    number = len(rates) // BATCH
    batches = rates[: number * BATCH].reshape(number, BATCH).mean(axis=1)
    while found and not _differs(batches[found - 1], batches[found:]):
        found -= 1
    if not found or found > LONGEST_S or found not in watch.cpu or 0 not in watch.cpu:
        return Cut()
    at = found * BATCH
    whole_skbs, whole_size = skbs[-1] - skbs[0], size[-1] - size[0]
    if whole_skbs <= 0 or whole_size <= 0:
        return Cut()
    return Cut(
        found,
        float((skbs[at] - skbs[0]) / whole_skbs),
        float((size[at] - size[0]) / whole_size),
        cputime.busy_seconds(watch.cpu[0], watch.cpu[found]),
    )


def _differs(batch: float, rest: NDArray[np.float64]) -> bool:
    """Whether a second is unlike the rest: over FAR standard deviations and over 1 % away from its mean."""
    away = abs(batch - float(rest.mean()))
    return away > FAR * float(rest.std(ddof=1)) and away > 0.01 * abs(float(rest.mean()))


def trim(run: Run, cut: Cut, number: int) -> tuple[Run, Run | None]:
    """(the run without its warm-up, the warm-up as a run of its own or None where nothing is cut).

    Denominators are split as the traffic itself was: payload by the bytes, everything else by the skbs that passed
    the reference device. What the tool reported (its throughput) stays that of the whole run.
    """
    if not cut.steady:
        return replace(run, warnings=(*run.warnings, "no steady rate was reached within the run")), None
    if not cut.seconds or cut.seconds >= run.duration_s:
        return run, None
    head: dict[str, float] = {}
    for name, value in run.denominators.items():
        share = cut.size if name == "kb" else cut.skbs
        head[name] = float(cut.seconds) if name == "second" else value * share
    rest = {name: value - head[name] for name, value in run.denominators.items()}
    busy = {cpu: max(0.0, s - cut.busy_s.get(cpu, 0.0)) for cpu, s in run.cpu_busy_s.items()}
    text = f"the first {cut.seconds} s were warm-up and are left out (MSER-5)"
    kept = replace(
        run,
        duration_s=run.duration_s - cut.seconds,
        cpu_busy_s=busy,
        denominators=rest,
        warnings=(*run.warnings, text),
    )
    warm = replace(
        run,
        label=f"warm-up of run {number}",
        duration_s=float(cut.seconds),
        cpu_busy_s=dict(cut.busy_s),
        denominators=head,
        values=(),
        warnings=(),
        warmup=True,
    )
    return kept, warm


def take_out(profile: Profile, warm: Mapping[int, tuple[int, Run]]) -> Profile:
    """Give the samples of warm-ups to runs of their own: run number -> (seconds, the warm-up run)."""
    if not warm:
        return profile
    runs, column = list(profile.runs), profile.samples.run.copy()
    for number, (seconds, run) in warm.items():
        column[(profile.samples.run == number) & (profile.samples.slice < seconds)] = len(runs)
        runs.append(run)
    return profile.with_(runs=tuple(runs), samples=replace(profile.samples, run=column))
