"""One recording of a known load, for the plain and the locked-down guest alike."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from nsprof.collect.sampling.sampler import Sampler, SamplerConfig, add_batch
from nsprof.collect.symbols.kernel import KernelSymbols
from nsprof.model.builder import ProfileBuilder
from nsprof.model.profile import Losses, Profile, Run
from tests.root.losses import assert_losses_are_explained

#: Reads zeros for ever: nearly all of its CPU time is in the kernel below vfs_read.
READER = "import os; f = os.open('/dev/zero', os.O_RDONLY)\nwhile True: os.read(f, 1 << 20)"


def record_reader(seconds: float, frequency_hz: int) -> tuple[Profile, int, float, Losses]:
    """A profile of a process that reads /dev/zero, its PID, its own CPU seconds within the window, and the losses.

    The counters behind the losses are checked on the way.
    """
    with subprocess.Popen([sys.executable, "-S", "-c", READER]) as reader:
        try:
            with Sampler(SamplerConfig(frequency_hz=frequency_hz)) as sampler:
                before = _cpu_s(reader.pid)
                sampler.start()
                time.sleep(seconds)
                sampler.stop()
                used_s = _cpu_s(reader.pid) - before
                batch = sampler.read()
            used_s = min(used_s, batch.windows[0].seconds)  # starting and stopping take time on a busy host
            assert_losses_are_explained(batch)
            builder = ProfileBuilder()
            builder.runs.append(Run(scenario="guest"))
            losses = add_batch(builder, batch, 0, symbols=KernelSymbols())
        finally:
            reader.kill()
    return builder.build(), reader.pid, used_s, losses


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def share_below(profile: Profile, pid: int, function: str) -> tuple[int, float]:
    """Kernel samples of a process, and the share of them whose stack has `function`."""
    rows = profile.samples
    names = profile.frames.name
    total = below = 0
    for task, stack, count in zip(rows.task, rows.stack, rows.count, strict=True):
        if profile.tasks[task].pid != pid:
            continue
        frames = [names[frame] for frame in profile.stacks[stack]]
        total += int(count)
        below += int(count) * (function in frames)
    return total, below / max(total, 1)


def check_reader(seconds: float, frequency_hz: int) -> None:
    """The reader is found below vfs_read, with no tick more than its CPU time has, and the missing ones are told.

    TCG's timer ticks come late, and several as one, so some are missing, on a busy host many: every one of them that
    the reader's CPU time says was due must be among the losses. (Slack: its CPU time is known to 10 ms at both ends,
    and a tick hits the reader or its neighbours by chance.)
    """
    profile, pid, used_s, losses = record_reader(seconds, frequency_hz)
    samples, share = share_below(profile, pid, "vfs_read")
    print(f"{samples} samples in {used_s:.2f} s of CPU, {share:.1%} below vfs_read; {losses}")
    assert used_s > 0.5
    assert share > 0.9
    assert 50 < samples < 1.1 * used_s * frequency_hz
    assert losses.seen == sum(int(count) for count in profile.samples.count)
    missing = used_s * frequency_hz - samples
    assert losses.expected - losses.seen >= missing - 0.05 * used_s * frequency_hz - 10, f"{missing:.0f} not told"
