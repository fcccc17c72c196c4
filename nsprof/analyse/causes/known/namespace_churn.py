"""Namespaces are created and deleted."""

from __future__ import annotations

from nsprof.analyse.causes.look import rises
from nsprof.analyse.causes.rule import Owned, Rule, Try, words

RULE = Rule(
    name="namespace-churn",
    title="namespaces are created and deleted meanwhile",
    what="Each network namespace sets up dozens of subsystems, and its deletion waits for RCU with the rtnl "
    "mutex held; "
    "mount propagation multiplies the cost of ip netns.",
    owns=(
        Owned(
            words(
                "copy_net_ns setup_net ops_init cleanup_net create_new_namespaces unshare_nsproxy_namespaces "
                "ksys_unshare "
                "copy_mnt_ns copy_tree propagate_mnt propagate_umount umount_tree attach_recursive_mnt "
                "net_ns_net_init "
                "ops_exit_list ops_undo_list default_device_exit_batch inetdev_init net_alloc namespace_unlock "
                "delayed_free_vfsmnt cleanup_mnt delayed_mntput unregister_netdevice_many_notify "
                "register_netdevice mntput_no_expire do_umount"
            )
        ),
    ),
    signature=words("copy_net_ns cleanup_net setup_net"),
    checks=(
        rises(
            "forks", least=0.0, scope="system", ratio=2.0, what="processes started", why="twice as many as at base"
        ),
    ),
    tries=(Try("reuse namespaces; delete in batches; keep mounts private", "ip -batch -"),),
    source="net/core/net_namespace.c cleanup_net(); source document 004",
    control=True,
    programs=True,
    threshold="2 % of the base's cost",
)
