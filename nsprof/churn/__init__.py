"""`nsprof churn`: create and delete network namespaces while mount namespaces are alive, timed and profiled.

Everything happens in a mount namespace of its own with an own /run/netns, so no name of the user's can collide and
no mount of the experiment reaches the machine. What the mount namespaces beside it get of the mounts is the
`propagation`:

    shared   they are peers of /run/netns, as `ip netns` makes them: each mount is copied into every one
    slave    they get copies, but give none back
    private  nothing is handed on: what creating and deleting costs without propagation
    stacked  /run is shared and /run/netns no mount of its own, as on most machines: `ip netns` then binds /run/netns
             to itself, and each mount goes to both, below and above, here and in every mount namespace
"""

from __future__ import annotations

import ctypes
import os
import platform
import queue
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from nsprof.bench.plan import fair_order
from nsprof.churn.waits import EVENT, WaitSampler, cleaning
from nsprof.collect.sampling.sampler import SamplerConfig
from nsprof.collect.system import host
from nsprof.errors import CommandNotFound, NsprofError, PreflightError, UsageError, WorkloadError
from nsprof.model.builder import ProfileBuilder
from nsprof.model.profile import Context, Event, Namespace, Profile, Samples, Value
from nsprof.observe import Observer, Scene, Traffic

__all__ = ["PROPAGATIONS", "ChurnOptions", "own_samples", "run_churn"]

PROPAGATIONS = ("shared", "slave", "private", "stacked")
_NETNS_DIR = "/run/netns"
_NAME = "churn"
_OURS = f"{_NETNS_DIR}/{_NAME}"
_CLONE_NEWNS = 0x00020000
_MS_REC, _MS_PRIVATE, _MS_SHARED = 0x4000, 1 << 18, 1 << 20
_libc = ctypes.CDLL(None, use_errno=True)
_T = TypeVar("_T")
#: Programs that hold a mount namespace each (see `_holder`), all of util-linux.
_HOLDERS = ("setpriv", "unshare")
#: How long after the last delete the kernel may go on cleaning up within the window.
_CLEANUP_S = 30.0


@dataclass(frozen=True, slots=True)
class ChurnOptions:
    """What the command line of `nsprof churn` says; `tools` are "ip", "pyroute2" or paths of ip binaries."""

    namespaces: int = 100
    mount_namespaces: int = 20
    tools: tuple[str, ...] = ("ip",)
    rounds: int = 1
    propagation: str = "shared"
    frequency_hz: int = 997
    waits: bool = True
    seed: int = 1

    def check(self) -> None:
        """Raises UsageError, CommandNotFound, PreflightError."""
        if not 1 <= self.namespaces <= 100_000:
            raise UsageError(f"--namespaces {self.namespaces}: must be 1 to 100000")
        if not 0 <= self.mount_namespaces <= 10_000:
            raise UsageError(f"--mount-namespaces {self.mount_namespaces}: must be 0 to 10000")
        if self.propagation not in PROPAGATIONS:
            raise UsageError(f"--propagation {self.propagation}: there are {', '.join(PROPAGATIONS)}")
        if self.rounds < 1:
            raise UsageError(f"--rounds {self.rounds}: must be 1 or more")
        if len(set(self.tools)) != len(self.tools):
            raise UsageError(f"a tool is named twice: {', '.join(self.tools)}")
        for tool in self.tools:
            if tool != "pyroute2" and not shutil.which(tool):
                raise CommandNotFound(f"{tool}: no such ip binary", "--tool ip, pyroute2 or the path of an ip binary")
        missing = [program for program in _HOLDERS if self.mount_namespaces and not shutil.which(program)]
        if missing:
            raise PreflightError(
                f"{' and '.join(missing)} not found, which mount namespaces are held with", "apt install util-linux"
            )


def run_churn(options: ChurnOptions, say: Callable[[str], None] = lambda line: None) -> Profile:
    """Create and delete, `rounds` times with each tool in fair order; one run a tool, round and operation.

    Runs carry real, user and sys seconds, latency percentiles of single operations, and what the mounts did. Raises
    NsprofError; nothing is left behind in any case.
    """
    options.check()
    if os.geteuid() != 0:
        raise PreflightError("making namespaces needs root", "sudo nsprof churn ...")
    builder = ProfileBuilder()
    with ExitStack() as stack:
        observer = stack.enter_context(Observer(SamplerConfig(frequency_hz=options.frequency_hz)))
        if observer.fallback:
            builder.meta["notes"] = [observer.fallback]
        for number, tool in enumerate(fair_order(list(options.tools), options.rounds, options.seed)):
            say(f"{tool}: {options.namespaces} namespaces, {options.mount_namespaces} mount namespaces")
            with _Sandbox() as sandbox:
                _round(builder, observer, options, sandbox, tool, number)
    _describe(builder, options)
    return builder.build()


