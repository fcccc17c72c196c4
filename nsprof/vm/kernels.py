"""Kernels to boot: what a SPEC means, where its image and modules lie.

SPEC                what it is
PATH/bzImage        an x86-64 kernel image; its modules, if any, by `modules`
PATH/ (directory)   a tree as `make modules_install`, `make install` or `dpkg -x` leaves it
debian:6.1          the newest generic kernel of the series in Debian, fetched into the cache
debian:PACKAGE      that kernel package
"""

from __future__ import annotations

import hashlib
import re
import shutil
import struct
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from nsprof.errors import UsageError, VmError
from nsprof.vm import debian
from nsprof.vm.cache import cache_dir, locked, new_directory

__all__ = ["Kernel", "debug_package", "fetch_debian", "module_index", "resolve"]


@dataclass(frozen=True)
class Kernel:
    """A kernel that can be booted.

    `modules` is the directory .../lib/modules/<release> or None (everything built in); `config` the build
    configuration (CONFIG_X -> y, m, a number or a string) where the tree has one; `package` Debian's package.
    """

    image: Path
    modules: Path | None
    release: str
    spec: str
    config: Mapping[str, str] | None = field(default=None, compare=False, repr=False)
    package: debian.Package | None = None

    def option(self, name: str) -> str | None:
        """The value of CONFIG_<name>: "y", "m", ...; "n" when not set; None when the configuration is unknown."""
        return None if self.config is None else self.config.get(f"CONFIG_{name}", "n")


def resolve(spec: str, *, modules: Path | None = None) -> Kernel:
    """The kernel that a SPEC means (see the module's table); `modules` says where a bzImage's modules lie.

    Raises UsageError for words that mean nothing, VmError for a file that is no kernel or cannot be fetched.
    """
    if spec.startswith("debian:"):
        if modules is not None:
            raise UsageError(f"--modules makes no sense with {spec}: the package has its own")
        return fetch_debian(spec.removeprefix("debian:"))
    path = Path(spec)
    if not path.exists():
        raise UsageError(
            f"kernel {spec}: no such file or directory", "give a bzImage, a directory, debian:6.1 or debian:6.12"
        )
    if path.is_dir():
        if modules is not None:
            raise UsageError(f"--modules makes no sense with a directory: {spec}/lib/modules is taken")
        return _from_directory(path.absolute(), spec)
    release = image_release(path)
    return Kernel(
        image=path.absolute(),
        modules=None if modules is None else _modules_of(modules.absolute(), release),
        release=release,
        spec=spec,
        config=_config_near(path.absolute(), release, modules),
    )


def fetch_debian(wanted: str, *, refresh: bool = False) -> Kernel:
    """Debian's kernel: a series ("6.1", "6.12") or a package's name. From the cache when it is there.

    `refresh` reads the archive's lists anew and takes what is newest now. Raises VmError.
    """
    package = None if refresh else _cached(wanted)
    if package is None:
        package = debian.find(wanted, refresh=refresh)
    tree = debian.fetch(package)
    kernel = _from_directory(tree, f"debian:{wanted}", hint=f"{package.name} is no kernel image package?")
    return Kernel(kernel.image, kernel.modules, kernel.release, kernel.spec, kernel.config, package)


def debug_package(kernel: Kernel) -> Path:
    """The vmlinux with debug information of a Debian kernel: some hundred MB are fetched, on request only.

    Raises VmError for a kernel that did not come from Debian.
    """
    if kernel.package is None:
        raise VmError(f"kernel {kernel.spec}: debug information can be fetched for Debian's kernels only")
    name = f"linux-image-{kernel.release}-dbg"
    package = debian.Package(name, kernel.package.version, kernel.package.suites)
    if not (cache_dir() / "debug" / package.key).is_dir():
        # Only the archive knows in which suite it is; the version must be the kernel's own.
        package = replace(package, suites=debian.find(name).suites)
    wanted = re.compile(rf"/vmlinux(?:-{re.escape(kernel.release)})?\Z|/kernel/(?:net/.*|drivers/net/[^/]*)\.ko\Z")
    tree = debian.debug_files(package, wanted)
    found = sorted(tree.rglob("vmlinux*"))
    if not found:
        raise VmError(f"{name}: holds no vmlinux")
    return found[0]


def _cached(wanted: str) -> debian.Package | None:
    """What an earlier call fetched for the same words: no network then, and the same kernel until `refresh`."""
    series = bool(re.match(r"\d+\.\d+\Z", wanted))
    base = cache_dir() / "kernels"
    found = []
    for each in base.glob("linux-image-*_*") if base.is_dir() else ():
        name, _, version = each.name.partition("_")
        package = debian.Package(name, version.replace("%3a", ":"), debian.SUITES[0])
        generic = name.startswith(f"linux-image-{wanted}.") and not re.search(r"-(cloud|rt)-", name)
        if generic if series else name == wanted:
            found.append((each.stat().st_mtime, package))
    return max(found, key=lambda item: item[0])[1] if found else None


