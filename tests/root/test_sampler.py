"""The sampler on this kernel: known loads, known answers."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from nsprof.collect.bpf import loader
from nsprof.collect.bpf import syscalls as loader_syscall
from nsprof.collect.sampling.batch import losses, lost_share_by_cpu
from nsprof.collect.sampling.maps import CONTROL, SAMPLE_KEY, SAMPLE_VALUE, STACK, TALLY
from nsprof.collect.sampling.sampler import RawBatch, Sampler, SamplerConfig, add_batch
from nsprof.collect.symbols.kernel import KernelSymbols
from nsprof.collect.system import cputime
from nsprof.errors import PreflightError, ProbeError, UsageError
from nsprof.model.builder import ProfileBuilder
from nsprof.model.profile import Context, Lateness, Profile, Run
from tests.root.losses import assert_losses_are_explained

pytestmark = [pytest.mark.root, pytest.mark.bpf]

SPIN = "while True: pass"


@contextmanager
def child(program: str, *, cpu: int = 0) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        ["taskset", "-c", str(cpu), sys.executable, "-S", "-c", program],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def cpu_ns(pid: int) -> int:
    """On-CPU time of a process by the scheduler's own account."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def sample(sampler: Sampler, seconds: float) -> RawBatch:
    sampler.start()
    time.sleep(seconds)
    sampler.stop()
    return sampler.read()


def due(batch: RawBatch, cpu: int) -> float:
    """Ticks due on a CPU, by perf's own count of the event."""
    return sum(float(w.counts[0][cpu]) for w in batch.windows) / batch.periods_ns[0]


def count(batch: RawBatch, cpu: int) -> int:
    return int(batch.values["count"][batch.keys["cpu"] == cpu].sum())


def missed(batch: RawBatch, cpu: int) -> int:
    """Ticks that the timer skipped, told by its due times: on a shared machine the virtual CPU itself may stand."""
    return sum(int(w.tallies["missed"][0][cpu]) for w in batch.windows)


def profile_of(batch: RawBatch) -> Profile:
    builder = ProfileBuilder()
    builder.runs.append(Run("test"))
    add_batch(builder, batch, 0, symbols=KernelSymbols())
    return builder.build()


@pytest.fixture(scope="module")
def at_499() -> Iterator[Sampler]:
    with Sampler(SamplerConfig()) as sampler:
        yield sampler


@pytest.fixture(scope="module")
def two_events() -> Iterator[Sampler]:
    with Sampler(SamplerConfig(events=("cpu-clock", "page-faults"))) as sampler:
        yield sampler


def test_a_busy_cpu_gives_frequency_times_seconds_and_its_weight_is_the_busy_time(at_499: Sampler) -> None:
    cpus = loader.online_cpus()
    spins = [child(SPIN, cpu=cpu) for cpu in cpus]
    with spins[0] as first:
        others = [each.__enter__() for each in spins[1:]]
        try:
            time.sleep(0.3)
            before = cpu_ns(first.pid)
            batch = sample(at_499, 2.0)
            used_s = (cpu_ns(first.pid) - before) / 1e9
        finally:
            for each in spins[1:]:
                each.__exit__(None, None, None)
    assert others is not None
    window = batch.windows[0]
    for cpu in cpus:
        # The kernel's own count of the event on one side, what the program saw and missed on the other.
        assert abs(count(batch, cpu) + missed(batch, cpu) - due(batch, cpu)) <= 3 + 0.01 * due(batch, cpu)
        busy_s = window.seconds - missed(batch, cpu) * batch.periods_ns[0] / 1e9
        assert float(batch.values["weight"][batch.keys["cpu"] == cpu].sum()) / 1e9 == pytest.approx(busy_s, rel=0.02)
    mine = batch.keys["tgid"] == first.pid
    sampled_s = batch.values["weight"][mine].sum() / 1e9
    # A share of a CPU is sampled: three standard deviations of n ticks of which a share p hits.
    share = used_s / window.seconds
    slack = 3 * (window.seconds / 499 * share * (1 - share)) ** 0.5 + 0.02
    assert abs(sampled_s - used_s) < slack
    assert_losses_are_explained(batch)
    found = losses(batch)
    assert found.map_full == found.stack_collisions == found.no_stack == 0
    slack = 3 * len(cpus) + 0.01 * found.expected
    assert found.expected - found.seen == pytest.approx(sum(missed(batch, cpu) for cpu in cpus), abs=slack)


