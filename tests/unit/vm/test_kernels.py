"""What a kernel SPEC means, and what is refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsprof.errors import UsageError, VmError
from nsprof.vm import debian
from nsprof.vm.kernels import debug_package, fetch_debian, image_release, module_index, resolve
from tests.unit.vm.trees import bzimage, kernel_tree


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSPROF_CACHE", str(tmp_path / "cache"))


def test_directory_as_dpkg_leaves_it(tmp_path: Path) -> None:
    kernel = resolve(str(kernel_tree(tmp_path / "k")))
    assert kernel.release == "6.1.99-test"
    assert kernel.image == tmp_path / "k/boot/vmlinuz-6.1.99-test"
    assert kernel.modules == tmp_path / "k/lib/modules/6.1.99-test"
    assert (kernel.option("PVH"), kernel.option("NETKIT"), kernel.option("FOO")) == ("y", "m", "n")


def test_bzimage_with_its_modules(tmp_path: Path) -> None:
    tree = kernel_tree(tmp_path / "k")
    image = tmp_path / "bzImage"
    image.write_bytes(bzimage("6.1.99-test"))
    for modules in (tree, tree / "lib/modules", tree / "lib/modules/6.1.99-test"):
        assert resolve(str(image), modules=modules).modules == tree / "lib/modules/6.1.99-test"
    assert resolve(str(image)).modules is None
    assert resolve(str(image)).option("PVH") is None


def test_build_tree_after_make(tmp_path: Path) -> None:
    image = tmp_path / "linux/arch/x86/boot/bzImage"
    image.parent.mkdir(parents=True)
    image.write_bytes(bzimage("6.9.0-rc1+"))
    (tmp_path / "linux/.config").write_text("CONFIG_PVH=y\n")
    kernel = resolve(str(tmp_path / "linux"))
    assert (kernel.release, kernel.modules, kernel.option("PVH")) == ("6.9.0-rc1+", None, "y")
    assert resolve(str(image)).option("PVH") == "y"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda top: top / "nothing", "no such file or directory"),
        (lambda top: top, "no kernel image in"),
    ],
)
def test_what_is_no_kernel_is_refused(tmp_path: Path, make: object, words: str) -> None:
    with pytest.raises((UsageError, VmError), match=words):
        resolve(str(make(tmp_path)))  # type: ignore[operator]


def test_a_vmlinux_or_a_truncated_image_is_no_bzimage(tmp_path: Path) -> None:
    for content in (b"\x7fELF" + bytes(4096), b"", b"MZ", bzimage("no release")):
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(VmError, match=r"not an x86 bzImage|says no release"):
            image_release(tmp_path / "x")


def test_two_kernels_in_a_directory_are_ambiguous(tmp_path: Path) -> None:
    tree = kernel_tree(tmp_path / "k")
    (tree / "boot/vmlinuz-6.2.0").write_bytes(bzimage("6.2.0"))
    with pytest.raises(UsageError, match=r"holds 2 kernels \(6\.1\.99-test, 6\.2\.0\)"):
        resolve(str(tree))


def test_modules_of_another_release_are_refused(tmp_path: Path) -> None:
    image = tmp_path / "bzImage"
    image.write_bytes(bzimage("6.1.98-other"))
    with pytest.raises(UsageError, match=r"holds no modules of 6\.1\.98-other"):
        resolve(str(image), modules=kernel_tree(tmp_path / "k"))


def test_modules_option_makes_no_sense_with_trees(tmp_path: Path) -> None:
    for spec in (str(kernel_tree(tmp_path / "k")), "debian:6.1"):
        with pytest.raises(UsageError, match="--modules makes no sense"):
            resolve(spec, modules=tmp_path)


@pytest.mark.parametrize("wanted", ["", "-x", "Linux Image", "../etc", "6", "a"])
def test_words_that_are_no_package_are_refused_before_apt(wanted: str) -> None:
    with pytest.raises(UsageError, match="neither a kernel series nor a package name"):
        fetch_debian(wanted)


def test_a_fetched_kernel_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("asked the archive")

    monkeypatch.setattr(debian, "find", refuse)
    kernels = tmp_path / "cache/kernels"
    kernel_tree(kernels / "linux-image-6.1.0-9-amd64_6.1.99-1", "6.1.0-9-amd64")
    kernel_tree(kernels / "linux-image-6.1.0-9-cloud-amd64_6.1.99-1", "6.1.0-9-cloud-amd64")
    kernel = fetch_debian("6.1")
    assert kernel.release == "6.1.0-9-amd64"
    assert kernel.package is not None
    assert (kernel.package.name, kernel.package.version) == ("linux-image-6.1.0-9-amd64", "6.1.99-1")
    assert fetch_debian("linux-image-6.1.0-9-cloud-amd64").release == "6.1.0-9-cloud-amd64"
    with pytest.raises(AssertionError):
        fetch_debian("6.12")


def test_debug_information_is_debians_only(tmp_path: Path) -> None:
    with pytest.raises(VmError, match="for Debian's kernels only"):
        debug_package(resolve(str(kernel_tree(tmp_path / "k"))))


def test_missing_keyring_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(debian, "KEYRING", tmp_path / "none.gpg")
    monkeypatch.setattr(debian.shutil, "which", lambda name, path=None: f"/usr/bin/{name}")
    with pytest.raises(VmError, match="cannot be verified") as caught:
        debian.find("6.1")
    assert "debian-archive-keyring" in caught.value.hint


def test_index_of_depmod_is_taken_where_it_is(tmp_path: Path) -> None:
    kernel = resolve(str(kernel_tree(tmp_path / "k")))
    assert module_index(kernel) == kernel.modules
