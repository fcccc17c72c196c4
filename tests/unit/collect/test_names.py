"""Names of namespaces: what control groups say, in every engine's spelling, and what is taken first."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from nsprof.collect.system import names
from nsprof.collect.system.names import Membership, membership, names_of

ID = "3f1c" * 16
POD = "0a1b2c3d-1111-2222-3333-444455556666"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (f"0::/system.slice/docker-{ID}.scope", Membership("docker", ID)),
        (f"12:memory:/docker/{ID}\n0::/", Membership("docker", ID)),
        (f"0::/docker/{ID}/init", Membership("docker", ID)),
        (
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD.replace('-', '_')}.slice"
            f"/cri-containerd-{ID}.scope",
            Membership("containerd", ID, POD),
        ),
        (
            f"0::/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/crio-{ID}.scope/container",
            Membership("crio", ID, POD),
        ),
        (f"3:cpu:/kubepods/besteffort/pod{POD}/{ID}", Membership("kubernetes", ID, POD)),
        (f"0::/system.slice/containerd.service/kubepods-pod{POD}/x", Membership("kubernetes", "", POD, "containerd")),
        (f"0::/machine.slice/libpod-{ID}.scope", Membership("podman", ID)),
        (f"0::/machine.slice/libpod-conmon-{ID}.scope", Membership()),
        (f"0::/system.slice/nerdctl-{ID}.scope", Membership("containerd", ID)),
        ("0::/lxc.payload.web-1/init.scope", Membership("lxc", "web-1")),
        ("4:devices:/lxc/web-1", Membership("lxc", "web-1")),
        ("0::/machine.slice/systemd-nspawn@box.service/payload", Membership("nspawn", "box")),
        ("0::/system.slice/nginx.service", Membership(service="nginx")),
        ("0::/system.slice/system-getty.slice/getty@tty1.service", Membership(service="getty@tty1")),
        ("0::/user.slice/user-1000.slice/session-3.scope", Membership()),
        ("0::/", Membership()),
        ("", Membership()),
    ],
)
def test_membership(path: str, expected: Membership) -> None:
    assert membership(path) == expected


class Machine:
    """A made-up /proc and /run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.process(99999, net=1, uts=1)
        (root / "proc/self/ns").mkdir(parents=True)
        (root / "proc/self/ns/uts").symlink_to("uts:[1]")

    def process(
        self, pid: int, *, net: int, uts: int = 1, cgroup: str = "0::/", comm: str = "x", host: str = ""
    ) -> None:
        folder = self.root / f"proc/{pid}"
        (folder / "ns").mkdir(parents=True)
        (folder / "ns/net").symlink_to(f"net:[{net}]")
        (folder / "ns/uts").symlink_to(f"uts:[{uts}]")
        (folder / "cgroup").write_text(cgroup)
        (folder / "comm").write_bytes(comm.encode() + b"\n")
        if host:
            (folder / "root/etc").mkdir(parents=True)
            (folder / "root/etc/hostname").write_text(host + "\n")

    def file(self, path: str, value: object) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(json.dumps(value))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_first_process_of_the_namespace_decides(machine: Machine) -> None:
    machine.process(70, net=5, cgroup="0::/system.slice/nginx.service")
    machine.process(7, net=5, cgroup=f"0::/system.slice/docker-{ID}.scope", uts=2, host=ID[:12])
    assert names_of([5], root=machine.root) == {5: f"docker:{ID[:12]}"}


def test_docker_container_by_its_name(machine: Machine) -> None:
    machine.process(7, net=5, cgroup=f"0::/docker/{ID}")
    machine.file(f"var/lib/docker/containers/{ID}/config.v2.json", {"Name": "/web <1>", "Config": {"Labels": None}})
    assert names_of([5], root=machine.root) == {5: "web <1>"}


def test_pod_by_its_containerd_annotations(machine: Machine) -> None:
    machine.process(7, net=5, cgroup=f"0::/kubepods.slice/kubepods-pod{POD}.slice/cri-containerd-{ID}.scope")
    notes = {"io.kubernetes.cri.sandbox-name": "web-7d4b9", "io.kubernetes.cri.sandbox-namespace": "shop"}
    path = f"run/containerd/io.containerd.runtime.v2.task/k8s.io/{ID}/config.json"
    machine.file(path, {"annotations": notes})
    assert names_of([5], root=machine.root) == {5: "shop/web-7d4b9"}


def test_pod_by_its_host_name_when_the_engine_does_not_say(machine: Machine) -> None:
    machine.process(7, net=5, uts=2, cgroup=f"0::/kubepods/pod{POD}/{ID}", host="web-7d4b9")
    assert names_of([5], root=machine.root) == {5: "web-7d4b9"}


def test_service_then_process_then_nothing(machine: Machine) -> None:
    machine.process(7, net=5, cgroup="0::/system.slice/private.service")
    machine.process(8, net=6, comm="sle\x1bep")
    assert names_of([5, 6, 7], root=machine.root) == {5: "private.service", 6: "sle\x1bep[8]"}


def test_initial_namespace(machine: Machine) -> None:
    machine.process(1, net=5, comm="systemd")
    machine.process(2, net=6, comm="kthreadd")
    assert names_of([5, 6], root=machine.root) == {5: "init", 6: "init [6]"}


def test_two_namespaces_never_share_a_name(machine: Machine) -> None:
    machine.process(7, net=5, uts=2, cgroup=f"0::/docker/{ID}", host="web")
    machine.process(8, net=6, uts=3, cgroup=f"0::/docker/{ID[::-1]}", host="web")
    assert names_of([5, 6], root=machine.root) == {5: "web", 6: "web [6]"}


def test_name_of_ip_netns_unless_a_machine_made_it(machine: Machine) -> None:
    folder = machine.root / "run/netns"
    folder.mkdir(parents=True)
    (folder / "my ns").write_text("")
    (folder / "cni-01234567-89ab-cdef-0123-456789abcdef").write_text("")
    plain, cni = (path.stat().st_ino for path in (folder / "my ns", next(folder.glob("cni-*"))))
    machine.process(7, net=plain, cgroup=f"0::/docker/{ID}")
    machine.process(8, net=cni, uts=2, cgroup=f"0::/kubepods/pod{POD}/{ID}", host="pod-1")
    assert names_of(root=machine.root)[plain] == "my ns"
    assert names_of(root=machine.root)[cni] == "pod-1"


def test_nothing_readable_is_no_name(tmp_path: Path) -> None:
    assert names_of([1, 2], root=tmp_path / "nowhere") == {}


def test_one_look_is_paths_and_names(tmp_path: Path) -> None:
    folder = tmp_path / "run/netns"
    folder.mkdir(parents=True)
    for name in ("b", "a", os.fsdecode(b"\xff")):
        (folder / name).touch()
    (folder / "c").hardlink_to(folder / "a")  # another name of one that has a name already
    paths, found = names.look(root=tmp_path)
    inode = {each.name: each.stat().st_ino for each in folder.iterdir()}
    assert found == {inode["a"]: "a", inode["b"]: "b", inode[os.fsdecode(b"\xff")]: "\\xff"}
    assert paths == {
        number: str(folder / os.fsdecode(name))
        for name, number in ((b"a", inode["a"]), (b"b", inode["b"]), (b"\xff", inode[os.fsdecode(b"\xff")]))
    }
    assert (paths, found) == (names.paths_of(root=tmp_path), names.names_of(root=tmp_path))
