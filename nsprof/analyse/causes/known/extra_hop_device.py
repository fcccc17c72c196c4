"""Another virtual device on the path: macvlan, ipvlan, netkit, VLAN, bonding."""

from __future__ import annotations

from nsprof.analyse.causes.look import device_kinds, no_device
from nsprof.analyse.causes.rule import Owned, Rule, Try, words

_KINDS = words("macvlan ipvlan netkit vlan vrf bond team tun macvtap ipvtap ifb")

RULE = Rule(
    name="extra-hop-device",
    title="packets pass another virtual device (macvlan, ipvlan, netkit, VLAN, VRF, bond, tun)",
    what="Each stacked device is one more pass through a receive handler or a transmit function.",
    owns=(
        Owned(
            words(
                "macvlan_* ipvlan_* netkit_* vlan_* __vlan_* vrf_* bond_* __bond_* team_* tun_* tap_* dummy_* ifb_* "
                "l3mdev_* macvtap_*"
            ),
            # What the device below does with the packet it would do without this one, too.
            passes_to=words("dev_hard_start_xmit"),
        ),
    ),
    signature=words(
        "macvlan_handle_frame macvlan_start_xmit ipvlan_start_xmit ipvlan_handle_frame netkit_xmit vrf_xmit"
    ),
    checks=(device_kinds(*_KINDS),),
    contradictions=(no_device(*_KINDS),),
    tries=(Try("compare the shapes", "nsprof bench --scenario host,macvlan,veth-bridge -- netperf -t UDP_RR"),),
    source="drivers/net/macvlan.c, drivers/net/ipvlan",
    threshold="no limit of its own: runs only with such a device",
)