def _round(
    builder: ProfileBuilder, observer: Observer, options: ChurnOptions, sandbox: _Sandbox, tool: str, number: int
) -> None:
    names = [f"{_NAME}{number}-{i}" for i in range(options.namespaces)]
    label = Path(tool).name if options.tools.count(tool) and "/" not in tool else tool
    sandbox.call(lambda: _own_netns_directory(options.propagation))
    sandbox.hold(options.mount_namespaces)
    _operation(builder, observer, options, sandbox, (label, tool, "create"), names)
    _operation(builder, observer, options, sandbox, (label, tool, "delete"), names)


def _operation(
    builder: ProfileBuilder,
    observer: Observer,
    options: ChurnOptions,
    sandbox: _Sandbox,
    what: tuple[str, str, str],
    names: Sequence[str],
) -> None:
    label, tool, action = what
    waits = WaitSampler(sandbox.watched)
    times = _Times()

    def work() -> Traffic:
        with ExitStack() as stack:
            if options.waits:
                stack.enter_context(waits.sampling())
            sandbox.call(lambda: _run_tool(tool, action, names, times, sandbox))
            if action == "delete":
                times.wait_for_cleanup()
        return _traffic(times, sandbox, (tool, "netns", action), len(names))

    own = Namespace(Path("/proc/self/ns/net").stat().st_ino, name="init")
    scene = Scene(f"{label} {action}", {"/proc/self/ns/net": own}, kernel=platform.release())
    try:
        observer.window(builder, scene, work)
    except BaseException:
        observer.discard()
        raise
    builder.meta.setdefault("churn_pids", {})[str(len(builder.runs) - 1)] = times.pids
    if waits.stacks:
        _add_waits(builder, len(builder.runs) - 1, waits)


@dataclass(slots=True)
class _Times:
    """What the operations took."""

    real_s: float = 0.0
    user_s: float = 0.0
    sys_s: float = 0.0
    cleanup_s: float = 0.0
    each_ns: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)

    def wait_for_cleanup(self) -> None:
        """The kernel takes deleted namespaces down later, in a worker; that belongs to the cost."""
        began = time.monotonic()
        quiet = 0
        while quiet < 3 and time.monotonic() - began < _CLEANUP_S:
            quiet = 0 if cleaning() else quiet + 1
            time.sleep(0.02)
        self.cleanup_s = max(0.0, time.monotonic() - began - 0.06)


def _run_tool(tool: str, action: str, names: Sequence[str], times: _Times, sandbox: _Sandbox) -> None:
    began = time.perf_counter()
    if tool == "pyroute2":
        _run_pyroute2(action, names, times, sandbox)
    else:
        _run_ip(shutil.which(tool) or tool, action, names, times, sandbox)
    times.real_s = time.perf_counter() - began


def _run_ip(program: str, action: str, names: Sequence[str], times: _Times, sandbox: _Sandbox) -> None:
    """A process an operation, as a shell's loop has it; the kernel accounts each to the microsecond."""
    verb = "add" if action == "create" else "delete"
    read, write = os.pipe()
    os.set_blocking(read, False)
    try:
        actions = [(os.POSIX_SPAWN_DUP2, write, 1), (os.POSIX_SPAWN_DUP2, write, 2)]
        for name in names:
            sandbox.check()
            start = time.perf_counter_ns()
            pid = os.posix_spawn(program, [program, "netns", verb, name], os.environ, file_actions=actions)
            sandbox.child = pid
            times.pids.append(pid)
            _, status, usage = os.wait4(pid, 0)
            sandbox.child = 0
            times.each_ns.append(time.perf_counter_ns() - start)
            times.user_s += usage.ru_utime
            times.sys_s += usage.ru_stime
            if status:
                try:
                    said = os.read(read, 4096).decode("utf-8", "replace").strip().splitlines()
                except BlockingIOError:
                    said = []
                times.errors.append(said[-1] if said else f"status {os.waitstatus_to_exitcode(status)}")
    finally:
        sandbox.child = 0
        os.close(read)
        os.close(write)


