"""Where kernels, package lists and boot images are kept between calls: one private directory."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nsprof.files import private_cache

__all__ = ["cache_dir", "locked", "new_directory", "put"]


def cache_dir() -> Path:
    """nsprof's cache directory (files.private_cache): a kernel from there runs with the caller's files under it."""
    return private_cache()


@contextmanager
def locked(name: str) -> Iterator[Path]:
    """One process at a time: others wait until the block ends. Yields the cache directory."""
    base = cache_dir()
    with (base / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield base


def put(target: Path, content: bytes) -> None:
    """Write a file of the cache: whole or not at all, and nothing is left beside it. It stays this user's (who
    called sudo could change what root boots). Raises OSError.
    """
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd, part = tempfile.mkstemp(prefix=".part-", dir=target.parent)
    try:
        with os.fdopen(fd, "wb") as stream:
            stream.write(content)
        Path(part).replace(target)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


@contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """A fresh directory that becomes `target` when the block ends well and vanishes otherwise.

    So a directory in the cache is complete or not there, whenever the process is killed.
    """
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for stale in target.parent.glob(f".{target.name}.*.part"):  # of a process that was killed
        shutil.rmtree(stale, ignore_errors=True)
    part = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent))
    try:
        yield part
        if target.exists():
            shutil.rmtree(target)
        part.rename(target)
    finally:
        if part.exists():
            shutil.rmtree(part, ignore_errors=True)
