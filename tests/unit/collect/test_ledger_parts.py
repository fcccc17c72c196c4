"""Parts of the ledger that need no kernel: hooks, a module's types, what a socket's result means, interrupts."""

from __future__ import annotations

import signal
import struct
import threading

import numpy as np
import pytest

from nsprof.collect.bpf.btf import TypeTable
from nsprof.collect.ladder.attach import undisturbed
from nsprof.collect.ledger import lines as ledger_lines
from nsprof.collect.ledger.counting import Batch, Ledger
from nsprof.collect.ledger.names import hook_name
from nsprof.collect.ledger.probes import KEY, VALUE, Group, Probe
from nsprof.collect.symbols.kernel import KernelSymbols
from nsprof.errors import PreflightError
from nsprof.model.builder import ProfileBuilder
from nsprof.model.profile import Namespace


def blob(types: bytes, strings: bytes) -> bytes:
    return struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(strings)) + types + strings


def test_a_module_s_types_continue_those_of_its_kernel() -> None:
    strings = b"\0int\0field\0"
    base = TypeTable(blob(struct.pack("<IIII", 1, 1 << 24, 4, 32), strings))
    own = struct.pack("<III", len(strings), 4 << 24 | 1, 8) + struct.pack("<III", 5, 1, 32)  # struct, one member
    both = TypeTable(blob(own, b"own\0"), "a module", base)
    assert both.member("own", "field") == 4
    assert base.member("own", "field") is None
    assert len(both) == len(base) + 1


def test_a_module_s_types_without_their_kernel_are_refused_or_unknown() -> None:
    with pytest.raises(PreflightError, match="a module cannot be read"):
        TypeTable(b"nothing", "a module")


@pytest.mark.parametrize(
    ("family", "hook", "name"),
    [(2, 2, "IPv4 forward"), (10, 0, "IPv6 prerouting"), (3, 1, "ARP output"), (5, 1, "device egress"), (99, 9, "")],
)
def test_hooks_have_the_names_of_their_family(family: int, hook: int, name: str) -> None:
    assert hook_name(family, hook) == (name or "family 99 hook 9")


@pytest.mark.parametrize(
    ("source", "bits", "frames", "probed", "what", "size"),
    [
        ("sock_send_length", 0, ("__sys_sendto",), set(), "copy from user", 700),
        ("sock_recv_length", 0, ("sock_recvmsg",), set(), "copy to user", 700),
        ("inet_sendmsg", 0, ("sock_sendmsg",), set(), "copy from user", 700),
        ("inet_recvmsg, the task's namespace", 0, (), set(), "copy to user", 700),
        ("sock_send_length", 0, (), {"_copy_from_iter"}, "sent by user", 700),
        ("sock_recv_length", 0, (), {"_copy_from_iter"}, "copy to user", 700),
        ("sock_recv_length", 0, (), {"_copy_to_iter"}, "read by user", 700),
        ("sock_send_length", 1, (), set(), "send failed", -1),
        ("sock_send_length", 0, ("sock_sendmsg", "splice_to_socket"), set(), "pages sent without a copy", 700),
        ("sock_send_length", 2, (), set(), "copied or sent without a copy", 700),
        ("inet_sendmsg", 2, (), set(), "pages sent without a copy", 700),
        ("sock_recv_length", 4, (), set(), "read with MSG_TRUNC", 700),
    ],
)
def test_what_a_socket_s_result_says_of_copies(
    source: str, bits: int, frames: tuple[str, ...], probed: set[str], what: str, size: int
) -> None:
    builder = ProfileBuilder()
    make = ledger_lines._Maker(builder, 0, Namespace, lambda *_: None)
    value = np.array([(3, 700, 3, 700)], VALUE)[0]
    ledger_lines._copied(make, (0, 0), source, bits, value, (-1, frames), probed)
    make.finish()
    (line,) = builder.ledger
    assert (line.what, line.calls, line.value_bytes) == (what, 3, size)
    assert source in line.detail


def test_an_interrupt_waits_for_the_end_of_the_block() -> None:
    before = signal.getsignal(signal.SIGINT)
    reached = False

    def block() -> None:
        nonlocal reached
        with undisturbed():
            signal.raise_signal(signal.SIGINT)
            reached = True

    with pytest.raises(KeyboardInterrupt):
        block()
    assert reached
    assert signal.getsignal(signal.SIGINT) is before


def test_an_error_in_the_block_is_told_and_handlers_are_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(OSError, match="refused"), undisturbed():
        raise OSError("refused")
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_are_left_alone() -> None:
    done: list[bool] = []

    def work() -> None:
        with undisturbed():
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]


def test_a_pass_leaves_a_line_that_says_when_its_probe_was_shed() -> None:
    builder = ProfileBuilder()
    batch = Batch(((np.zeros(0, KEY), np.zeros(0, VALUE)),), shed_s={"queue": 0.53})
    ledger_lines.add_lines(
        builder,
        batch,
        3,
        namespace_of=lambda inode, cookie: Namespace(inode),
        device_of=lambda inode, cookie, ifindex: None,
        symbols=KernelSymbols(),
    )
    (line,) = builder.ledger
    assert (line.run, line.what, line.detail, line.calls) == (3, "probe shed", "queue at 0.5 s", 0)


def test_a_probe_s_shedding_is_said_once_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    ledger = Ledger(say=said.append)
    probe = Probe("queue", "net_dev_queue", 0, "packets", rung="tp_btf")
    ledger._groups.append(Group(None, [probe]))
    monkeypatch.setattr(Group, "remove", lambda self, gone: gone.detach())
    ledger._shed("queue", 0.219)
    info = probe.info(200.0)
    ledger._groups.clear()
    assert info.state == "shed" and "shed" not in info.reason  # whoever writes it says "shed" before it
    assert said == [f"probe queue shed {info.reason}"]
    assert list(ledger._shed_s) == ["queue"]
