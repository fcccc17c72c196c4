"""Limits of this process (`ulimit`) that are too low: said beforehand where a library would not say it."""

from __future__ import annotations

import errno
import os
import resource

from nsprof.errors import NsprofError

__all__ = ["are_addresses_limited", "check_addresses", "files_short", "lacks_memory", "out_of_memory"]

#: Bytes of addresses (ulimit -v) that a verb with a profile in its hands needs. Measured with pyarrow 26, pandas 3.1
#: and scipy 1.17 on two CPUs: below 680 MB reports and flame graphs end in `terminate called after throwing an
#: instance of 'std::bad_alloc'`, or wait for ever for a thread that did not start; explain and pages need 760 MB.
ADDRESSES = 800_000_000
#: What Arrow maps for each further thread of its pool, which has one a CPU: a stack and an arena of malloc's.
_A_THREAD = 76_000_000
#: Verbs that load none of these libraries.
_SMALL = ("topo", "vm", "doctor", "completion")


def are_addresses_limited() -> bool:
    """Whether `ulimit -v` holds for this process."""
    return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY


def check_addresses(verb: str, *, one_thread: bool) -> None:
    """Raises NsprofError where a verb would be aborted by a library for want of addresses.

    `one_thread`: Arrow was told to have no more (OMP_NUM_THREADS).
    """
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY or verb in _SMALL:
        return
    threads = 1 if one_thread else len(os.sched_getaffinity(0))
    need = ADDRESSES + max(0, threads - 2) * _A_THREAD
    if limit < need:
        raise NsprofError(
            f"little memory: {verb} needs {need / 1e6:,.0f} MB of addresses, and this process may use "
            f"{limit / 1e6:,.0f} MB",
            "ulimit -v unlimited",
        )


def files_short(error: NsprofError) -> NsprofError:
    """The error, with what to do where a limit of this process is behind it."""
    if os.strerror(errno.EMFILE) in error.message:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        error.hint = f"this process may have {limit} files open: ulimit -n 1024"
    return error


def lacks_memory(error: BaseException) -> bool:
    """Whether a library could not be loaded for want of memory: that is an ImportError with the loader's words."""
    words = ("failed to map segment", "cannot allocate memory")
    return isinstance(error, ImportError) and any(word in str(error).lower() for word in words)


def out_of_memory() -> NsprofError:
    """What is said where memory ran out all the same."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return NsprofError("out of memory")
    return NsprofError(
        f"out of memory: this process may use {limit / 1e6:,.0f} MB of addresses", "ulimit -v unlimited"
    )
