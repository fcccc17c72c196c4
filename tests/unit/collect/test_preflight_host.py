"""The doctor's reasoning, and the host snapshot, without privilege."""

from __future__ import annotations

import io
import json
import sys

import pytest

from nsprof.collect.checks import preflight, trials
from nsprof.collect.checks.preflight import Check
from nsprof.collect.system import host
from nsprof.errors import PreflightError
from nsprof.render import doctor

KEYS = ("root", "system_wide", "btf", "bpf_perf_event", "bcc", "kallsyms", "perf")


def rows(**states: str) -> list[Check]:
    return [Check(k, "Sampling", k.upper(), states.get(k, "yes"), f"{k} found", "", f"mend {k}") for k in KEYS]


@pytest.mark.parametrize(
    ("lacking", "able"),
    [
        ((), True),
        (("bcc",), True),  # perf record underneath
        (("perf",), True),
        (("bcc", "perf"), False),
        (("bpf_perf_event", "system_wide"), False),
        (("kallsyms",), False),
        (("root", "perf"), False),
    ],
)
def test_recording_needs_one_of_two_ways_and_symbols(lacking: tuple[str, ...], able: bool) -> None:
    assert preflight.can_record(rows(**dict.fromkeys(lacking, "no"))) is able


def test_refusal_names_both_ways() -> None:
    with pytest.raises(PreflightError) as caught:
        preflight.demand(rows(bcc="no", perf="no"))
    assert "BCC: bcc found; PERF: perf found" in caught.value.message
    assert caught.value.hint == "mend bcc, or mend perf"
    assert caught.value.exit_code == 125
    with pytest.raises(PreflightError, match="kernel symbols"):
        preflight.demand(rows(kallsyms="no", bcc="no"))
    preflight.demand(rows())


def test_trial_reasons_are_words() -> None:
    def refuse(number: int) -> None:
        raise OSError(number, "x")

    assert trials.reason_of(lambda: None) == ""
    assert trials.reason_of(lambda: refuse(1)) == "not permitted"
    assert trials.reason_of(lambda: refuse(2)) == "the kernel has none"
    assert trials.reason_of(lambda: refuse(99)) == "x"


@pytest.mark.parametrize("width", [80, 160])
def test_table_fits_and_shows_every_word(width: int) -> None:
    shown = [Check("k", "Probes", "kprobes <b>", "no", "refused " * 9, "probes [red]x", "boot another").as_dict()]
    stream = io.StringIO()
    doctor.print_rows(shown, "verdict", stream, width=width)
    text = stream.getvalue()
    assert max(map(len, text.splitlines())) <= width
    assert "kprobes <b>" in text
    assert "prevents: probes [red]x" in text
    assert "mend: boot another" in text
    assert text.endswith("verdict\n")


def test_snapshot_is_json_and_says_what_kernel_it_is() -> None:
    shot = host.snapshot(tools=False)
    assert json.loads(json.dumps(shot)) == shot
    assert shot["kernel"]["release"]
    assert shot["namespaces"][""]["devices"]["lo"]["mtu"] >= 1500
    assert shot["cpu"]["count"] >= 1
    assert shot["tools"] == {}


def test_snapshot_with_tools_knows_this_python() -> None:
    assert host.snapshot()["tools"]["python"].startswith(f"{sys.version_info[0]}.{sys.version_info[1]}")


def test_namespaces_beyond_the_limit_are_counted() -> None:
    shot = host.snapshot({f"n{i}": None for i in range(host.MAX_NAMESPACES + 5)}, tools=False)
    assert len(shot["namespaces"]) == host.MAX_NAMESPACES
    assert shot["namespaces_left_out"] == 5


def test_namespace_that_cannot_be_entered_says_why() -> None:
    shot = host.snapshot({"gone": "/run/netns/no such thing"}, tools=False)
    assert "cannot be opened" in shot["namespaces"]["gone"]["error"]


def test_changed_names_the_keys() -> None:
    before = {"a": {"x": 1, "y": [1]}, "b": "same", "machine": {"load_average": ["0.1"]}}
    after = {"a": {"x": 2, "y": [1]}, "b": "same", "c": None, "d": {"e": 5}, "machine": {"load_average": ["9"]}}
    assert host.changed(before, after) == ("a.x", "d.e")
    assert host.changed(before, before) == ()
