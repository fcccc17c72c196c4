"""`nsprof import` and `nsprof export` from the command line: statuses, streams, and files left behind."""

from __future__ import annotations

import gzip
import json
import os
import resource
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

from nsprof import store
from nsprof.model.profile import Context
from nsprof.store.importers.perfdata import header as h
from tests.profiles import bench_profile
from tests.support import REPO
from tests.unit.cli.json_schema import check, interfaces
from tests.unit.importers.perfdata_file import Event, PerfData, Sample

DATA = REPO / "tests" / "data" / "importers"


def nsprof(*words: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "nsprof", *map(str, words)], input=stdin, capture_output=True, timeout=120
    )


def test_import_writes_a_profile_and_says_what_to_run_next(tmp_path: Path) -> None:
    out = tmp_path / "o.nsprof"
    done = nsprof("import", DATA / "udp_rr.data", DATA / "udp_rr.script.txt", "-o", out, "--packets", "23")
    assert done.returncode == 0, done.stderr
    assert done.stdout == b""
    assert b"58 samples" in done.stderr
    assert f"next: nsprof report {out}".encode() in done.stderr
    assert out.stat().st_mode & 0o777 == 0o600
    info = json.loads(nsprof("info", out, "--json").stdout)
    assert [r["samples"] for r in info["runs"]] == [29, 29]
    assert [r["denominators"] for r in info["runs"]] == [{"skb": 23.0}] * 2


def test_import_and_export_work_in_a_pipe(tmp_path: Path) -> None:
    out = tmp_path / "o.nsprof"
    assert nsprof("import", "-", "-o", out, stdin=b"a;b 3\na;c 4\n").returncode == 0
    done = nsprof("export", out, "--format", "folded")
    assert (done.returncode, done.stdout) == (0, b"a;b 3\na;c 4\n")


def test_a_profile_is_not_imported_but_called_one(tmp_path: Path) -> None:
    store.save(bench_profile(runs=1), tmp_path / "x.nsprof")
    before = (tmp_path / "x.nsprof").read_bytes()
    done = nsprof("import", tmp_path / "x.nsprof", "-o", tmp_path / "o.nsprof")
    assert done.returncode == 1 and not (tmp_path / "o.nsprof").exists()
    assert b"x.nsprof: is a profile of nsprof already" in done.stderr and b"report" in done.stderr
    assert b"is a profile of nsprof already" in nsprof("import", "-", "-o", tmp_path / "o", stdin=before).stderr


def test_an_export_says_what_a_report_leaves_out_of_it(tmp_path: Path) -> None:
    profile = bench_profile(runs=2, idle_s=2.0)
    store.save(profile, tmp_path / "x.nsprof")
    total = int(profile.samples.count.sum())
    counted = int(profile.samples.count[profile.samples.context != Context.IDLE].sum())
    for form, numbers in [("folded", "samples"), ("pprof", "samples and ns"), ("speedscope", "ns, no counts")]:
        done = nsprof("export", tmp_path / "x.nsprof", "-f", form, "-o", tmp_path / "o")
        said = f"{form}: {numbers}; {total:,} samples of 4 runs added up; nsprof report counts {counted:,}: no idle,"
        assert done.stderr.decode().startswith(said)
    piped = nsprof("export", tmp_path / "x.nsprof", "-f", "folded", "--scenario", "host")
    assert b"samples of 2 runs added up; nsprof report counts" in piped.stderr
    store.save(bench_profile(runs=2), tmp_path / "x.nsprof")
    assert nsprof("export", tmp_path / "x.nsprof", "-f", "folded").stderr == b""


def test_reading_commands_take_other_tools_files_directly() -> None:
    done = nsprof("export", DATA / "udp_rr.data", "--format", "raw")
    assert done.returncode == 0, done.stderr
    assert sum(int(line.rpartition(b" ")[2]) for line in done.stdout.splitlines()) == 29


def _samples(records: bytes, at: int) -> tuple[int, int]:
    """(samples among whole records, where those end) of perf.data from a place on."""
    samples = 0
    while at + 8 <= len(records) and at + struct.unpack_from("<H", records, at + 6)[0] <= len(records):
        samples += struct.unpack_from("<I", records, at)[0] == 9
        at += struct.unpack_from("<H", records, at + 6)[0]
    return samples, at


def _zstd_that_breaks() -> tuple[bytes, int]:
    """(perf.data with five samples in a compressed record and five in another that is damaged, where that is)."""
    made = PerfData([Event(h.IP | h.TID | h.TIME)])
    for n in range(5):
        made.sample(Sample(time=n))
    records, packer = made.records, zstandard.ZstdCompressor().compressobj()
    pieces = [packer.compress(records) + packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) for _ in range(2)]
    pieces[1] = b"\xff" * len(pieces[1])
    made.records = b"".join(made.pack("IHH", 81, 0, 8 + len(piece)) + piece for piece in pieces)
    whole = made.file()
    return whole, whole.index(pieces[1])


