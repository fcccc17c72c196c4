"""The program writes in small pieces."""

from __future__ import annotations

from nsprof.analyse.causes.case import Case, Side
from nsprof.analyse.causes.look import STREAM, command_word, more, skbs_per_unit
from nsprof.analyse.causes.rule import Owned, Rule, Seen, Spread, Try, words

#: What netperf and iperf3 write at a time when they are not told (netperf: the send buffer's default size).
_DEFAULT = {"netperf": 16384.0, "iperf3": 131072.0}
#: How many skbs the same bytes take varies by a tenth by itself.
_LEAST = 1.25
_OPTIONS = {"netperf": ("-m",), "iperf3": ("-l", "--length")}


def _size(side: Side) -> float:
    """Bytes a write as the tool was told; 0 where the tool is not known."""
    return command_word(side, _OPTIONS, _DEFAULT)


def _ratio(case: Case) -> float:
    base, new = _size(case.base), _size(case.new)
    return base / new if base > 0 and new > 0 else 1.0


def _packets(case: Case) -> tuple[str, ...]:
    """Where each write is a packet (TCP_NODELAY, or nothing to wait for) the whole path is paid for once a write."""
    return STREAM if skbs_per_unit(case) >= _LEAST else ()


def _smaller(case: Case) -> Seen | None:
    ratio = _ratio(case)
    if case.per != "kb" or ratio < 2:
        return None
    return Seen(
        "workload", f"{_size(case.new):g} bytes a write (base: {_size(case.base):g}): {ratio:.3g} times as many calls"
    )


RULE = Rule(
    name="small-writes",
    title="small writes: a system call for every few bytes",
    what="The fixed cost of a system call, of the socket's lock and of the TCP push is paid once a write, "
    "whatever its "
    "size.",
    owns=(
        Owned(
            words(
                "tcp_sendmsg tcp_sendmsg_locked __sys_sendto __x64_sys_sendto ksys_write sock_write_iter "
                "sock_sendmsg "
                "inet_sendmsg do_syscall_64 entry_SYSCALL_64 entry_SYSCALL_64_after_hwframe "
                "syscall_exit_to_user_mode "
                "lock_sock_nested release_sock sockfd_lookup_light fdget x64_sys_call"
            )
        ),
    ),
    checks=(more(_smaller, "workload", "writes of half the size or less, from the tool's own words", must=True),),
    needs_check=True,
    spread=Spread(
        _ratio,
        "the fixed cost of a call, once a write",
        ("user", "syscall and socket", "TCP", "copy", "scheduling", "skid"),
        _packets,
    ),
    tries=(
        Try("write larger pieces, or gather them (sendmmsg, MSG_MORE, writev, io_uring)", "netperf ... -- -m 16384"),
    ),
    source="tcp(7); lmbench's null call",
    threshold="half the size or less",
)
