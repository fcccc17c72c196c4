"""perf record as the sampler of last resort."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nsprof.collect.sampling.perf_fallback import PerfRecorder
from nsprof.errors import NsprofError, PreflightError
from tests.support import need


def test_without_perf_both_ways_to_sample_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PreflightError) as caught:
        PerfRecorder(reason="BCC is not installed")
    assert "BCC is not installed" in caught.value.message
    assert "python3-bpfcc" in caught.value.hint and "linux-perf" in caught.value.hint


@pytest.mark.root
def test_a_window_gives_a_complete_file_that_goes_away_at_the_end() -> None:
    need("perf")
    with PerfRecorder(frequency_hz=499) as recorder:
        recorder.start()
        time.sleep(0.6)
        path = recorder.stop()
        assert path.stat().st_mode & 0o077 == 0
        words = ["perf", "script", "-i", str(path), "-F", "event"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert sum("cpu-clock" in line for line in done.stdout.splitlines()) > 100
    assert not path.exists()


@pytest.mark.root
def test_a_perf_that_cannot_start_is_told_in_its_words() -> None:
    need("perf")
    with PerfRecorder(events=("no-such-event",)) as recorder:
        with pytest.raises(PreflightError, match="no-such-event"):
            recorder.start()
        with pytest.raises(NsprofError, match="not started"):
            recorder.stop()


#: Starts a recording with ever more descriptors that it may have, and prints what each try left in its directory.
_WITH_FEW_FILES = """
import json, os, resource, sys, tempfile
from nsprof.collect.sampling.perf_fallback import PerfRecorder
from nsprof.errors import NsprofError

tempfile.gettempdir()  # found by making a file, once
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
lowest = os.open(os.devnull, os.O_RDONLY)
os.close(lowest)
found = []
for spare in range(12):
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + spare, most))
    try:
        with PerfRecorder() as recorder:
            recorder.start()
        end = "started"
    except (NsprofError, OSError) as error:
        end = str(error)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    found.append((end, os.listdir(tempfile.gettempdir())))
print(json.dumps(found))
"""


@pytest.mark.root
def test_too_few_files_leave_nothing_behind(tmp_path: Path) -> None:
    need("perf")
    done = subprocess.run(
        [sys.executable, "-c", _WITH_FEW_FILES],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert not [left for _, left in found if left]
    assert "Too many open files" in found[0][0]