def test_the_spinning_task_is_user_mode_in_this_namespace(at_499: Sampler) -> None:
    with child(SPIN) as process:
        profile = profile_of(sample(at_499, 0.6))
    rows = [i for i, t in enumerate(profile.samples.task) if profile.tasks[int(t)].tgid == process.pid]
    weight = dict.fromkeys(Context, 0.0)
    for i in rows:
        weight[Context(profile.samples.context[i])] += profile.samples.weight[i]
    assert weight[Context.USER] > 0.9 * sum(weight.values()) > 0
    inodes = {profile.namespaces[int(profile.samples.task_ns[i]) - 1].inode for i in rows}
    assert inodes == {Path("/proc/self/ns/net").stat().st_ino}
    assert all(n.cookie > 0 for n in profile.namespaces), "Linux 5.14+ has namespace cookies"


@pytest.mark.parametrize("hz", [99, 499, 997])
def test_the_frequency_does_not_change_the_weight(hz: int) -> None:
    with Sampler(SamplerConfig(frequency_hz=hz)) as sampler, child(SPIN):
        time.sleep(0.2)
        batch = sample(sampler, 1.5)
    seconds = batch.windows[0].seconds
    skipped = missed(batch, 0)
    weight_s = float(batch.values["weight"][batch.keys["cpu"] == 0].sum()) / 1e9
    assert weight_s + skipped / hz == pytest.approx(seconds, rel=0.02)
    # A virtual CPU that stands still when the window ends leaves ticks that no later one tells of.
    assert count(batch, 0) + skipped == pytest.approx(hz * seconds, abs=3 + 0.02 * hz * seconds)
    assert skipped < 0.3 * hz * seconds


FAULTS = """
import mmap, sys, time
print("ready", flush=True)
sys.stdin.buffer.read(1)
n = 50021
m = mmap.mmap(-1, n * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
m.madvise(mmap.MADV_NOHUGEPAGE)
for i in range(n):
    m[i * 4096] = 1
    if i % 100 == 0: time.sleep(0.002)  # a rate to which the period can settle
print("done", flush=True)
sys.stdin.buffer.read(1)
"""


def test_two_events_are_never_mixed(two_events: Sampler) -> None:
    with child(FAULTS) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        two_events.start()
        process.stdin.write(b"x")
        process.stdin.flush()
        assert process.stdout.readline() == b"done\n"
        two_events.stop()
        batch = two_events.read()
        profile = profile_of(batch)
    s = profile.samples
    assert [(e.name, e.unit) for e in profile.events] == [("cpu-clock", "ns"), ("page-faults", "count")]
    mine = np.array([profile.tasks[int(t)].tgid == process.pid for t in s.task])
    faults = s.weight[mine & (s.event == 1)].sum()
    # One sample stands for a period of faults, and the period is adapted to what the whole machine does: by chance a
    # few periods more or less (four standard deviations).
    rows = mine & (s.event == 1)
    period = float((s.weight[rows] / s.count[rows]).max())
    assert abs(faults - 50_021) < 0.05 * 50_021 + 4 * (50_021 * period) ** 0.5, f"period up to {period}"
    counted = float(batch.windows[0].counts[1].sum())  # by perf, of all processes
    assert float(s.weight[s.event == 1].sum()) == pytest.approx(counted, rel=0.3, abs=5 * period)
    clock = s.weight[s.event == 0]
    assert np.all(clock % profile.events[0].period == 0)
    assert all(Lateness(x) == Lateness.ON_TIME for x in s.lateness[s.event == 1])


def test_full_tables_lose_samples_and_every_lost_one_is_counted() -> None:
    # Room for four samples where six tasks run in two slices (twelve at the least), for two kernel stacks where one
    # system call after another makes dozens: both are too small however few of them a quiet machine happens to show.
    config = SamplerConfig(frequency_hz=1999, samples_max=4, stacks_max=2)
    with Sampler(config) as sampler, ExitStack() as tasks:
        for cpu in (0, 0, 0, 1, 1, 1):
            tasks.enter_context(child("import os\nwhile True: os.stat('/'), os.listdir('/proc/self')", cpu=cpu))
        batch = sample(sampler, 1.5)
    found = losses(batch)
    stored = int(batch.values["count"].sum())
    on_cpu0 = int(batch.windows[0].tallies["hits"][0][0])
    assert abs(due(batch, 0) - on_cpu0 - missed(batch, 0)) <= 3 + 0.01 * due(batch, 0)
    assert found.seen == stored and found.map_full > 0
    assert_losses_are_explained(batch)
    assert found.stack_collisions > 0, "more distinct stacks than the table holds"


