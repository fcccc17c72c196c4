"""Names of data lines: the member at an offset, by C types that the test makes itself."""

from __future__ import annotations

from typing import Any

import pytest

from nsprof.vm.tcg_memory import _member

drgn = pytest.importorskip("drgn", reason="drgn is not installed")


@pytest.fixture
def struct() -> Any:
    """struct s { unsigned kind:4, flag:1; int count; struct { long a, b; } inner[2]; char tail[]; } with a hole."""
    program = drgn.Program(drgn.Platform(drgn.Architecture.X86_64))
    number = program.int_type("unsigned int", 4, False, "little")
    long = program.int_type("long", 8, True, "little")
    inner = program.struct_type(None, 16, [drgn.TypeMember(long, "a", 0), drgn.TypeMember(long, "b", 64)])
    members = [
        drgn.TypeMember(drgn.Object(program, number, bit_field_size=4), "kind", 0),
        drgn.TypeMember(drgn.Object(program, number, bit_field_size=1), "flag", 4),
        drgn.TypeMember(number, "count", 32),
        drgn.TypeMember(program.array_type(inner, 2), "inner", 128),
        drgn.TypeMember(program.array_type(program.int_type("char", 1, True, "little")), "tail", 384),
    ]
    return program.struct_type("s", 48, members)


@pytest.mark.parametrize(
    ("offset", "name"),
    [
        (0, "kind"),
        (1, ""),  # a bit field ends where it ends: what follows is not its
        (4, "count"),
        (7, "count"),
        (8, ""),  # a hole
        (16, "inner.a"),
        (24, "inner.b"),
        (32, "inner.a"),
        (47, "inner.b"),
        (48, ""),  # of a flexible array nobody knows how long it is
    ],
)
def test_the_innermost_member_at_an_offset_is_named_and_nothing_else(struct: Any, offset: int, name: str) -> None:
    assert _member(struct, offset) == name
