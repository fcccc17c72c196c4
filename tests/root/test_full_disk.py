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
