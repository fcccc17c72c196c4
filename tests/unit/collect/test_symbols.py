"""Names for addresses: every end of a range, every way in which a wrong name could come out."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from nsprof.collect.symbols.kernel import KernelSymbols
from nsprof.errors import PreflightError
from nsprof.model.profile import FrameKind

KALLSYMS = """\
0000000000000000 A fixed_percpu_data
ffffffff81000000 T _stext
ffffffff81000000 T _text
ffffffff81000000 T first_function
ffffffff81000fe0 t __pfx_udp_rcv
ffffffff81001000 T udp_rcv
ffffffff81002000 t __udp_alias
ffffffff81002000 T udp_plain
ffffffff81002000 t udp_plain.cold
ffffffff81003000 T last_function
ffffffff81003800 T _etext
ffffffff82000000 R some_table
ffffffff83000000 T _sinittext
ffffffff83000000 T init_function
ffffffff83000100 T _einittext
ffffffffc0001000 t veth_xmit\t[veth]
ffffffffc0001100 t veth_poll\t[veth]
ffffffffc0002000 t br_forward\t[bridge]
ffffffffc0100000 t bpf_prog_0123456789abcdef_on_event_0\t[bpf]
ffffffffc0100800 t bpf_prog_fedcba9876543210_others\t[bpf]
ffffffffc0101000 t bpf_trampoline_6442\t[bpf]
"""
MODULES = """\
bridge 4096 0 - Live 0xffffffffc0002000
veth 1024 0 - Live 0xffffffffc0001000
"""


@pytest.fixture
def symbols(tmp_path: Path) -> KernelSymbols:
    (tmp_path / "kallsyms").write_text(KALLSYMS)
    (tmp_path / "modules").write_text(MODULES)
    sizes = {"bpf_prog_0123456789abcdef_on_event_0": 0x200, "bpf_prog_fedcba9876543210_others": 0x100}
    return KernelSymbols(tmp_path / "kallsyms", tmp_path / "modules", program_bytes=sizes)


@pytest.mark.parametrize(
    ("address", "name", "module"),
    [
        (0xFFFFFFFF81000000, "first_function", ""),
        (0xFFFFFFFF81001000, "udp_rcv", ""),
        (0xFFFFFFFF81001FFF, "udp_rcv", ""),
        (0xFFFFFFFF81002010, "udp_plain", ""),
        (0xFFFFFFFF810037FF, "last_function", ""),
        (0xFFFFFFFF83000010, "init_function", ""),
        (0xFFFFFFFFC0001050, "veth_xmit", "veth"),
        (0xFFFFFFFFC0001150, "veth_poll", "veth"),
        (0xFFFFFFFFC0002050, "br_forward", "bridge"),
        (0xFFFFFFFFC01001FF, "bpf_prog_0123456789abcdef_on_event_0", "bpf"),
        (0xFFFFFFFFC0101010, "bpf_trampoline_6442", "bpf"),
    ],
)
def test_an_address_inside_a_function_has_its_name(
    symbols: KernelSymbols, address: int, name: str, module: str
) -> None:
    symbol = symbols.resolve(address)
    assert (symbol.name, symbol.module) == (name, module)


@pytest.mark.parametrize(
    "address",
    [
        0,
        0x7F0000001000,  # user space
        0xFFFFFFFF80FFFFFF,  # before the text
        0xFFFFFFFF81000FF0,  # padding that belongs to nobody's code
        0xFFFFFFFF81003800,  # the text's end
        0xFFFFFFFF82000010,  # data
        0xFFFFFFFF83000100,  # the init text's end
        0xFFFFFFFFC0001400,  # behind the module, before the next
        0xFFFFFFFFC0003000,  # behind the last module
        0xFFFFFFFFC0100200,  # behind a BPF program
        0xFFFFFFFFC0100900,  # behind another
        0xFFFFFFFFC0102000,  # behind the trampoline's page
        0xFFFFFFFFFFFFFFFF,
    ],
)
def test_an_address_outside_every_function_is_unknown_and_not_its_neighbour(
    symbols: KernelSymbols, address: int
) -> None:
    symbol = symbols.resolve(address)
    assert (symbol.name, symbol.kind) == ("", FrameKind.UNKNOWN)


def test_own_programs_are_told_from_those_of_others(symbols: KernelSymbols) -> None:
    assert symbols.resolve(0xFFFFFFFFC0100010).kind == FrameKind.PROFILER
    assert symbols.resolve(0xFFFFFFFFC0100810).kind == FrameKind.BPF
    assert symbols.resolve(0xFFFFFFFF81001000).kind == FrameKind.KERNEL


def test_many_addresses_at_once_give_what_one_at_a_time_gives(symbols: KernelSymbols) -> None:
    addresses = np.array([0xFFFFFFFF81001000, 5, 0xFFFFFFFFC0001150, 0xFFFFFFFF82000010], "u8")
    assert [symbols[r].name for r in symbols.rows(addresses).tolist()] == ["udp_rcv", "", "veth_poll", ""]


def test_the_address_of_a_function_by_name(symbols: KernelSymbols) -> None:
    assert symbols.address("br_forward") == 0xFFFFFFFFC0002000
    assert symbols.address("no_such_function") == 0


def test_hidden_addresses_are_an_error_that_names_the_sysctl(tmp_path: Path) -> None:
    hidden = "".join(f"0000000000000000 {line.split(' ', 1)[1]}\n" for line in KALLSYMS.splitlines())
    (tmp_path / "kallsyms").write_text(hidden)
    with pytest.raises(PreflightError) as caught:
        KernelSymbols(tmp_path / "kallsyms", tmp_path / "none", program_bytes={})
    assert "kptr_restrict" in caught.value.message
    # A value that hides nothing from root leaves the capability as the reason.
    value = Path("/proc/sys/kernel/kptr_restrict").read_text().strip()
    wanted = "CAP_SYSLOG" if value in ("0", "1") and os.geteuid() == 0 else "sysctl -w kernel.kptr_restrict=0"
    assert wanted in caught.value.hint


@pytest.mark.parametrize("content", ["", "garbage\n"])
def test_an_empty_table_is_an_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "kallsyms").write_text(content)
    with pytest.raises(PreflightError):
        KernelSymbols(tmp_path / "kallsyms", tmp_path / "none", program_bytes={})
