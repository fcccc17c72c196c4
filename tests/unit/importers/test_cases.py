"""Real files of other projects come out with their true counts (../shared/cases beside the checkout)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from nsprof.errors import ProfileFormatError
from nsprof.model.profile import Profile
from nsprof.store.importers import detect, import_file
from tests.support import CASES, need

PERF_DATA = {
    "single-event-single-process.perf.data": {"cpu-clock": 45937},
    "multi-event-single-process.perf.data": {"cpu-clock": 19789, "task-clock": 19428},
    "perf.data.callgraph_and_branch-3.4": {"cycles": 923},
    "perf.data.group_desc-4.14": {"cache-references": 7, "branch-misses": 6},
    "perf.data.piped.hw_and_sw-3.4": {"cpu-clock": 4082, "cycles": 193},
    "perf.data.lost_samples-4.4": {"cycles:pp": 97, "instructions:pp": 80, "branch-instructions:pp": 14},
    "perf.data.piped.corrupted.zero_size_sample-3.2": {},
    "perf.data.piped.header_features_aligned-6.12": {"cycles:u": 9},
    "perf.data.throttle-3.8": {"cycles": 9036, "instructions": 5944},
    "sleep.data": {"cycles:Pu": 7},
    "sleep.compressed.pipe.data": {"cycles:P": 8},
    "sleep.compressed2.data": {"cycles:Pu": 7},
    "fork.perf.data.zstd": {"cycles": 106},
}
PERF_SCRIPT = {
    "perf-iperf-stacks-pidtid-01.txt": 201,
    "perf-dd-stacks-01.txt": 11,
    "perf-java-stacks-01.txt": 46,
    "perf-numa-stacks-01.txt": 200,
    "perf-vertx-stacks-01.txt": 286,
    "perf-funcab-cmd-01.txt": 169,
    "example-perf-stacks.txt.gz": 1315,
    "cpp-stacks-std-function.txt": 46,
    "go-stacks.txt": 5,
    "single-event.txt": 1,
    "forks.linux-perf.txt": 561,
    "simple-with-pid.linux-perf.txt": 137,
    "empty-line.txt": 2,
    "weird-stack-line.txt": 2,
    "perfscript-odd-headers.txt": 7,
    "perftrace-napi-tracepoint.txt": 1,
}
FOLDED = {
    "after.txt": 80,
    "before.txt": 65,
    "bad_before.txt": 54,
    "before_fractionals.txt": 67.08439832487228,
    "recursion.txt": 10,
    "simple-crlf.txt": 14,
    "simple-utf16-le.txt": 14,
    "simple-with-invalids.txt": 14,
    "folded-bcc-ebtables-borrowed-task.folded": 3,
    "bpftrace-kstack-and-ustack.txt": 1,
}


@pytest.fixture(autouse=True)
def _cases() -> None:
    need("cases")


def case(folder: str, name: str) -> Profile:
    return import_file(CASES / folder / name)


def counts(profile: Profile) -> dict[str, int]:
    made: Counter[str] = Counter()
    for event, count in zip(profile.samples.event.tolist(), profile.samples.count.tolist(), strict=True):
        made[profile.events[event].name] += count
    return dict(made)


@pytest.mark.parametrize("name", PERF_DATA)
def test_perf_data(name: str) -> None:
    assert detect(CASES / "perf-data" / name) == "perf.data"
    assert counts(case("perf-data", name)) == PERF_DATA[name]


@pytest.mark.parametrize(("name", "total"), [("perf.data.systemwide.5-3.4", 13142), ("perf.data.armv7-3.4", 3893)])
def test_perf_data_with_six_events(name: str, total: int) -> None:
    got = counts(case("perf-data", name))
    assert (len(got), sum(got.values())) == (6, total)


def test_branch_entries_and_chain_addresses_are_counted() -> None:
    source = case("perf-data", "perf.data.callgraph_and_branch-3.4").meta["source"]
    assert (source["branch_entries"], source["chain_addresses"]) == (14768, 5068)


def test_throttling_and_losses_reach_the_reader() -> None:
    profile = case("perf-data", "perf.data.piped.hw_and_sw-3.4")
    assert (profile.meta["source"]["throttle"], profile.meta["source"]["unthrottle"]) == (22, 20)
    assert profile.runs[0].losses.throttled == 22
    lost = case("perf-data", "perf.data.lost_samples-4.4")
    assert lost.meta["source"]["lost_samples_records"] == 2
    assert lost.runs[0].losses.lost_records == 2


def test_damage_is_reported_at_its_place_and_fails_only_when_strict() -> None:
    name = CASES / "perf-data" / "perf.data.piped.corrupted.zero_size_sample-3.2"
    assert any("damaged at 0xbfd0" in note for note in import_file(name).meta["notes"])
    with pytest.raises(ProfileFormatError, match="0xbfd0"):
        import_file(name, strict=True)


def test_this_machines_kernel_is_not_used_for_another_architecture() -> None:
    for name in ("perf.data.armv7-3.4", "sleep.compressed.pipe.data"):
        profile = case("perf-data", name)
        assert not [
            n for n, k in zip(profile.frames.name, profile.frames.kind, strict=True) if k == 1 and n[:2] != "0x"
        ]
        assert any("kernel symbols: none" in note for note in profile.meta["notes"])


@pytest.mark.parametrize("name", PERF_SCRIPT)
def test_perf_script(name: str) -> None:
    assert detect(CASES / "perf-script" / name) == "perf-script"
    assert sum(counts(case("perf-script", name)).values()) == PERF_SCRIPT[name]


def test_perf_script_keeps_events_apart_and_sums_periods() -> None:
    assert counts(case("perf-script", "perf-cycles-instructions-01.txt")) == {"instructions": 333, "cycles": 111}
    assert case("perf-script", "cpp-stacks-std-function.txt").samples.weight.sum() == 80567950
    assert case("perf-script", "go-stacks.txt").samples.weight.sum() == 1250000


def test_perf_script_self_times_and_frames() -> None:
    profile = case("perf-script", "perf-iperf-stacks-pidtid-01.txt")
    leaf: Counter[str] = Counter()
    for stack, count in zip(profile.samples.stack.tolist(), profile.samples.count.tolist(), strict=True):
        leaf[profile.frames.name[profile.stacks[stack][0]]] += count
    assert leaf.most_common(1) == [("xen_hypercall_xen_version", 67)]


def test_perf_script_with_net_rx_action() -> None:
    profile = case("perf-script", "example-perf-stacks.txt.gz")
    lines = 0
    for stack, count in zip(profile.samples.stack.tolist(), profile.samples.count.tolist(), strict=True):
        lines += count * sum(profile.frames.name[f] == "net_rx_action" for f in profile.stacks[stack])
    assert lines == 132


def test_odd_headers_give_comm_with_spaces_and_count_what_they_leave_out() -> None:
    profile = case("perf-script", "perfscript-odd-headers.txt")
    assert {"CUPSManager cup", "DOM Worker", "com.google.android.apps.maps"} <= {t.comm for t in profile.tasks}
    assert set(counts(profile)) == {"cycles", "syscalls:sys_enter_brk", "kfree", "kmem:kmalloc", "cpu-clock"}
    notes = " ".join(profile.meta["notes"])
    assert "2 lines about tasks and mappings" in notes
    assert "2 lines that are neither a sample nor a frame" in notes


@pytest.mark.parametrize("name", FOLDED)
def test_folded_and_bpftrace(name: str) -> None:
    assert case("folded", name).samples.weight.sum() == pytest.approx(FOLDED[name], rel=1e-12)


def test_bad_folded_lines_are_counted_and_fail_only_when_strict() -> None:
    path = CASES / "folded" / "bad_before.txt"
    assert "1 lines that are no" in " ".join(import_file(path).meta["notes"])
    with pytest.raises(ProfileFormatError, match="1 lines"):
        import_file(path, strict=True)


def test_files_of_other_kinds_are_no_profiles() -> None:
    for path in sorted(p for f in ("netperf", "iperf3", "tbench", "profiles-text") for p in (CASES / f).iterdir()):
        with pytest.raises(ProfileFormatError, match="none of the formats"):
            import_file(Path(path))
