"""Recorded here and now by perf: our reader and perf itself agree, and this machine's symbols are proved first."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from nsprof.model.profile import Context, FrameKind, Profile
from nsprof.store.importers import import_file
from tests.support import need

LOAD = "import os,time\nend=time.monotonic()+0.6\nwhile time.monotonic()<end:\n    os.stat('/'); os.getppid()"


def perf(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PERF_BUILDID_DIR": str(tmp_path / "buildids"), "HOME": str(tmp_path)}
    return subprocess.run(["perf", *words], cwd=tmp_path, env=environment, capture_output=True, timeout=60)


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A perf.data of a busy Python, with no build-id cache to help."""
    need("root", "perf")
    monkeypatch.setenv("PERF_BUILDID_DIR", str(tmp_path / "none"))
    words = (
        "record",
        "-q",
        "-N",
        "-e",
        "cpu-clock",
        "-g",
        "-F",
        "499",
        "-o",
        "p.data",
        "--",
        sys.executable,
        "-c",
        LOAD,
    )
    done = perf(tmp_path, *words)
    if done.returncode:
        pytest.skip(f"perf cannot record here: {done.stderr.decode(errors='replace').strip()}")
    return tmp_path / "p.data"


def kernel_leaves(profile: Profile) -> Counter[str]:
    made: Counter[str] = Counter()
    for stack, count in zip(profile.samples.stack.tolist(), profile.samples.count.tolist(), strict=True):
        leaf = profile.stacks[stack][0]
        if profile.frames.kind[leaf] == FrameKind.KERNEL:
            made[profile.frames.name[leaf]] += count
    return made


def test_counts_and_kernel_functions_are_perfs_own(recorded: Path, tmp_path: Path) -> None:
    text = perf(tmp_path, "script", "-i", "p.data").stdout
    (tmp_path / "p.txt").write_bytes(text)
    native, script = import_file(recorded), import_file(tmp_path / "p.txt")
    assert native.samples.count.sum() == script.samples.count.sum() > 20
    assert native.samples.weight.sum() == script.samples.weight.sum()
    theirs, ours = kernel_leaves(script), kernel_leaves(native)
    assert sum(ours.values()) == sum(theirs.values())
    # Aliases of one address may be chosen differently; nothing else may.
    assert sum((ours & theirs).values()) >= 0.95 * sum(ours.values())
    assert any("this machine's kallsyms (same build-id)" in n for n in native.meta["notes"])
    assert {Context.TASK, Context.USER} <= {Context(c) for c in native.samples.context.tolist()}


def test_a_recording_of_another_kernel_gets_none_of_this_ones_names(recorded: Path) -> None:
    from nsprof.store.importers.symbols import running_kernel_build_id

    raw = recorded.read_bytes()
    mine = running_kernel_build_id()
    assert mine in raw
    recorded.write_bytes(raw.replace(mine, bytes(b ^ 0x5A for b in mine)))
    profile = import_file(recorded)
    kernel = [n for n, k in zip(profile.frames.name, profile.frames.kind, strict=True) if k == FrameKind.KERNEL]
    assert kernel
    assert all(name.startswith("0xffff") for name in kernel)
    assert any("recorded on another kernel" in n for n in profile.meta["notes"])


def test_pipe_mode_and_zstd_give_the_same_kind_of_profile(tmp_path: Path) -> None:
    need("root", "perf")
    for more in (["-o", "-"], ["-z", "-o", "z.data"]):
        done = perf(
            tmp_path, "record", "-q", "-e", "cpu-clock", "-g", "-F", "499", *more, "--", sys.executable, "-c", LOAD
        )
        if done.returncode:
            pytest.skip(f"perf cannot record here: {done.stderr.decode(errors='replace').strip()}")
        file = tmp_path / "z.data"
        if more[-1] == "-":
            file = tmp_path / "pipe"
            file.write_bytes(done.stdout)
        profile = import_file(file)
        assert profile.samples.count.sum() > 20
        assert not profile.meta["source"]["damaged"]
        assert any(t.comm.startswith("python") for t in profile.tasks)
        assert kernel_leaves(profile)


@pytest.mark.parametrize("more", [[], ["-z"]])
def test_a_directory_that_perf_writes_with_threads_is_read_whole(more: list[str], tmp_path: Path) -> None:
    need("root", "perf")
    words = ["record", "-q", "-a", "-e", "cpu-clock", "-g", "-F", "499", "--threads", *more, "-o", "t.dir"]
    done = perf(tmp_path, *words, "--", sys.executable, "-c", LOAD)
    if done.returncode or not (tmp_path / "t.dir" / "data.0").exists():
        pytest.skip(f"perf record --threads cannot record here: {done.stderr.decode(errors='replace').strip()}")
    script = perf(tmp_path, "script", "-i", "t.dir", "-F", "comm,pid,tid,period,event").stdout.decode()
    lines = [line.split() for line in script.splitlines() if "cpu-clock" in line]
    profile = import_file(tmp_path / "t.dir")
    assert int(profile.samples.count.sum()) == len(lines) > 20
    assert profile.samples.weight.sum() == sum(int(line[-2]) for line in lines)
    assert profile.meta["source"]["files"] >= 2
    assert not profile.meta["source"]["damaged"]
    assert kernel_leaves(profile)