def _damaged() -> dict[str, tuple[bytes, int, bytes]]:
    """format -> (a file of it that breaks, samples before that place, words about the place)."""
    script = (DATA / "udp_rr.script.txt").read_bytes()
    cut = script.index(b"([kernel", script.index(b"\n\n", 6000) + 150)
    whole = nsprof("export", DATA / "udp_rr.data", "-f", "pprof").stdout
    pprof = gzip.decompress(whole)
    frames = {
        "shared": {"frames": [{"name": "a"}, {"name": "b"}]},
        "$schema": "speedscope.app/file-format-schema.json",
    }
    threads = [
        {"type": "sampled", "name": "t", "unit": "none", "samples": [[0, 1]] * 7, "weights": [1] * 7}
        for _ in range(3)
    ]
    speedscope = json.dumps({**frames, "profiles": threads}).encode()
    data = (DATA / "udp_rr.data").read_bytes()
    samples, at = _samples(data[:5000], struct.unpack_from("<Q", data, 40)[0])
    zstd, place = _zstd_that_breaks()
    return {
        "perf.data": (data[:5000], samples, f"damaged at {at:#x}: ".encode()),
        "zstd inside perf.data": (zstd, 5, f"damaged at {place:#x}: ".encode()),
        "perf script": (script[:cut], script[:cut].count(b"cpu-clock"), b"cut off at the end of the file"),
        "folded": (b"a;b 3\na;c\na;d 4\n", 7, b"the first is line 2"),
        "pprof": (pprof[:-30], 29, b"the protobuf message breaks at byte "),
        "gzip": (whole[:-20], 29, b"the gzip data is cut off"),
        "speedscope": (speedscope[:-40], 14, b"its JSON breaks at character"),
        "bpftrace": (b"@[\n    a+1\n    b+2\n]: 3\n@[\n    c+1\n", 3, b"cut off at the end"),
    }


@pytest.mark.parametrize("strict", [False, True])
def test_what_stands_before_damage_is_written_and_strict_makes_it_a_failure(strict: bool, tmp_path: Path) -> None:
    for number, (form, (content, samples, place)) in enumerate(_damaged().items()):
        broken, out = tmp_path / f"broken{number}", tmp_path / f"{number}.nsprof"
        broken.write_bytes(content)
        done = nsprof("import", broken, "-o", out, *(["--strict", "--quiet"] if strict else []))
        assert done.returncode == (1 if strict else 0), (form, done.stderr)
        assert place in done.stderr, (form, done.stderr)
        assert int(store.load(out).samples.count.sum()) == samples, form
        if strict:
            error, hint = done.stderr.decode().splitlines()
            assert error.startswith(f"nsprof: {broken}: ")
            assert str(out) in hint


def test_import_and_export_tell_as_json_what_they_read_and_wrote(tmp_path: Path) -> None:
    out, folded, csv = tmp_path / "o.nsprof", tmp_path / "f", tmp_path / "o.csv"
    folded.write_bytes(b"a;b 3\nbad\na;c 4\n")
    done = nsprof("import", "--json", DATA / "udp_rr.data", folded, "-o", out)
    assert (done.returncode, done.stderr) == (0, b"")
    told = json.loads(done.stdout)
    check(told, interfaces())
    assert (told["nsprof"], told["file"], told["samples"]) == ("import", str(out), 36)
    assert [(r["format"], r["samples"], r["damaged"]) for r in told["runs"]] == [
        ("perf.data", 29, False),
        ("folded", 7, True),
    ]
    assert [(e["unit"], e["samples"]) for e in told["events"]] == [("ns", 29), ("count", 7)]
    assert "line 2" in " ".join(told["notes"])
    strict = nsprof("import", "--json", "--strict", folded, "-o", tmp_path / "s.nsprof")
    assert strict.returncode == 1
    assert json.loads(strict.stdout)["samples"] == 7
    for words, samples in (((), 36), (("--scenario", "f"), 7), (("-e", "samples"), 7)):
        done = nsprof("export", "--json", out, "-f", "csv", "-o", csv, *words)
        told = json.loads(done.stdout)
        check(told, interfaces())
        assert (told["samples"], told["bytes"]) == (samples, csv.stat().st_size)
    for words in (("import", DATA / "udp_rr.data", "-o", "-"), ("export", out, "-f", "csv")):
        assert nsprof(*words, "--json").returncode == 2


@pytest.mark.parametrize(
    "words",
    [("export", "-f", "folded"), ("export", "-f", "pprof"), ("export", "-f", "parquet"), ("report",), ("info",)],
)
def test_a_reader_that_goes_away_ends_the_verb_as_sigpipe_would(words: tuple[str, ...]) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "nsprof", words[0], str(DATA / "udp_rr.data"), *words[1:]],
            stdout=write,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


