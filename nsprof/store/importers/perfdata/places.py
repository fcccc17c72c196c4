"""The distinct places in code that call chains go through: each is looked up once, however many chains meet there."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsprof.store.importers.assemble import U64
from nsprof.store.importers.codes import Index, codes
from nsprof.store.importers.perfdata.resolve import Resolver

__all__ = ["Places"]

#: what a word is, with what `Places` keeps of it: a kernel address; a guest's, which says nothing; a user's in no
#: mapping, likewise; and, from _FILE on, the number of a mapped file and the place in it
_KERNEL, _GUEST, _NOWHERE, _FILE = 1, 2, 3, 4


class Places:
    """Addresses of the kernel, and places in mapped files, as they are met. `space`, `pid` and `time` tell of every
    chain its address space, and a process and a time at which its user addresses have the meaning they have there."""

    def __init__(
        self, resolver: Resolver, space: NDArray[np.int64], pid: NDArray[Any], time: NDArray[np.uint64]
    ) -> None:
        self._resolver = resolver
        self._space, self._pid, self._time = space, pid, time
        self._index = Index()
        self._met: list[tuple[NDArray[np.int64], NDArray[np.uint64]]] = []

    def number(
        self, words: NDArray[np.uint64], modes: NDArray[np.uint8], row: NDArray[np.int64]
    ) -> NDArray[np.int32]:
        """Numbers of some addresses; `row` is the chain of each, those of one address space standing together."""
        where = np.where(modes >= 4, np.int64(_GUEST), np.int64(_KERNEL))
        value = np.where(modes >= 4, U64(0), words)
        user = np.flatnonzero((modes == 2) | (modes == 0))
        if len(user):
            space = self._space[row[user]]
            begin = np.flatnonzero(np.diff(space, prepend=-1))
            for low, high in itertools.pairwise([*begin.tolist(), len(user)]):
                mine = user[low:high]
                chain = int(row[mine[0]])
                file, offset = self._resolver.mapped(words[mine], int(self._pid[chain]), int(self._time[chain]))
                where[mine] = np.where(file < 0, _NOWHERE, file + _FILE)
                value[mine] = np.where(file < 0, U64(0), offset)
        key = value * U64(0x9E3779B97F4A7C15) ^ where.view("u8") * U64(0xD6E8FEB86659FD93)
        which, first = codes(key)
        numbers, fresh = self._index.add(key[first])
        if len(fresh):
            self._met.append((where[first[fresh]], value[first[fresh]]))
        return numbers[which]

    def frames(self) -> NDArray[np.uint32]:
        """Frame of every number."""
        resolver = self._resolver
        frame = np.zeros(len(self._index), "u4")
        if not self._met:
            return frame
        where, value = (np.concatenate(each) for each in zip(*self._met, strict=True))
        kernel = np.flatnonzero(where == _KERNEL)
        if len(kernel):
            frame[kernel] = resolver.kernel(value[kernel])
        guest = np.flatnonzero(where == _GUEST)
        if len(guest):
            frame[guest] = resolver.guest()
        user = np.flatnonzero(where >= _NOWHERE)
        if len(user):
            frame[user] = resolver.user(where[user] - _FILE, value[user])
        return frame
