"""Copies between user and kernel space."""

from __future__ import annotations

from nsprof.analyse.causes.rule import Owned, Rule, Try, words

RULE = Rule(
    name="user-copies",
    title="copies between user and kernel space cost more",
    what="The same bytes are copied more often, in worse aligned pieces, or from colder caches.",
    owns=(
        Owned(
            words(
                "copy_user_* _copy_to_iter _copy_from_iter copy_page_to_iter copy_page_from_iter "
                "rep_movs_alternative "
                "_copy_to_user _copy_from_user skb_copy_datagram_iter skb_copy_datagram_from_iter "
                "__skb_datagram_iter "
                "copyin copyout raw_copy_from_user raw_copy_to_user"
            ),
            not_under=words("copy_msghdr_from_user __sys_sendmsg_copy import_iovec move_addr_to_user"),
        ),
    ),
    fallback=True,
    tries=(Try("larger writes, MSG_ZEROCOPY, splice or sendfile", ""),),
    source="Documentation/networking/msg_zerocopy.rst",
    threshold="2 % of the base's cost",
)
