"""What another nsprof reads about a run."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from nsprof.errors import TopologyError
from nsprof.topology import namespaces, state


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(state, "RUN", tmp_path)
    return tmp_path


def test_what_is_saved_is_read_back(run: Path) -> None:
    made = state.State("abc", shape="veth-nat", saved={"ipv6/conf/all/forwarding": "0"}, devices=["w0-abc"])
    made.own()
    made.save(new=True)
    assert state.load("abc") == made
    assert (run / "abc.json").stat().st_mode & 0o777 == 0o600
    assert [p.name for p in run.iterdir()] == ["abc.json"]


def test_a_run_id_can_be_taken_once(run: Path) -> None:
    state.State("abc", shape="host").save(new=True)
    with pytest.raises(TopologyError, match="abc is taken"):
        state.State("abc", shape="device").save(new=True)
    found = state.load("abc")
    assert found is not None and found.shape == "host"
    assert [p.name for p in run.iterdir()] == ["abc.json"]


def test_a_run_is_in_use_while_its_owner_lives_and_left_over_after(run: Path) -> None:
    mine = state.State("abc")
    mine.own()
    assert mine.condition == "in use"
    with subprocess.Popen(["true"]) as child:
        child.wait()
    mine.pid = child.pid
    assert mine.condition == "leftover"


def test_another_process_with_the_owners_pid_is_not_the_owner(run: Path) -> None:
    mine = state.State("abc")
    mine.own()
    mine.started -= 1
    assert mine.pid == os.getpid()
    assert mine.condition == "leftover"


def test_an_owner_in_another_pid_namespace_counts_as_alive(run: Path) -> None:
    mine = state.State("abc", pid=1, started=1, pid_namespace=1)
    assert mine.condition == "in use"


def test_a_topology_left_up_is_no_leftover_but_a_half_built_one_is(run: Path) -> None:
    left = state.State("abc", keep=True, complete=True)
    assert left.condition == "up"
    half = state.State("abd", keep=True, complete=False, pid_namespace=state._pid_namespace())
    assert half.condition == "leftover"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"saved": ', "\xff"])
def test_a_damaged_state_is_a_leftover_and_no_traceback(run: Path, text: str) -> None:
    (run / "abc.json").write_bytes(text.encode("latin-1"))
    assert [(s.run_id, s.condition) for s in state.load_all()] == [("abc", "leftover")]


def test_states_of_a_later_version_are_read_as_far_as_known(run: Path) -> None:
    (run / "abc.json").write_text('{"run_id": "abc", "shape": "host", "flavour": 7}')
    found = state.load("abc")
    assert found is not None and found.shape == "host"


def test_no_run_directory_means_no_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "RUN", tmp_path / "nothing")
    assert state.load_all() == []
    assert state.load("abc") is None


def test_an_unwritable_run_directory_is_told_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(state, "RUN", tmp_path / "file" / "run")
    with pytest.raises(TopologyError, match="cannot be written"):
        state.State("abc").save(new=True)


@pytest.mark.parametrize("new", [True, False])
def test_a_full_disk_leaves_no_half_written_state(run: Path, monkeypatch: pytest.MonkeyPatch, new: bool) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(json, "dump", full)
    with pytest.raises(TopologyError, match="No space left"):
        state.State("abc").save(new=new)
    assert not list(run.iterdir())


def test_an_interrupt_waits_for_the_step_and_is_raised_after() -> None:
    steps: list[int] = []

    def work(check: object) -> None:
        for step in range(200):
            steps.append(step)
            if step == 1:
                os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.005)
            check()  # type: ignore[operator]

    with pytest.raises(KeyboardInterrupt):
        namespaces.apart(work)
    assert 2 <= len(steps) < 200
    assert not [t for t in threading.enumerate() if t.name == "nsprof-topology"]


def test_an_error_of_the_work_is_raised_in_the_waiting_thread() -> None:
    def work(_: object) -> None:
        raise TopologyError("no")

    with pytest.raises(TopologyError, match="no"):
        namespaces.apart(work)


def test_a_killed_owner_that_nobody_has_waited_for_is_no_owner(run: Path) -> None:
    made = state.State("abc")
    made.own()
    with subprocess.Popen(["sleep", "60"]) as child:
        made.pid, made.started = child.pid, state.start_time(child.pid)
        assert made.condition == "in use"
        child.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 5
        # Not waited for: it is still listed, as a zombie.
        while made.alive and time.monotonic() < deadline:
            time.sleep(0.01)
        assert Path(f"/proc/{child.pid}/stat").exists()
        assert made.condition == "leftover"


def test_an_uplink_s_state_survives_the_file(run: Path) -> None:
    made = state.State("abc", uplink={"name": "eth7", "addresses": ["00ff"], "settings": {"ipv4/conf/eth7/tag": "0"}})
    made.save(new=True)
    found = state.load("abc")
    assert found is not None
    assert found.uplink == made.uplink
