"""Making namespaces quickly, and one directory that holds a run's: one unmount removes a thousand.

A namespace is made by a thread that calls unshare(2) (0.4 ms; a fork costs ten times that), kept by a bind mount
of its file, and configured through a netlink socket that the same thread opens while still inside. The bind
mounts live under /run/nsprof/<run id>/, itself a mount, so that taking down is one lazy unmount. Links under
/run/netns let `ip netns list` and `ip netns exec` find them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from nsprof.errors import TopologyError
from nsprof.netns import CLONE_NEWNET
from nsprof.topology.capability import refused
from nsprof.topology.netlink import Rtnl
from nsprof.topology.state import RUN

__all__ = ["IP_NETNS", "RUN", "Ns", "RunDirectory", "apart", "set_receive_cpus"]

IP_NETNS = Path("/run/netns")
_MS_BIND, _MS_REC, _MS_PRIVATE, _MS_SHARED = 4096, 16384, 1 << 18, 1 << 20
_MS_NOSUID_NODEV_NOEXEC = 2 | 4 | 8
_MNT_DETACH = 2
_CLONE_NEWNS = 0x20000
_libc = ctypes.CDLL(None, use_errno=True)
T = TypeVar("T")


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        hint = refused("CAP_SYS_ADMIN") if code in (errno.EPERM, errno.EACCES) else ""
        raise TopologyError(f"{what}: {os.strerror(code)}", hint)


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "", *, fine: int = 0) -> None:
    result = _libc.mount(
        source.encode(), os.fsencode(target), kind.encode() if kind else None, flags, options.encode() or None
    )
    if result == 0 or ctypes.get_errno() != fine:
        _check(result, f"mounting {target}")


def apart(work: Callable[[Callable[[], None]], T]) -> T:
    """Run `work` in a thread of its own, so that it may change namespaces and dies outside of them.

    An exception in the waiting thread (Ctrl-C, a signal turned into an exception) does not tear the work apart:
    `work` gets a function to call between its steps, which raises once that has happened; the exception goes
    on when the work has ended.
    """
    stop, begun, done = threading.Event(), threading.Event(), threading.Event()
    outcome: list[T] = []
    failure: list[BaseException] = []

    def check() -> None:
        if stop.is_set():
            raise InterruptedError("interrupted")

    def run() -> None:
        begun.set()
        try:
            outcome.append(work(check))
        except BaseException as error:  # noqa: BLE001 - handed to the waiting thread, which raises it
            failure.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=run, name="nsprof-topology")
    interrupt: BaseException | None = None
    try:
        thread.start()
        done.wait()
    except BaseException as error:  # noqa: BLE001 - raised below, when the work has come to an end
        interrupt = error
    # Not Thread.join() here: in Python 3.11 an interrupted join takes the thread for ended.
    while not done.is_set():
        try:
            stop.set()
            if not done.wait(1.0) and not begun.is_set():
                break
        except BaseException as error:  # noqa: BLE001 - as above
            interrupt = interrupt or error
    if interrupt is not None:
        raise interrupt
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]


@dataclass(slots=True)
class Ns:
    """A namespace of a run: `rtnl` and `fd` are open only while it is being configured."""

    name: str
    role: str
    path: str
    inode: int
    cookie: int
    rtnl: Rtnl
    fd: int

    def close(self) -> None:
        """Let go of the socket and the file; the bind mount alone keeps the namespace."""
        if self.fd >= 0:
            self.rtnl.close()
            os.close(self.fd)
            self.fd = -1


class RunDirectory:
    """/run/nsprof/<run id>/: holds the run's namespaces, and makes them."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.path = RUN / run_id

    def make(self) -> None:
        """Make and mount the directory. Raises TopologyError if the run id is taken."""
        try:
            RUN.mkdir(mode=0o755, parents=True, exist_ok=True)
            IP_NETNS.mkdir(mode=0o755, parents=True, exist_ok=True)
            self.path.mkdir(mode=0o755)
        except FileExistsError as error:
            raise TopologyError(f"run id {self.run_id} is taken: {self.path} exists", "nsprof topo list") from error
        except OSError as error:
            raise TopologyError(f"{error.filename} cannot be made: {error.strerror}", "run it as root") from error
        _mount("nsprof", str(self.path), "tmpfs", _MS_NOSUID_NODEV_NOEXEC, "mode=0755")
        # Shared: a service that starts later copies our mounts, and must lose them when we unmount.
        _mount("", str(self.path), None, _MS_SHARED)

    def create(self, name: str, role: str) -> Ns:
        """A new namespace; the calling thread is in it afterwards (call it within `apart`)."""
        _check(_libc.unshare(CLONE_NEWNET), f"making the network namespace {name}")
        return self.keep(name, role)

    def keep(self, name: str, role: str) -> Ns:
        """Keep the calling thread's namespace under `name`."""
        path = self.path / name
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDONLY | os.O_CLOEXEC, 0o444))
        _mount("/proc/thread-self/ns/net", str(path), None, _MS_BIND)
        (IP_NETNS / f"nsprof-{self.run_id}-{name}").symlink_to(path)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            rtnl = Rtnl()
        except OSError as error:
            os.close(fd)
            raise TopologyError(f"no netlink socket in {name}: {error.strerror}") from error
        return Ns(name, role, str(path), os.fstat(fd).st_ino, rtnl.cookie, rtnl, fd)

    def remove(self) -> None:
        """Unmount everything and remove the directory and the links of `ip netns`; what is gone already is fine."""
        if self.path.is_dir():
            while _libc.umount2(os.fsencode(self.path), _MNT_DETACH) == 0:
                pass
            code = ctypes.get_errno()
            # EINVAL: no longer a mount. Who may not mount is told EPERM, also where nothing was mounted.
            if code not in (errno.EINVAL, errno.ENOENT) and not (code == errno.EPERM and not self.path.is_mount()):
                raise TopologyError(f"unmounting {self.path}: {os.strerror(code)}")
            for left in self.path.iterdir():  # made beside the mount, if the maker was killed at the wrong moment
                _libc.umount2(os.fsencode(left), _MNT_DETACH)
                left.unlink(missing_ok=True)
            self.path.rmdir()
        prefix = f"{self.path}/"
        if IP_NETNS.is_dir():
            for entry in os.scandir(IP_NETNS):
                if entry.name.startswith(f"nsprof-{self.run_id}-") and entry.is_symlink():
                    link = Path(entry.path)
                    if str(link.readlink()).startswith(prefix):
                        link.unlink(missing_ok=True)


