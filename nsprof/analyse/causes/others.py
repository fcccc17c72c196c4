"""Work on the same CPUs that is provably somebody else's: no cause of the scenario is drawn from it.

Tasks of namespaces without a part in the scenario are left out of every view already (`filters.other_load`). What
remains are softirqs. One that runs inside a system call, where that call switches bottom halves on again, receives
what the call itself has just sent to a virtual device: it is the caller's. One that runs on the way out of an
interrupt, or in ksoftirqd, may be anybody's, and is kept.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nsprof.analyse.selection import View
from nsprof.analyse.stacks import StackTable
from nsprof.model.profile import Context, Profile

__all__ = ["not_own_tasks", "own_known", "tasks_known", "theirs"]

#: How far above the softirq's entry the function stands that switched bottom halves on.
_NEAR = 4
_CALLS = ("do_syscall_64", "entry_SYSCALL_64", "__x64_sys_", "__se_sys_", "el0_svc", "invoke_syscall")


def own_known(view: View) -> bool:
    """Whether the profile tells the scenario's own namespaces from all others: nsprof made them, and none of the
    user's is watched beside them (its packets cross namespaces that nobody named)."""
    spaces = view.profile.namespaces
    return any(n.made for n in spaces) and not any(n.role == "watched" for n in spaces) and not view.filter.everyone


def tasks_known(view: View) -> bool:
    """Whether the profile tells the scenario's own tasks from all others: nsprof made or watched their namespaces."""
    return any(n.role for n in view.profile.namespaces) and not view.filter.everyone


def theirs(view: View, table: StackTable) -> NDArray[np.bool_]:
    """Rows of softirqs that ran in a system call of a task of a foreign namespace, where the hop is not known."""
    none: NDArray[np.bool_] = np.zeros(len(view.row), bool)
    if not own_known(view):
        return none
    ours = np.array([False, *(bool(n.role) for n in view.profile.namespaces)])
    space = view.column("task_ns")
    foreign = (space != 0) & ~ours[space]
    maybe = foreign & (view.column("hop_ns") == 0) & (view.column("context") == int(Context.SOFTIRQ))
    if not maybe.any():
        return none
    stack = view.column("stack")
    used = np.unique(stack[maybe])
    called = {int(s) for s in used if _in_a_call(view.profile, int(s), int(table.cut[s]))}
    rows: NDArray[np.bool_] = maybe & np.isin(stack, list(called))
    return rows


def not_own_tasks(view: View) -> NDArray[np.bool_]:
    """Rows that are not work of the scenario's own tasks in their own context; none where those are not known."""
    if not tasks_known(view):
        return np.zeros(len(view.row), bool)
    ours = np.array([False, *(bool(n.role) for n in view.profile.namespaces)])
    own = np.isin(view.column("context"), (int(Context.TASK), int(Context.USER))) & ours[view.column("task_ns")]
    rows: NDArray[np.bool_] = ~own
    return rows


def _in_a_call(profile: Profile, stack: int, cut: int) -> bool:
    """Whether the softirq of a stack was started by a system call's own local_bh_enable."""
    above = [profile.frames.name[f] for f in profile.stacks[stack][cut + 1 :].tolist()]
    return any(name.startswith(("__local_bh_enable", "local_bh_enable")) for name in above[:_NEAR]) and any(
        name.startswith(_CALLS) for name in above
    )
