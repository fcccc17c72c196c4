"""The rtnl mutex."""

from __future__ import annotations

from nsprof.analyse.causes.rule import Owned, Rule, Try, words

RULE = Rule(
    name="lock-rtnl",
    title="configuration waits for, or holds, the rtnl mutex",
    what="Every change of devices, addresses and routes of all namespaces takes one mutex.",
    owns=(
        Owned(words("rtnl_lock rtnl_lock_killable rtnl_trylock rtnl_unlock __rtnl_unlock netdev_run_todo")),
        Owned(
            words("mutex_spin_on_owner __mutex_lock* osq_lock mutex_optimistic_spin rwsem_*"),
            under=words("rtnl_* rtnetlink_* default_device_exit_* dev_ioctl netdev_*"),
        ),
    ),
    tries=(Try("fewer, larger netlink batches; do not poll devices over netlink", ""),),
    source="net/core/rtnetlink.c rtnl_lock()",
    control=True,
    threshold="2 % of the base's cost",
)