def image_release(path: Path) -> str:
    """The release that an x86 bzImage says it is (boot protocol 2.00: kernel_version at 0x20e). Raises VmError."""
    try:
        with path.open("rb") as file:
            head = file.read(0x8000)
    except OSError as error:
        raise VmError(f"kernel {path}: {error.strerror}") from error
    if len(head) < 0x250 or head[0x202:0x206] != b"HdrS":
        raise VmError(f"kernel {path}: not an x86 bzImage", "a vmlinux will not do: give arch/x86/boot/bzImage")
    start = 0x200 + struct.unpack_from("<H", head, 0x20E)[0]
    text = head[start : start + 128].split(b"\0", 1)[0].decode("ascii", "replace")
    release = text.split(" ", 1)[0]
    if not re.match(r"\d+\.\d+[\w.+~-]*\Z", release):
        raise VmError(f"kernel {path}: says no release (found {release!r})")
    return release


def module_index(kernel: Kernel) -> Path | None:
    """A directory with modules.dep and its like for the kernel's modules; None when it has no modules.

    That is the modules' own directory where depmod ran; a tree from `dpkg -x` has none, so one is made in the
    cache (the tree itself is never written to). Raises VmError when depmod is missing or fails.
    """
    if kernel.modules is None or (kernel.modules / "modules.dep").exists():
        return kernel.modules
    depmod = shutil.which("depmod", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if depmod is None:
        raise VmError(f"kernel {kernel.spec}: its modules have no modules.dep and there is no depmod", "install kmod")
    stamp = f"{kernel.modules}:{kernel.modules.stat().st_mtime_ns}"
    key = f"{kernel.release}-{hashlib.sha256(stamp.encode()).hexdigest()[:16]}"
    with locked("depmod") as base:
        target = base / "depmod" / key
        if not target.is_dir():
            with new_directory(target) as part:
                _depmod(depmod, kernel, kernel.modules, part)
    return target


def _depmod(depmod: str, kernel: Kernel, modules: Path, into: Path) -> None:
    # depmod writes beside the modules; links into the tree let it write here and leave the tree alone.
    shadow = into / "shadow" / "lib" / "modules" / kernel.release
    shadow.mkdir(parents=True)
    for each in modules.iterdir():
        if each.is_dir() or each.name in ("modules.order", "modules.builtin", "modules.builtin.modinfo"):
            (shadow / each.name).symlink_to(each)
    argv = [depmod, "-b", str(into / "shadow"), kernel.release]
    done = subprocess.run(argv, capture_output=True, check=False, text=True, errors="replace", timeout=120)
    if done.returncode != 0 or not (shadow / "modules.dep").exists():
        said = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
        raise VmError(f"kernel {kernel.spec}: depmod failed: {said[0]}")
    for each in shadow.iterdir():
        if not each.is_symlink():
            each.rename(into / each.name)
    shutil.rmtree(into / "shadow")


def _from_directory(tree: Path, spec: str, hint: str = "") -> Kernel:
    images: dict[str, Path] = {}
    places = ("boot/vmlinu[xz]-*", "boot/bzImage*", "vmlinuz*", "bzImage*", "arch/x86/boot/bzImage")
    for pattern in (*places, "lib/modules/*/vmlinuz", "usr/lib/modules/*/vmlinuz"):
        for path in sorted(tree.glob(pattern)):
            if path.is_file():
                images.setdefault(image_release(path), path)
    if not images:
        raise VmError(
            f"kernel {spec}: no kernel image in boot/, lib/modules/*/ or arch/x86/boot/",
            hint or "give the bzImage itself and --modules DIR",
        )
    if len(images) > 1:
        raise UsageError(
            f"kernel {spec}: holds {len(images)} kernels ({', '.join(sorted(images))})",
            f"name one: --kernel {next(iter(images.values()))} --modules {spec}",
        )
    release, image = next(iter(images.items()))
    places_of_modules = [tree / "lib/modules" / release, tree / "usr/lib/modules" / release]
    modules = next((place for place in places_of_modules if place.is_dir()), None)
    return Kernel(image, modules, release, spec, _config_near(image, release, tree))


def _modules_of(path: Path, release: str) -> Path:
    if not path.is_dir():
        raise UsageError(f"--modules {path}: no such directory")
    for place in (path / "lib/modules" / release, path / "usr/lib/modules" / release, path / release, path):
        if (place / "kernel").is_dir() or (place / "modules.dep").exists():
            if place == path and path.name != release:
                continue  # another kernel's modules would load, or not, and break in odd ways
            return place
    raise UsageError(
        f"--modules {path}: holds no modules of {release}", f"expected {path}/lib/modules/{release} or the like"
    )


def _config_near(image: Path, release: str, tree: Path | None) -> Mapping[str, str] | None:
    places = [image.parent / f"config-{release}", image.parent / "config"]
    for top in filter(None, (tree,)):
        places += [top / "boot" / f"config-{release}", top / "lib/modules" / release / "config", top / ".config"]
    if image.parts[-4:-1] == ("arch", "x86", "boot"):
        places.append(image.parents[3] / ".config")
    for place in places:
        if place.is_file():
            return read_config(place.read_text(errors="replace"))
    return None


def read_config(text: str) -> Mapping[str, str]:
    """The set options of a kernel's .config."""
    return {
        key: value.strip('"')
        for key, separator, value in (line.partition("=") for line in text.splitlines())
        if separator and key.startswith("CONFIG_")
    }