def set_receive_cpus(where: list[tuple[str, str, tuple[int, ...]]]) -> None:
    """Steer the receive softirq of devices to CPUs (RPS): (namespace path, device, CPUs) each.

    /sys shows the namespace of whoever mounted it, so a thread with a mount namespace of its own mounts one
    inside each network namespace. Raises TopologyError where sysfs or RPS is missing.
    """

    def work(_: Callable[[], None]) -> None:
        _check(_libc.unshare(_CLONE_NEWNS), "making a mount namespace")
        _mount("", "/", None, _MS_REC | _MS_PRIVATE)
        for path, device, cpus in where:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                _check(_libc.setns(fd, CLONE_NEWNET), f"entering {path}")
            finally:
                os.close(fd)
            # EBUSY: what is mounted there shows this namespace already (the initial one as the host).
            _mount("nsprof", "/sys", "sysfs", _MS_NOSUID_NODEV_NOEXEC, fine=errno.EBUSY)
            queues = sorted(Path(f"/sys/class/net/{device}/queues").glob("rx-*"))
            if not queues:
                raise TopologyError(f"device {device}: no receive queues in sysfs")
            for queue in queues:
                try:
                    (queue / "rps_cpus").write_text(_cpu_mask(cpus))
                except OSError as error:
                    raise TopologyError(
                        f"device {device}: receive CPUs cannot be set: {error.strerror}",
                        "this kernel lacks CONFIG_RPS; use --no-pin",
                    ) from error

    apart(work)


def _cpu_mask(cpus: tuple[int, ...]) -> str:
    """CPU numbers as the kernel's bitmaps are written: 32-bit hexadecimal words, highest first, with commas."""
    mask = sum(1 << cpu for cpu in cpus)
    words = []
    while True:
        words.append(f"{mask & 0xFFFFFFFF:08x}")
        mask >>= 32
        if not mask:
            return ",".join(reversed(words))
