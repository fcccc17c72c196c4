"""Writing files so that a reader sees the old one or the whole new one, never a half.

For everything nsprof writes for the user: profiles, pictures, exports. And the temporary directories of a run, of
which a later nsprof can tell whether their owner still lives.
"""

from __future__ import annotations

import difflib
import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, cast

from nsprof.errors import NsprofError, UsageError

__all__ = [
    "Scratch",
    "cache_root",
    "check_target",
    "near_names",
    "private_cache",
    "replacing",
    "scratch_left_behind",
]


def near_names(path: str | os.PathLike[str], *, suffix: str = ".nsprof", directories: bool = False) -> str:
    """What may have been meant by a file that is not there, in words for a hint: names like it in its folder, else
    the files with `suffix` there, newest first; "" where there is nothing to offer. Of `directories` only those with
    a name like it.
    """
    place = Path(path)
    try:
        names = [
            entry.name for entry in os.scandir(place.parent) if (entry.is_dir() if directories else entry.is_file())
        ]
    except FileNotFoundError:
        return f"there is no directory {place.parent}"
    except OSError:
        return ""
    with_suffix = [name for name in names if name.endswith(suffix)]
    near = difflib.get_close_matches(place.name, names, n=3, cutoff=0.7)
    stems = {name.removesuffix(suffix): name for name in with_suffix}
    near += [stems[stem] for stem in difflib.get_close_matches(place.name.removesuffix(suffix), stems, n=3)]
    found = [str(place.parent / name) for name in dict.fromkeys(near)][:3]
    if found:
        return f"did you mean {' or '.join(found)}?"
    if directories:
        return ""  # whatever else is in the folder has nothing to do with it
    with_suffix.sort(key=lambda name: _changed(place.parent / name), reverse=True)
    listed = ", ".join(str(place.parent / name) for name in with_suffix[:6])
    more = f", and {len(with_suffix) - 6} more" if len(with_suffix) > 6 else ""
    return f"there are: {listed}{more}" if listed else ""


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # it went away since it was listed
        return 0.0


def check_target(path: str | os.PathLike[str], *, begins: bytes = b"PK") -> None:
    """Find out before a measurement, not after it, that `path` cannot be written or must not be.

    A file that is not empty and does not begin with `begins` (a profile's first bytes) is somebody's data, perhaps
    through a symbolic link that somebody else put there: it is not replaced. "-" is stdout. Raises NsprofError,
    UsageError.
    """
    name = os.fspath(path)
    if name == "-":
        return
    if not name:
        raise UsageError("-o: an empty word is no file", "-o FILE")
    target = Path(os.path.realpath(name))
    if target.is_symlink():
        raise NsprofError(f"{name}: cannot be written: a loop of symbolic links", "-o FILE")
    if target.is_dir():
        raise NsprofError(f"{name}: is a directory", "-o FILE")
    if not target.parent.is_dir():
        hint = f"mkdir -p {target.parent}"
        raise NsprofError(f"{name}: cannot be written: no directory {target.parent}", hint)
    if target.exists() and not target.is_file():
        return  # a pipe or device is written straight
    if not os.access(target.parent, os.W_OK):
        what = f"{name}: cannot be written: {target.parent} is not writable"
        raise NsprofError(what, "-o FILE")
    try:
        with target.open("rb") as stream:
            head = stream.read(len(begins))
    except OSError:  # it is not there, or may not be read
        return
    if head and head != begins:
        raise NsprofError(f"{name}: is a file that is no profile, and not replaced", f"-o another, or rm {target}")


@contextmanager
def replacing(path: str | os.PathLike[str], *, mode: int = 0o600, keep_old: bool = False) -> Iterator[BinaryIO]:
    """A file object; on leaving the block without an error it takes `path`'s place in one step.

    The data lie in a temporary file beside it with an unpredictable name, are flushed to disk before the rename,
    and vanish on any error, so a full disk or Ctrl-C leaves the earlier file as it was. Under sudo the file is
    given to the user who called it. `keep_old` renames an earlier file to `PATH.old` first. What is no regular
    file (a pipe, /dev/stdout, /dev/null) is written straight.

    Raises NsprofError naming the path when it cannot be written.
    """
    target = Path(path)
    if target.exists() and not target.is_file():
        if target.is_dir():
            raise NsprofError(f"{target}: is a directory", "name a file to write")
        try:
            with target.open("wb") as direct:
                yield cast(BinaryIO, direct)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise NsprofError(f"{target}: cannot be written: {error.strerror or error}") from error
        return
    target = Path(os.path.realpath(target))  # a symbolic link stays one
    try:
        fd, temporary = tempfile.mkstemp(prefix=f".{target.name[:40]}.", suffix=".tmp", dir=target.parent)
    except OSError as error:
        raise NsprofError(f"{target}: cannot be written: {error.strerror}") from error
    try:
        with os.fdopen(fd, "wb") as stream:
            try:
                yield cast(BinaryIO, stream)
                stream.flush()
                os.fsync(fd)
            except OSError as error:
                raise NsprofError(f"{target}: cannot be written: {error.strerror or error}") from error
            os.fchmod(fd, mode)
            _give_to_caller(fd)
        if keep_old and target.exists():
            _keep(target, temporary)
        Path(temporary).replace(target)
    except OSError as error:  # closing writes what is still buffered, so a full disk can also show here
        Path(temporary).unlink(missing_ok=True)
        raise NsprofError(f"{target}: cannot be written: {error.strerror or error}") from error
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _keep(target: Path, temporary: str) -> None:
    """`PATH.old` becomes a second name of the earlier file, so that at no moment there is none."""
    spare = Path(temporary + ".old")
    try:
        os.link(target, spare)
    except OSError:  # a file system without hard links: a short moment without the file it is, then
        target.replace(target.with_name(target.name + ".old"))
    else:
        try:
            spare.replace(target.with_name(target.name + ".old"))
        except BaseException:  # a name that ".old" makes too long, Ctrl-C
            spare.unlink(missing_ok=True)
            raise