ECHO = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("127.0.0.1", 0))
print(s.getsockname()[1], flush=True)
while True:
    data, sender = s.recvfrom(64)
    s.sendto(data, sender)
"""
PING = """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(("127.0.0.1", {port}))
while True:
    s.send(b"x")
    s.recv(64)
"""


def test_samples_add_up_to_the_busy_time_of_cpus_that_sleep_between_packets() -> None:
    """Two CPUs that wait for each other: many ticks are due while a CPU sleeps and land in what wakes it."""
    hz = 1999
    with Sampler(SamplerConfig(frequency_hz=hz)) as sampler, child(ECHO, cpu=1) as echo:
        assert echo.stdout is not None
        with child(PING.format(port=int(echo.stdout.readline())), cpu=0):
            before = cputime.read()
            batch = sample(sampler, 3.0)
            after = cputime.read()
    busy = cputime.busy_seconds(before, after)
    profile = profile_of(batch)
    idle = profile.samples.context == Context.IDLE
    judged = 0
    for cpu, share in lost_share_by_cpu(batch, busy_s=busy).items():
        here = profile.samples.cpu == cpu
        landed = int(profile.samples.count[here].sum())
        ticks = int(profile.samples.count[here & ~idle].sum())
        due = hz * batch.windows[0].seconds
        if share > 0.01 or landed < 0.97 * due:
            continue  # ticks are missing there, so that nothing adds up; losses are another test's
        judged += 1
        # Ticks that are due in busy time are a sample of it: five standard deviations, and a fortieth for the window.
        # Some due just before a sleep may be delivered in it, and count as idle (docs/method.md): a tenth at most.
        chance = 5 * (ticks * (1 - min(1.0, ticks / due))) ** 0.5 + 0.025 * due
        should = busy[cpu] * hz
        assert 0.9 * should - chance <= ticks <= should + chance, (cpu, ticks, should, landed)
    if not judged:
        pytest.skip("no CPU here is given all of its ticks while it sleeps between packets")


def test_polling_while_it_runs_loses_nothing() -> None:
    with Sampler(SamplerConfig(frequency_hz=997)) as sampler, child("import os\nwhile True: os.stat('/')"):
        sampler.start()
        for _ in range(20):
            time.sleep(0.07)
            sampler.poll()
        sampler.stop()
        batch = sampler.read()
    assert int(batch.values["count"].sum()) == batch.hits()
    known = set(batch.stacks)
    assert set(batch.keys["kernel_stack"].tolist()) - {0} <= known


def test_slices_are_seconds_since_the_start(at_499: Sampler) -> None:
    with child(SPIN):
        batch = sample(at_499, 2.6)
    rows = batch.keys["cpu"] == 0
    counts = [int(batch.values["count"][rows & (batch.keys["slice"] == s)].sum()) for s in range(5)]
    seconds = batch.windows[0].seconds
    skipped = missed(batch, 0)
    for number, counted in enumerate(counts):
        length = min(max(seconds - number, 0.0), 1.0)
        assert 499 * length - skipped - 3 <= counted <= 499 * length + 3
    assert sum(counts) == count(batch, 0)


def test_a_comm_of_odd_bytes_is_kept(at_499: Sampler) -> None:
    program = "import ctypes\nctypes.CDLL(None).prctl(15, bytes([255]) + b'<script>\"\\n')\nwhile True: pass"
    with child(program) as process:
        time.sleep(0.3)
        profile = profile_of(sample(at_499, 0.4))
    assert '\\xff<script>"\n' in {t.comm for t in profile.tasks if t.tgid == process.pid}


SPIN_IRQS_OFF = r"""
int spin(struct bpf_perf_event_data *ctx)
{
	u64 end = bpf_ktime_get_ns() + SPIN_NS;

	for (int i = 0; i < 8000; i++)
		if (bpf_ktime_get_ns() > end)
			break;
	return 0;
}
"""


def test_ticks_that_fall_into_an_interrupts_off_section_are_skid(
    at_499: Sampler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timer interrupt that spins 150 us, 997 times a second: 15 % of the ticks are held back."""
    (tmp_path / "spin.c").write_text(SPIN_IRQS_OFF)
    (tmp_path / "include").mkdir()
    monkeypatch.setattr(loader, "probes_dir", lambda: tmp_path)
    program = loader.compile_program("spin", {"SPIN_NS": 150_000})
    monkeypatch.undo()
    fd = loader_syscall.perf_event_open(1, 0, 0, period=10**9 // 997)
    try:
        loader_syscall.perf_ioctl(fd, "set_bpf", program.load("spin", loader.PERF_EVENT))
        with child(SPIN):
            before = skid_share(profile_of(sample(at_499, 1.5)))
            loader_syscall.perf_ioctl(fd, "enable")
            during = skid_share(profile_of(sample(at_499, 3.0)))
            loader_syscall.perf_ioctl(fd, "disable")
    finally:
        os.close(fd)
        program.close()
    expected = 997 * 140e-6  # held back by more than the threshold of 10 us
    assert before < 0.15  # what a hypervisor delivers late is skid, too
    assert during - before == pytest.approx(expected, abs=0.05)


def skid_share(profile: Profile) -> float:
    s = profile.samples
    on_cpu = s.cpu == 0
    busy = on_cpu & (s.context != Context.IDLE) & (s.context != Context.SCHED)
    late = busy & (s.lateness == Lateness.SKID)
    return float(s.weight[late].sum() / s.weight[busy].sum())


def test_the_structs_are_as_the_program_has_them(at_499: Sampler) -> None:
    state = at_499._loaded()
    for name, key, value in (
        ("samples", SAMPLE_KEY, SAMPLE_VALUE),
        ("stacks", np.dtype("u8"), STACK),
        ("tallies", np.dtype("u4"), TALLY),
        ("control", np.dtype("u4"), CONTROL),
    ):
        assert state.program.map(name, key, value, 1).key.itemsize == key.itemsize  # refused where they differ
        other = np.dtype([("a", value), ("b", "u8")])
        with pytest.raises(ProbeError, match=f"sampler:{name}: the program has keys of"):
            state.program.map(name, key, other, 1)


def map_sizes(fd: int) -> tuple[int, int]:
    """Key and value size as the kernel knows them (struct bpf_map_info)."""
    import ctypes

    info = ctypes.create_string_buffer(88)
    loader_syscall.bpf(15, struct.pack("<IIQ", fd, len(info), ctypes.addressof(info)))
    key, value = struct.unpack_from("<II", info, 8)
    return key, value


def test_starting_and_stopping_again_begins_anew(at_499: Sampler) -> None:
    with child(SPIN):
        first = sample(at_499, 0.3)
        second = sample(at_499, 0.3)
    assert first.windows[0].end_ns < second.windows[0].start_ns
    for each in (first, second):
        assert count(each, 0) + missed(each, 0) == pytest.approx(due(each, 0), abs=6)
    assert at_499.read().windows == ()


def test_calibration_gives_a_plausible_cost_and_leaves_no_samples(at_499: Sampler) -> None:
    cost = at_499.calibrate(0.3)
    assert 500 < cost < 100_000  # an interrupt and a stack walk take more than 0.5 us and less than 0.1 ms
    assert len(at_499.read()) == 0


@pytest.mark.parametrize(
    "config",
    [
        SamplerConfig(events=("cpu-clok",)),
        SamplerConfig(frequency_hz=0),
        SamplerConfig(frequency_hz=1_000_000),
        SamplerConfig(events=()),
        SamplerConfig(events=("cpu-clock", "cpu-clock")),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(config: SamplerConfig) -> None:
    with pytest.raises(UsageError):
        Sampler(config)


def test_an_event_that_this_machine_lacks_is_named() -> None:
    try:
        os.close(loader_syscall.perf_event_open(0, 0, 0, frequency_hz=99))
    except OSError:
        with pytest.raises(PreflightError, match="cycles"), Sampler(SamplerConfig(events=("cycles",))):
            pass
    else:
        pytest.skip("this machine counts cycles")


def test_a_refusal_by_the_verifier_is_one_sentence_with_its_words_as_details(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "bad.c").write_text("int bad(struct bpf_perf_event_data *ctx) { return *(int *)0x10; }")
    (tmp_path / "worse.c").write_text("int worse(void *ctx) { return nonsense; }")
    monkeypatch.setattr(loader, "probes_dir", lambda: tmp_path)
    with pytest.raises(ProbeError, match="nonsense"):
        loader.compile_program("worse")
    program = loader.compile_program("bad")
    try:
        with pytest.raises(ProbeError) as caught:
            program.load("bad", loader.PERF_EVENT)
    finally:
        program.close()
    assert "\n" not in caught.value.message and "invalid mem access" in caught.value.message
    assert caught.value.details
    assert capfd.readouterr().err == ""


CHILD = """
import sys, time
from nsprof.collect.sampling.sampler import Sampler, SamplerConfig
from nsprof.collect.bpf import syscalls as loader_syscall
import struct
with Sampler(SamplerConfig(hop=True)) as s:
    s.start()
    fds = list(s._state.functions) + [fd for each in s._state.hop._loaded for fd in each.fds]
    print(*(loader_syscall.program_id(fd) for fd in fds), flush=True)
    time.sleep(60)
"""


def test_nothing_stays_attached_after_sigkill() -> None:
    with subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            ids = [int(word) for word in process.stdout.readline().split()]
            assert len(ids) == 4 and all(exists(each) for each in ids)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    deadline = time.monotonic() + 10
    while any(exists(each) for each in ids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(exists(each) for each in ids)


def exists(program_id: int) -> bool:
    try:
        fd, _ = loader_syscall.bpf(13, struct.pack("<III", program_id, 0, 0))
    except OSError:
        return False
    os.close(fd)
    return True


def test_the_same_functions_are_hot_as_in_perf(at_499: Sampler, tmp_path: Path) -> None:
    from tests.support import need

    need("perf")
    program = "import os\nwhile True: os.stat('/usr/lib/python3')"
    with child(program) as process:
        command = ["perf", "record", "-q", "-a", "-g", "-F", "499", "-e", "cpu-clock", "-o", str(tmp_path / "p")]
        with subprocess.Popen([*command, "--", "sleep", "2.5"], stderr=subprocess.DEVNULL) as perf:
            time.sleep(0.3)
            profile = profile_of(sample(at_499, 2.0))
            perf.wait()
    words = [
        "perf",
        "report",
        "-i",
        str(tmp_path / "p"),
        "--no-children",
        "-g",
        "none",
        "-F",
        "overhead,sym",
        "--pid",
    ]
    done = subprocess.run([*words, str(process.pid), "--stdio"], capture_output=True, text=True, timeout=60)
    theirs = {}
    for line in done.stdout.splitlines():
        parts = line.split()
        if len(parts) == 3 and parts[0].endswith("%") and parts[1] == "[k]":
            theirs[parts[2]] = float(parts[0][:-1])
    ours: dict[str, float] = {}
    s = profile.samples
    for i in range(len(s)):
        if profile.tasks[int(s.task[i])].tgid == process.pid and s.context[i] != Context.USER:
            name = profile.frames.name[profile.stacks[int(s.stack[i])][0]]
            ours[name] = ours.get(name, 0.0) + float(s.weight[i])
    total = sum(ours.values())
    kernel = sum(theirs.values())
    ticks = total / profile.events[0].period
    assert ticks > 30 and kernel, done.stderr
    for name in sorted(theirs, key=lambda n: -theirs[n])[:5]:
        share = theirs[name] / kernel
        # Two samples of one distribution, of about `ticks` each, in windows that overlap only in part.
        slack = 4 * (2 * share * (1 - share) / ticks) ** 0.5 + 0.02
        assert ours.get(name, 0.0) / total == pytest.approx(share, abs=slack), name


def test_what_was_compiled_once_is_loaded_without_the_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NSPROF_CACHE", str(tmp_path))
    with Sampler(SamplerConfig(hop=True)):
        pass
    monkeypatch.setattr(loader, "_compile", lambda name, *_: pytest.fail(f"{name} is compiled again"))
    with Sampler(SamplerConfig(hop=True)) as sampler, child("import os\nwhile True: os.stat('/')"):
        batch = sample(sampler, 0.5)
    assert_losses_are_explained(batch)
    assert losses(batch).seen > 100