def _run_pyroute2(action: str, names: Sequence[str], times: _Times, sandbox: _Sandbox) -> None:
    words = [sys.executable, "-m", "nsprof.topology.churn_worker", action, *names]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        sandbox.child = child.pid
        times.pids.append(child.pid)
        try:
            out, err = child.communicate()
        finally:
            sandbox.child = 0
            child.kill()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    times.user_s, times.sys_s = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    for line in out.splitlines():
        took, _, error = line.partition(" ")
        times.each_ns.append(int(took))
        if error:
            times.errors.append(error)
    if len(times.each_ns) != len(names):
        last = err.strip().splitlines()[-1:] or [f"status {child.returncode}"]
        raise WorkloadError(f"pyroute2: {last[0]}")


def _traffic(times: _Times, sandbox: _Sandbox, command: tuple[str, ...], count: int) -> Traffic:
    import numpy as np

    each = np.array(times.each_ns or [0], "f8") / 1e3
    copies = sandbox.copies()
    values = [
        Value("real", times.real_s, "s", "churn"),
        Value("user", times.user_s, "s", "churn"),
        Value("sys", times.sys_s, "s", "churn"),
        *(Value(f"latency_p{p}", float(np.percentile(each, p)), "us", "churn") for p in (50, 90, 99)),
        Value("latency_max", float(each.max()), "us", "churn"),
        Value("operations", float(count - len(times.errors)), "operations", "churn"),
        Value("mounts_here", float(sandbox.call(_own_copies)), "mounts", "churn"),
        Value("mounts_elsewhere", float(copies), "mounts", "churn"),
    ]
    if times.cleanup_s:
        values.append(Value("cleanup", times.cleanup_s, "s", "churn"))
    if command[-1] == "delete":
        values.append(Value("still_pinned", float(sandbox.pinned()), "namespaces", "churn"))
    failed = f"{len(times.errors)} of {count} failed: {times.errors[0]}" if len(times.errors) == count else ""
    warnings = (f"{len(times.errors)} of {count} failed: {times.errors[0]}",) if times.errors and not failed else ()
    return Traffic(
        command=command,
        values=tuple(values),
        warnings=warnings,
        denominators={"operation": float(count)},
        failed=failed,
    )


def _add_waits(builder: ProfileBuilder, run: int, waits: WaitSampler) -> None:
    event = builder.event(Event(EVENT, "ns", "sampled"))
    rows = []
    for (comm, frames), waited_ns in waits.stacks.items():
        stack = builder.stack([builder.frame(name) for name in frames])
        rows.append((builder.task(0, 0, comm), stack, waited_ns))
    task, stack_column, weight = zip(*rows, strict=True)
    builder.samples(
        Samples.build(
            len(rows),
            run=run,
            event=event,
            task=task,
            stack=stack_column,
            context=int(Context.TASK),
            count=1,
            weight=weight,
        )
    )


def own_samples(profile: Profile) -> Profile:
    """The profile without the samples of tasks that had no part in it: kept are the tools' own processes and what
    takes namespaces down in the kernel's workers."""
    import numpy as np

    pids = {int(run): set(some) for run, some in profile.meta.get("churn_pids", {}).items()}
    cleaning_frames = [i for i, name in enumerate(profile.frames.name) if name == "cleanup_net"]
    cleaners = np.array([bool(np.isin(profile.stacks[i], cleaning_frames).any()) for i in range(len(profile.stacks))])
    samples = profile.samples
    own = np.zeros(len(samples), bool)
    for run, some in pids.items():
        tasks = np.array([t.tgid in some for t in profile.tasks], bool)
        own |= (samples.run == run) & tasks[samples.task]
    own |= cleaners[samples.stack] if len(cleaners) else False
    waits = np.array([e.name == EVENT for e in profile.events], bool)
    return profile.with_(samples=samples.take(own | waits[samples.event]))