def test_a_full_disk_is_one_line_and_the_earlier_file_stays(tmp_path: Path) -> None:
    out = tmp_path / "o"
    for words in (("import", "-q", "-o", out), ("export", "-f", "csv", "-o", out)):
        out.write_bytes(b"PK earlier")
        done = subprocess.run(
            [sys.executable, "-m", "nsprof", *map(str, words), str(DATA / "udp_rr.data")],
            capture_output=True,
            timeout=60,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)),
        )
        assert done.returncode == 1
        assert done.stderr.decode() == f"nsprof: {out}: cannot be written: File too large\n"
        assert out.read_bytes() == b"PK earlier"
        assert [p.name for p in tmp_path.iterdir()] == ["o"]


def test_wrong_words_are_usage_and_leave_nothing(tmp_path: Path) -> None:
    out = tmp_path / "o"
    for words in (
        ["--format", "xml"],
        ["--format", "pprof", "--root", "comm"],
        ["--format", "folded", "-e", "nothing"],
    ):
        done = nsprof("export", DATA / "udp_rr.data", "-o", out, *words)
        assert done.returncode == 2
        assert b"Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "form", "words"),
    [
        (
            b"a;b " + b"9" * 400 + b"\n",
            "folded",
            b"1 lines that are no `frames count`, left out (the first is line 1)",
        ),
        (b"a;b 0\na;c 0\n", "folded", b"no samples in it"),
        (b"main;foo 3\nmain;bar 4\n", "perf-script", b"its content looks like folded"),
        (b"some words\nand others\n", "bpftrace", b"nothing.txt"),
        (b"some words\nand others\n", "bcc-profile", b"nothing.txt"),
    ],
)
def test_text_without_a_sample_is_an_error_and_the_earlier_file_stays(
    text: bytes, form: str, words: bytes, tmp_path: Path
) -> None:
    file, out = tmp_path / "nothing.txt", tmp_path / "o.nsprof"
    file.write_bytes(text)
    for earlier in (None, b"an earlier profile"):
        if earlier is not None:
            out.write_bytes(earlier)
        done = nsprof("import", "--format", form, file, "-o", out)
        assert done.returncode == 1
        assert done.stderr.startswith(b"nsprof: ")
        assert words in done.stderr
        assert len([line for line in done.stderr.splitlines() if not line.startswith(b"  hint: ")]) == 1
        assert not done.stdout
        assert sorted(p.name for p in tmp_path.iterdir()) == ["nothing.txt", *(["o.nsprof"] if earlier else [])]
        assert earlier is None or out.read_bytes() == earlier


@pytest.mark.parametrize(("name", "frame"), [("a;b", "a:b"), ("a\nb", "a?b"), (";", ":"), ("a;b\n;c", "a:b?:c")])
@pytest.mark.parametrize("form", ["folded", "speedscope"])
def test_a_scenario_above_the_stacks_is_one_frame(form: str, name: str, frame: str, tmp_path: Path) -> None:
    folded, out = tmp_path / "f", tmp_path / "o.nsprof"
    folded.write_text("main;foo 3\nmain;bar 4\n")
    assert nsprof("import", folded, "--scenario", name, "-o", out).returncode == 0
    done = nsprof("export", out, "-f", form, "--root", "scenario", "-o", "-")
    assert done.returncode == 0
    if form == "folded":
        assert sorted(done.stdout.decode().splitlines()) == [f"{frame};main;bar 4", f"{frame};main;foo 3"]
    else:
        made = [each["name"] for each in json.loads(done.stdout)["shared"]["frames"]]
        assert len(made) == 4
        assert {"main", "foo", "bar"} < set(made)


def test_names_out_of_files_cannot_drive_the_terminal(tmp_path: Path) -> None:
    file, out = tmp_path / "a\x1b[31mb", tmp_path / "o.nsprof"
    file.write_bytes(b"a;b 3\nbroken line\n")
    done = nsprof("import", file, file, "-o", out)
    assert done.returncode == 0
    assert b"\x1b" not in done.stderr


def test_what_import_says_next_can_be_pasted_and_drives_no_terminal(tmp_path: Path) -> None:
    file, out = tmp_path / "a.folded", tmp_path / "$(id) \x1b[31m.nsprof"
    file.write_bytes(b"a;b 3\n")
    done = nsprof("import", file, "-o", out)
    assert done.returncode == 0
    assert f"next: nsprof report $'{tmp_path}/$(id) \\x1b[31m.nsprof'" in done.stderr.decode()


def test_flamegraph_is_drawn_as_the_flamegraph_command_draws_it(tmp_path: Path) -> None:
    out = tmp_path / "f.svg"
    done = nsprof("export", DATA / "udp_rr.data", "--format", "flamegraph", "-o", out)
    assert done.returncode == 0, done.stderr
    assert out.read_text().startswith(("<?xml", "<svg"))
