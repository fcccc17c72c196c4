"""Names of data lines, where the debug information of a Debian kernel is at hand: shares, known answers, bounds."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nsprof.simulate import Measurement, SimulateOptions, measure_all
from nsprof.simulate.lines import footprint
from nsprof.vm import kernels, tcg_memory
from nsprof.vm.cache import cache_dir
from tests.support import need

pytestmark = pytest.mark.vm
SPEC = "debian:6.12"


@pytest.fixture(scope="module")
def image() -> Path:
    """vmlinux with debug information; not fetched for a test's sake, since it is 700 MB."""
    need("vm", "gcc")
    pytest.importorskip("drgn", reason="drgn is not installed")
    found = sorted((cache_dir() / "debug").glob(f"linux-image-{kernels.resolve(SPEC).release}-dbg_*"))
    if not found:
        pytest.skip(f"the debug package of {SPEC} is not at hand (nsprof simulate --debug-info fetches it)")
    return kernels.debug_package(kernels.resolve(SPEC))


@pytest.fixture(scope="module")
def bridge(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Measurement:
    place = tmp_path_factory.mktemp("memory")
    options = SimulateOptions(kernels=(SPEC,), scenarios=("veth-bridge",), footprint=True, samples=3, rounds=1)
    (m,) = measure_all(replace(options, snapshot_dir=place))
    return m


@pytest.fixture
def namer(image: Path, bridge: Measurement) -> Iterator[Any]:
    assert bridge.snapshot is not None
    with bridge.snapshot.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
        yield tcg_memory._Namer(tcg_memory._program(memory, image, bridge.symbols), bridge.symbols)


def test_nearly_all_lines_have_names_and_most_slab_lines_a_member(image: Path, bridge: Measurement) -> None:
    found = footprint(bridge, image)
    assert found.named_share >= 0.9
    assert found.member_share >= 0.7


def test_functions_touch_the_structs_that_they_work_on(image: Path, bridge: Measurement) -> None:
    touched = footprint(bridge, image).by_function()
    for function, what in (
        ("fdb_find_rcu", "struct bucket_table"),
        ("br_handle_frame_finish", "struct net_bridge_fdb_entry"),
        ("br_handle_frame", "struct net_bridge_port"),
        ("veth_xmit", "struct veth_priv"),
        ("fib_table_lookup", "struct tnode"),
        ("ip_rcv_core", "struct ipstats_mib"),
        ("ip_finish_output2", "struct neighbour"),
        ("udp4_lib_lookup2", "struct udp_sock"),
    ):
        assert touched[function, what] >= 1, (function, what)
    # Neither has anything to do with the other's.
    assert touched["veth_xmit", "struct net_bridge_port"] == 0
    assert touched["fib_table_lookup", "struct udp_sock"] == 0


def test_what_a_pointer_leads_to_lies_within_one_allocated_object(namer: Any) -> None:
    from drgn.helpers.linux.slab import slab_object_info

    looked = set()
    for each in namer.typed:
        if each.kind != "typed" or tcg_memory.region_of(each.start) != "direct map":
            continue
        found = slab_object_info(namer.program, each.start)
        assert found is not None and found.allocated, each.label
        end = found.address + found.slab_cache.object_size.value_()
        assert found.address <= each.start and each.start + each.size * each.count <= end, each.label
        looked.add(each.label)
    assert {"net_device", "neighbour", "fib_info", "tnode", "in_device", "bucket_table", "veth_rq"} <= looked