def _describe(builder: ProfileBuilder, options: ChurnOptions) -> None:
    from nsprof import __version__

    builder.meta["tool"] = {"name": "nsprof", "version": __version__}
    builder.meta["created"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    builder.meta["host"] = host.snapshot({})
    builder.meta["churn"] = {
        "namespaces": options.namespaces,
        "mount_namespaces": options.mount_namespaces,
        "tools": list(options.tools),
        "rounds": options.rounds,
        "propagation": options.propagation,
    }


# --- the mount namespace in which it happens ----------------------------------------------------------------


class _Sandbox:
    """A thread in a mount namespace of its own; what it starts is in there too. Holders keep further ones alive."""

    def __init__(self) -> None:
        self.child = 0
        self._holders: list[subprocess.Popen[bytes]] = []
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="nsprof-churn", daemon=True)

    def __enter__(self) -> _Sandbox:
        self._thread.start()
        try:
            self.call(_own_mounts)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for holder in self._holders:
            holder.kill()
        for holder in self._holders:
            holder.wait()
        self._work.put(None)
        self._thread.join(30)

    def _serve(self) -> None:
        while (job := self._work.get()) is not None:
            job()

    def call(self, function: Callable[[], _T]) -> _T:
        """Run in the thread, wait for it, hand on its result or exception."""
        done = threading.Event()
        result: list[_T] = []
        failure: list[BaseException] = []

        def job() -> None:
            try:
                result.append(function())
            except BaseException as error:  # noqa: BLE001 - raised in the waiting thread
                failure.append(error)
            finally:
                done.set()

        self._work.put(job)
        try:
            while not done.wait(0.5):
                pass
        except BaseException:
            self._stop.set()
            if (child := self.child) > 0:
                os.kill(child, signal.SIGKILL)
            done.wait(10)
            raise
        if failure:
            raise failure[0]
        return result[0]

    def check(self) -> None:
        """Between two operations: ends the work when the waiting thread was interrupted."""
        if self._stop.is_set():
            raise InterruptedError("interrupted")

    def watched(self) -> list[int]:
        """The process of the present operation."""
        return [self.child] if self.child > 0 else []

    def hold(self, number: int) -> None:
        """Make `number` mount namespaces that live until the end."""
        for _ in range(number):
            self._holders.append(self.call(_holder))
        own = Path(f"/proc/{os.getpid()}/ns/mnt").stat().st_ino
        limit = time.monotonic() + 30
        for holder in self._holders:
            while Path(f"/proc/{holder.pid}/comm").read_text(errors="surrogateescape").strip() != "sleep":
                if holder.poll() is not None or time.monotonic() > limit:
                    raise WorkloadError("a mount namespace could not be made: unshare --mount failed")
                time.sleep(0.002)
            if Path(f"/proc/{holder.pid}/ns/mnt").stat().st_ino == own:
                raise WorkloadError("a mount namespace could not be made: it is the machine's own")

    def copies(self) -> int:
        """Mounts of network namespaces in all the other mount namespaces together."""
        return sum(len(self._mounts(h.pid)) for h in self._holders)

    def pinned(self) -> int:
        """Network namespaces that some other mount namespace still keeps alive."""
        return len({ns for h in self._holders for ns in self._mounts(h.pid)})

    @staticmethod
    def _mounts(pid: int) -> list[str]:
        return netns_mounts(Path(f"/proc/{pid}/mountinfo").read_text(errors="surrogateescape"))


def netns_mounts(mountinfo: str) -> list[str]:
    """Mounts of namespaces that churn made, as `net:[inode]`, once a mount; the machine's own lie hidden below."""
    rows = [line.split(" ") for line in mountinfo.split("\n") if line]
    return [row[3] for row in rows if row[4].startswith(_OURS) and row[3].startswith("net:")]


def _own_copies() -> int:
    return len(netns_mounts(Path("/proc/thread-self/mountinfo").read_text(errors="surrogateescape")))


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    if _libc.mount(source.encode(), target.encode(), kind.encode(), flags, data.encode() or None) != 0:
        code = ctypes.get_errno()
        raise NsprofError(f"{target}: cannot be mounted: {os.strerror(code)}", exit_code=125)


def _own_mounts() -> None:
    """A mount namespace for the calling thread, from which nothing reaches the machine's."""
    if _libc.unshare(_CLONE_NEWNS) != 0:
        raise PreflightError(f"a mount namespace cannot be made: {os.strerror(ctypes.get_errno())}")
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE)


def _own_netns_directory(propagation: str) -> None:
    if propagation == "stacked":
        _mount("nsprof-churn", "/run", "tmpfs", 0, "mode=755")
        _mount("none", "/run", "", _MS_SHARED)
        Path(_NETNS_DIR).mkdir(mode=0o755)
    else:
        Path(_NETNS_DIR).mkdir(mode=0o755, exist_ok=True)
        _mount("nsprof-churn", _NETNS_DIR, "tmpfs", 0, "mode=755")
        if propagation in ("shared", "slave"):
            _mount("none", _NETNS_DIR, "", _MS_SHARED)
    _HOLD_WORDS[:] = [propagation if propagation in ("private", "slave") else "unchanged"]


#: What the next holders' mounts are to the sandbox's.
_HOLD_WORDS = ["unchanged"]


def _holder() -> subprocess.Popen[bytes]:
    # Its death signal is that of the sandbox's thread: a killed nsprof leaves none of them behind.
    dying = ["setpriv", "--pdeathsig", "KILL"]
    words = [*dying, "unshare", "--mount", "--propagation", _HOLD_WORDS[0], "sleep", "86400"]
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
