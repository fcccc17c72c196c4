"""Pictures, pages and documents on a full disk: one line, the right status, the earlier file kept, nothing left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nsprof import store
from tests.profiles import bench_profile
from tests.support import need

pytestmark = pytest.mark.root
NSPROF = [sys.executable, "-m", "nsprof"]
FULL = "cannot be written: No space left on device"
#: A disk of one page, which is taken; then the command, and what there is afterwards.
SCRIPT = """
mount -t tmpfs -o size=4k none "$1" && echo earlier >"$1/out" && cd "$1" && shift || exit 99
"$@"; echo "status $?" >&2; cat out >&2; ls -A >&2
"""


def on_a_full_disk(place: Path, *words: str, **env: str) -> list[str]:
    """What was said, the status, what is in the earlier file, and which files there are."""
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", SCRIPT, "sh", str(place), *words],
        capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **env},
    )  # fmt: skip
    assert done.stdout == ""
    return done.stderr.splitlines()


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file with two scenarios, on another disk."""
    path = tmp_path_factory.mktemp("profiles") / "profile.nsprof"
    store.save(bench_profile(runs=8), path)
    return str(path)


@pytest.mark.parametrize(
    "words",
    [
        ("report", "FILE", "--html", "out"),
        ("report", "FILE", "--html", "out", "--json"),
        ("flamegraph", "FILE", "--scenario", "host", "-o", "out"),
        ("flamegraph", "--diff", "FILE", "-o", "out"),
        ("history", "FOLDER", "--svg", "out", "--json"),
        ("export", "FILE", "--scenario", "host", "--format", "speedscope", "-o", "out"),
    ],
)
def test_a_file_that_does_not_fit_leaves_the_earlier_one(
    words: tuple[str, ...], profile: str, tmp_path: Path
) -> None:
    need("root", "unshare")
    given = [{"FILE": profile, "FOLDER": str(Path(profile).parent)}.get(word, word) for word in words]
    said, *rest = on_a_full_disk(tmp_path, *NSPROF, *given)
    assert said.removeprefix("nsprof: ").removeprefix(f"{tmp_path}/") == "out: " + FULL
    assert rest == ["status 1", "earlier", "out"]


@pytest.mark.parametrize(
    "words", ["report FILE --json", "diff FILE --json", "info FILE --json", "bench --show FILE --json", "diff FILE"]
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_document_that_does_not_fit_is_said_in_one_line(
    words: str, profile: str, tmp_path: Path, unbuffered: str
) -> None:
    need("root", "unshare")
    given = [profile if word == "FILE" else word for word in words.split()]
    said, *rest = on_a_full_disk(
        tmp_path, "sh", "-c", '"$@" >second', "sh", *NSPROF, *given, PYTHONUNBUFFERED=unbuffered
    )
    assert said == "nsprof: standard output: " + FULL
    assert rest == ["status 1", "earlier", "out", "second"]  # the shell's file, as far as it got


SAVE = """
import sys, tempfile
from nsprof import store
tempfile.tempdir = sys.argv[1]
from tests.profiles import bench_profile
try:
    store.save(bench_profile(runs=8), "new.nsprof", measured=True)
except store.NsprofError as error:
    print(error.message, error.hint, sep="\\n", file=sys.stderr)
"""


def test_what_was_measured_is_kept_on_another_disk(tmp_path: Path) -> None:
    need("root", "unshare")
    full, other, home = (tmp_path / name for name in ("full", "other", "home"))
    for place in (full, other, home):
        place.mkdir()
    env = {"NSPROF_CACHE": str(home), "PYTHONPATH": str(Path(__file__).parents[2])}
    said, hint, *rest = on_a_full_disk(full, sys.executable, "-c", SAVE, str(other), **env)
    (kept,) = other.iterdir()
    assert said.endswith(f"new.nsprof: {FULL}; what was measured is in {kept}")
    assert hint == f"nsprof report {kept}"
    assert rest == ["status 0", "earlier", "out"]  # nothing of it is left on the full one
    assert store.load(kept).scenarios == bench_profile(runs=8).scenarios
    assert kept.stat().st_mode & 0o777 == 0o600
    # Where the other place is full as well, nsprof's own cache is next.
    said, *_ = on_a_full_disk(full, sys.executable, "-c", SAVE, str(full), **env)
    (kept,) = home.rglob("*.nsprof")
    assert said.endswith(f"what was measured is in {kept}")


def test_what_finds_no_room_anywhere_is_said_as_before(tmp_path: Path) -> None:
    need("root", "unshare")
    env = {"NSPROF_CACHE": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    said, *rest = on_a_full_disk(tmp_path, sys.executable, "-c", SAVE, str(tmp_path), **env)
    assert said.endswith(f"new.nsprof: {FULL}")
    assert rest == ["", "status 0", "earlier", "kept", "out"]  # an empty directory of the cache
