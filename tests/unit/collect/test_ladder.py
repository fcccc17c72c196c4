"""Where a function can be probed, which rung it gets, and what is said when it cannot."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

import pytest

from nsprof.collect.ladder import finding as ladder
from nsprof.collect.ladder.count import with_slot
from nsprof.collect.ladder.finding import Found, SymbolTable, attach, find, refusal
from nsprof.errors import ProbeError

KALLSYMS = """\
ffffffff81000010 T ip_rcv
ffffffff81000000 t __pfx_ip_rcv
ffffffff81000100 t ip_rcv_finish_core.isra.0
ffffffff81000200 T udp_rcv
ffffffff81000300 t udp_rcv.constprop.0
ffffffff81000400 t udp_rcv.cold
ffffffff81000500 t slow_path.part.0
ffffffff81000600 t twice
ffffffff81000700 t twice
ffffffff81000800 D ip_rcv_data
ffffffff81000900 T __x64_sys_getppid
ffffffff81000900 t __do_sys_getppid
ffffffffc0000000 t veth_xmit\t[veth]
ffffffffc0100000 t bpf_prog_1234_x\t[bpf]
"""


class Types:
    """BTF that knows every function under one number, but a system call under one of its names only."""

    def function(self, name: str) -> int:
        return 0 if name.startswith("__x64_sys") else 77

    def tracepoint(self, name: str) -> int:
        return 88 if name == "netif_receive_skb" else 0


@pytest.fixture
def table() -> SymbolTable:
    return SymbolTable(KALLSYMS.splitlines())


def _find(name: str, table: SymbolTable) -> Found:
    return find(name, table, Types())  # type: ignore[arg-type]


def test_plain_function_has_its_type_and_nothing_to_note(table: SymbolTable) -> None:
    assert _find("ip_rcv", table) == Found("ip_rcv", (("ip_rcv", "", 0xFFFFFFFF81000010),), 77)


def test_module_function_has_no_trampoline(table: SymbolTable) -> None:
    found = _find("veth_xmit", table)
    assert (found.module, found.btf_id) == ("veth", 0)


def test_type_is_found_under_another_name_of_the_function(table: SymbolTable) -> None:
    assert _find("__x64_sys_getppid", table).btf_id == 77


def test_only_a_variant_is_probed_and_named(table: SymbolTable) -> None:
    found = _find("ip_rcv_finish_core", table)
    assert [name for name, _, _ in found.symbols] == ["ip_rcv_finish_core.isra.0"]
    assert found.btf_id == 0
    assert "ip_rcv_finish_core.isra.0 exists: its arguments may be moved or missing" in found.notes[0]


def test_clone_beside_the_function_is_probed_too_but_not_its_cold_part(table: SymbolTable) -> None:
    found = _find("udp_rcv", table)
    assert [name for name, _, _ in found.symbols] == ["udp_rcv", "udp_rcv.constprop.0"]
    assert found.btf_id == 0  # a trampoline on one of the two would miss calls
    assert found.notes == ("the compiler's variant udp_rcv.constprop.0 is probed too",)


def test_functions_of_one_name_are_all_probed(table: SymbolTable) -> None:
    found = _find("twice", table)
    assert [address for _, _, address in found.symbols] == [0xFFFFFFFF81000600, 0xFFFFFFFF81000700]
    assert found.notes == ("2 functions have this name: all are probed",)


def test_inlined_function_is_said_to_be(table: SymbolTable) -> None:
    with pytest.raises(ProbeError, match=r"slow_path is inlined into its callers but for slow_path\.part\.0"):
        _find("slow_path", table)


@pytest.mark.parametrize(("name", "near"), [("ip_rvc", "ip_rcv"), ("veth_xmti", "veth_xmit"), ("__ip_rcv", "ip_rcv")])
def test_unknown_function_suggests_near_misses(table: SymbolTable, name: str, near: str) -> None:
    with pytest.raises(ProbeError, match=f"function {name} is not in this kernel") as caught:
        _find(name, table)
    assert f"did you mean {near}" in caught.value.hint


def test_data_padding_and_bpf_symbols_are_no_functions(table: SymbolTable) -> None:
    assert not {"ip_rcv_data", "__pfx_ip_rcv", "bpf_prog_1234_x"} & set(table.by_function)


def test_a_pattern_is_not_a_function(table: SymbolTable) -> None:
    for pattern in ("*", "ip_*", ""):
        with pytest.raises(ProbeError, match="is not in this kernel"):
            _find(pattern, table)


def test_hidden_symbols_are_said_to_be() -> None:
    hidden = SymbolTable(["0000000000000000 T ip_rcv"])
    with pytest.raises(ProbeError, match="the kernel hides its symbols") as caught:
        _find("udp_rcv", hidden)
    assert "kptr_restrict" in caught.value.hint


def _refuse(*_: object, **__: object) -> list[int]:
    raise PermissionError(errno.EPERM, "Operation not permitted")


def test_rungs_are_tried_in_order_and_refusals_kept(table: SymbolTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "attach_trampoline", _refuse)
    monkeypatch.setattr(ladder, "attach_kprobe", lambda *_, **__: [os.open(os.devnull, os.O_RDONLY)])
    with attach(_find("ip_rcv", table), {"kprobe": b"k", "fentry": b"f"}) as probe:
        assert probe.rung == "kprobe"
        assert probe.reasons[0].startswith("fentry: Operation not permitted")
        assert probe.info("x").reason.startswith("fentry: Operation not permitted")
        held = list(probe.fds)
    for fd in held:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_half_attached_rung_is_given_up_whole(table: SymbolTable, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []

    def second_fails(code: bytes, symbol: str, address: int, **_: object) -> list[int]:
        if opened:
            raise OSError(errno.EINVAL, "Invalid argument")
        opened.append(os.open(os.devnull, os.O_RDONLY))
        return [*opened]

    monkeypatch.setattr(ladder, "attach_kprobe", second_fails)
    with pytest.raises(ProbeError, match=r"twice cannot be probed: kprobe: Invalid argument: the function is closed"):
        attach(_find("twice", table), {"kprobe": b"k"})
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])


def test_module_function_goes_to_the_kprobe_saying_why(table: SymbolTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "attach_kprobe", lambda *_, **__: [])
    probe = attach(_find("veth_xmit", table), {"fentry": b"f", "kprobe": b"k"})
    assert probe.rung == "kprobe"
    assert probe.reasons == ("fentry: veth_xmit lies in module veth, whose types are apart from the kernel's",)


def test_tracepoint_comes_before_the_function_and_may_stand_alone(
    table: SymbolTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[tuple[str, int]] = []

    def tracepoint(code: bytes, point: str, type_id: int, **_: object) -> list[int]:
        tried.append((point, type_id))
        return _refuse() if type_id else []

    monkeypatch.setattr(ladder, "attach_tracepoint", tracepoint)
    types = Types()
    gone = find("netif_rcv_inlined", table, types, tracepoint="netif_receive_skb")  # type: ignore[arg-type]
    probe = attach(gone, {"tp_btf": b"t", "raw_tp": b"r", "kprobe": b"k"})
    assert probe.rung == "raw_tp"
    assert tried == [("netif_receive_skb", 88), ("netif_receive_skb", 0)]
    assert "netif_rcv_inlined is not in this kernel" in probe.info().reason
    with pytest.raises(ProbeError, match="tp_btf: ip_rcv has no tracepoint; kprobe: "):
        monkeypatch.setattr(ladder, "attach_kprobe", _refuse)
        attach(_find("ip_rcv", table), {"tp_btf": b"t", "kprobe": b"k"})


def test_lockdown_is_named_only_where_something_was_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    level = tmp_path / "lockdown"
    monkeypatch.setattr(ladder, "LOCKDOWN", level)
    denied = PermissionError(errno.EPERM, "Operation not permitted")
    assert refusal(denied) == "Operation not permitted"
    level.write_text("none integrity [confidentiality]\n")
    assert refusal(denied) == "Operation not permitted (the kernel is locked down: confidentiality)"
    assert "locked down" not in refusal(OSError(errno.EINVAL, "Invalid argument"))
    level.write_text("[none] integrity confidentiality\n")
    assert refusal(denied) == "Operation not permitted"


def test_slot_replaces_its_constant_once() -> None:
    move = struct.pack("<BBhi", 0xB7, 1, 0, 0x4E535046)
    other = struct.pack("<BBhi", 0x85, 0, 0, 0x4E535046)
    assert with_slot(other + move, 5) == other + struct.pack("<BBhi", 0xB7, 1, 0, 5)
    for wrong in (other, move + move):
        with pytest.raises(ProbeError, match="slot constant occurs"):
            with_slot(wrong, 5)
