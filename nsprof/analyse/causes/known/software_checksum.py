"""Checksums in software that the device did before."""

from __future__ import annotations

from nsprof.analyse.causes.look import ledger_rises, offload_lost
from nsprof.analyse.causes.rule import Owned, Rule, Try, words

RULE = Rule(
    name="software-checksum",
    title="checksums are reckoned in software",
    what="Without checksum offload the kernel reads all payload once more to add it up, at the sender (or in "
    "the copy "
    "from the user), and once more at the receiver.",
    owns=(
        Owned(
            words(
                "skb_checksum_help skb_checksum __skb_checksum csum_partial do_csum csum_and_copy_from_iter "
                "csum_and_copy_from_iter_full csum_partial_copy_generic csum_partial_copy_from_user "
                "csum_and_copy_from_user __skb_checksum_complete __skb_checksum_complete_head "
                "skb_copy_and_csum_datagram_msg skb_copy_and_csum_datagram skb_copy_and_csum_bits "
                "csum_and_copy_to_iter csum_partial_copy_nocheck csum_and_copy_from_user_iter "
                "__skb_gro_checksum_complete "
                "csum_and_memcpy csum_partial_copy_generic_c tcp_checksum_complete udp_lib_checksum_complete"
            ),
            not_under=words("skb_segment vxlan_xmit vxlan_xmit_one vxlan_rcv nf_nat_manip_pkt icmp_send __icmp_send"),
        ),
    ),
    signature=words("skb_checksum_help skb_copy_and_csum_datagram_msg csum_and_copy_from_iter_full"),
    replaces=(
        # Where a checksum is added up in the copy, the plain copy and its check of the object's size are not called.
        Owned(
            words(
                "_copy_from_iter* copyin* __check_object_size copy_user_* rep_movs_alternative "
                "udp4_hwcsum udp6_hwcsum*"
            ),
            under=words("ip_generic_getfrag udplite_getfrag udp_send_skb udp_v6_send_skb"),
        ),
        Owned(
            words(
                "_copy_to_iter* copyout* __check_object_size simple_copy_to_iter skb_copy_datagram_iter "
                "__skb_datagram_iter copy_user_* rep_movs_alternative"
            ),
            under=words("udp_recvmsg udpv6_recvmsg"),
        ),
    ),
    checks=(
        offload_lost(
            "tx-checksum-ip-generic",
            "tx-checksum-ipv4",
            "tx-checksum-ipv6",
            "rx-checksum",
            about="a checksum offload that is on at base is off on the same device, or off on a device base has not",
        ),
        ledger_rises("checksum", least=0.5, why="a checksum every other unit of work is one where there was none"),
    ),
    tries=(Try("switch the offload on; it carries scatter-gather and TSO with it", "ethtool -K DEV tx on rx on"),),
    source="Documentation/networking/checksum-offloads.rst; source document 002 (csum_partial_copy_generic)",
    threshold="2 % of the base's cost, as for every cause",
    kernels=("csum_partial_copy_generic in the call path of copies until 5.9, csum_and_copy_from_iter_full later",),
)
