"""Profiles on disk: the .nsprof file, importers and exporters.

Importing this package is cheap; pyarrow is loaded when a file is read or written.
"""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from nsprof.errors import NsprofError, ProfileFormatError
from nsprof.files import near_names, private_cache
from nsprof.model.profile import Profile

__all__ = ["MAGIC", "VERSION", "is_native", "load", "open_any", "save"]

#: Content of the archive's first member, "mimetype" (stored, so that file(1) and every reader find it at byte 38).
MAGIC = b"application/x-nsprof"

#: Version of the layout of the tables; see docs/file-format.md.
VERSION = 2


def save(profile: Profile, path: str | os.PathLike[str], *, keep_old: bool = False, measured: bool = False) -> None:
    """Write a profile to `path`, all of it or nothing: an earlier file stays as it was until the new one is safe.

    The file is 0600 and belongs to the user behind sudo. `keep_old` keeps an earlier file as `<path>.old`.
    "-" writes to standard output. Raises NsprofError when it cannot be written; what was `measured` and cannot be
    made again is kept on another disk then, where this one is full and that has room, and the error says where.
    """
    from nsprof.store import native

    try:
        native.save(profile, path, keep_old=keep_old)
    except NsprofError as error:
        cause = error.__cause__
        if measured and isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            _keep_elsewhere(profile, error)
        raise


def _keep_elsewhere(profile: Profile, error: NsprofError) -> None:
    """Raises the error with the place where the profile is now; returns where there is none for it."""
    from nsprof.store import native

    for place in (tempfile.gettempdir, lambda: private_cache("kept")):
        try:
            descriptor, name = tempfile.mkstemp(prefix="nsprof-", suffix=".nsprof", dir=place())
            os.close(descriptor)
        except (OSError, NsprofError):
            continue
        try:
            native.save(profile, name)
        except NsprofError:
            Path(name).unlink(missing_ok=True)
            continue
        except BaseException:  # interrupted: what stands there is not the profile
            Path(name).unlink(missing_ok=True)
            raise
        raise NsprofError(f"{error.message}; what was measured is in {name}", f"nsprof report {name}") from error


def load(path: str | os.PathLike[str]) -> Profile:
    """Read a .nsprof file ("-" is standard input); nothing in it is trusted.

    Raises ProfileFormatError for a file that is no profile, is damaged, or is newer than this nsprof.
    """
    from nsprof.store import native

    return native.load(path)


def is_native(path: str | os.PathLike[str]) -> bool:
    """Whether the file says of itself that it is a .nsprof file (it may still be damaged)."""
    with Path(path).open("rb") as stream:
        head = stream.read(38 + len(MAGIC))
    return head.startswith(b"PK\x03\x04") and head[30:38] == b"mimetype" and head[38:] == MAGIC


def open_any(path: str | os.PathLike[str], **options: Any) -> Profile:
    """Read a profile of any known format: .nsprof, or whatever the importers recognise by content.

    `options` go to the importer. Raises ProfileFormatError naming the file when nobody can read it.
    """
    name = os.fspath(path)
    if name == "-" and not options and sys.stdin.buffer.peek(2)[:2] in (b"PK", b""):  # type: ignore[union-attr]
        return load(path)
    place = Path(name)
    if not name:
        raise NsprofError("no such file: '' (an empty word)", "name a profile, or none for profile.nsprof")
    try:
        if name != "-" and place.is_dir():
            from nsprof.store import importers

            if importers.is_recording(place):
                return importers.import_file(place, **options)
            raise ProfileFormatError(f"{name} is a directory, not a profile")
        if name != "-" and place.is_file() and is_native(place):
            return load(place)
    except OSError as error:
        raise NsprofError(f"cannot read {name}: {error.strerror}") from error
    if name != "-" and not place.exists():
        hint = near_names(name) or "nsprof record -o profile.nsprof -- COMMAND makes one"
        raise NsprofError(f"no such file: {name}", hint)
    from nsprof.store import importers

    import_file = getattr(importers, "import_file", None)
    if import_file is None:
        return load(place)
    profile: Profile = import_file(name if name == "-" else place, **options)
    return profile
