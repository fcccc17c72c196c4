"""Writing files so that a reader sees the old one or the whole new one, never a half.

For everything nsprof writes for the user: profiles, pictures, exports.
"""

from __future__ import annotations

import difflib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from nsprof.errors import NsprofError, UsageError

__all__ = ["cache_root", "check_target", "near_names", "private_cache", "replacing"]


def near_names(path: str | os.PathLike[str], *, suffix: str = ".nsprof", directories: bool = False) -> str:
    """What may have been meant by a file that is not there, in words for a hint: names like it in its folder, else
    the files with `suffix` there, newest first; "" where there is nothing to offer. Or the same of `directories`.
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