def _give_to_caller(fd: int) -> None:
    uid = os.environ.get("SUDO_UID", "")
    if os.geteuid() == 0 and uid.isdigit():
        gid = os.environ.get("SUDO_GID", "")
        os.fchown(fd, int(uid), int(gid) if gid.isdigit() else -1)


def cache_root() -> Path:
    """NSPROF_CACHE, else a place of this user's own.

    Root's is never below a home directory: under sudo that can be a user's, who could exchange what lies in it.
    """
    if os.environ.get("NSPROF_CACHE"):
        return Path(os.environ["NSPROF_CACHE"])
    if os.geteuid() == 0:
        return Path("/var/cache/nsprof")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nsprof"


def private_cache(*parts: str) -> Path:
    """A directory of nsprof's own cache (`NSPROF_CACHE`, else XDG's), made 0700, refused if another user's.

    Root compiles and loads what lies here, so nobody else may be able to write to it.
    """
    root = cache_root()
    place = root.joinpath(*parts)
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        for each in (root, place):
            state = each.stat()
            if state.st_uid != os.geteuid():
                raise NsprofError(
                    f"{each}: belongs to uid {state.st_uid}, so it cannot be trusted as a cache",
                    "set NSPROF_CACHE to a directory of your own",
                )
            if state.st_mode & 0o022:
                each.chmod(0o700)
    except OSError as error:
        raise NsprofError(f"{place}: no cache directory: {error.strerror}", "set NSPROF_CACHE") from error
    return place


# --- temporary directories ------------------------------------------------------------------------------------


class Scratch:
    """A temporary directory, 0700 and of a name that nobody can foresee, that vanishes with `remove` or the block.

    As long as its owner lives it is locked (flock(2), which a killed process loses at once), so a later nsprof can
    tell one that was left behind: `scratch_left_behind`. The name holds the kernel's boot id, since a guest that sees
    the host's directories does not see the host's locks.
    """

    def __init__(self, kind: str, *, where: str | os.PathLike[str] | None = None) -> None:
        """`kind` is a word of small letters for the name; `where` instead of the system's temporary directory."""
        prefix = f"nsprof-{kind}-{_boot_word()}-"
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=where))
            try:
                self.descriptor = os.open(self.path, _DIRECTORY)
            except FileNotFoundError:  # taken for a leftover before it was locked
                continue
            except OSError:  # no descriptors are left
                self.path.rmdir()
                raise
            if _lock(self.descriptor) is not False and os.fstat(self.descriptor).st_nlink:
                return
            os.close(self.descriptor)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove it with all in it; a second time does nothing. (What was renamed meanwhile stays.)"""
        if self.descriptor < 0:
            return
        try:
            self.path.rmdir()  # an empty one also where no more files may be opened
        except OSError:
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.descriptor)
        self.descriptor = -1


_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _boot_word() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    except OSError:  # no /proc
        return "0" * 8


def _lock(descriptor: int) -> bool | None:
    """Whether it could be locked; None on a file system without locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def scratch_left_behind(*, remove: bool = False) -> list[Path]:
    """The `Scratch` directories of this user whose owner was killed, in the temporary and the cache directory;
    with `remove` those that were removed.

    Nothing is followed or trusted: what is a link, another user's, writable for others, locked, or of another boot
    is left alone.
    """
    name = re.compile(rf"nsprof-[a-z]+-{_boot_word()}-[a-z0-9_]{{8}}")
    found = []
    for where in (tempfile.gettempdir, cache_root):
        try:
            place = Path(where())
            names = sorted(entry.name for entry in os.scandir(place) if name.fullmatch(entry.name))
            door = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) if names else -1
        except (OSError, RuntimeError):  # no such place, or not to be read (RuntimeError: a user without a home)
            continue
        for each in names:
            if _is_left_behind(each, door, remove=remove):
                found.append(place / each)
        if door >= 0:
            os.close(door)
    return list(dict.fromkeys(found))  # the two may be one


def _is_left_behind(name: str, door: int, *, remove: bool) -> bool:
    """Whether `name` in the directory that `door` stands for is a dead owner's; with `remove`, whether it is gone."""
    try:
        inside = os.open(name, _DIRECTORY, dir_fd=door)
    except OSError:  # a link, a file, gone, another user's
        return False
    try:
        state = os.fstat(inside)
        if state.st_uid != os.geteuid() or stat.S_IMODE(state.st_mode) & 0o022 or not _lock(inside):
            return False
        if not remove:
            return True
        with os.scandir(inside) as entries:  # through the descriptor that was looked at: the name may pass on
            for entry in list(entries):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.name, ignore_errors=True, dir_fd=inside)
                else:
                    os.unlink(entry.name, dir_fd=inside)
        os.rmdir(name, dir_fd=door)
    except OSError:  # something in it cannot be removed (a mount), or it was removed meanwhile
        return False
    finally:
        os.close(inside)
    return True
