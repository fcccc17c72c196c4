"""Debian's kernel packages: found, verified and unpacked without touching the system's apt.

apt runs on a configuration, lists and an archive directory of its own inside nsprof's cache. So a suite that the
machine does not have (bookworm-backports) can be read, no file of the system changes, and no privilege is needed.
apt verifies the archive's signature against Debian's keyring and each package against the signed hashes.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nsprof.errors import UsageError, VmError
from nsprof.vm.cache import cache_dir, locked, new_directory

__all__ = ["Package", "debug_files", "fetch", "find", "is_package_name"]

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
DEFAULT_MIRROR = "http://deb.debian.org/debian"
SECURITY_MIRROR = "http://deb.debian.org/debian-security"
#: Tried in this order; the second only when the first does not have the package (its lists are 10 MB each).
SUITES = (
    ("bookworm", "bookworm-security", "bookworm-backports"),
    ("trixie", "trixie-security", "trixie-backports"),
)
LISTS_FRESH_S = 7 * 86400
_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+\Z")
_SERIES = re.compile(r"\d+\.\d+\Z")


@dataclass(frozen=True)
class Package:
    """One binary package as the archive's index names it."""

    name: str
    version: str
    suites: tuple[str, ...]

    @property
    def key(self) -> str:
        """A directory name for it."""
        return f"{self.name}_{self.version.replace(':', '%3a')}"


def is_package_name(word: str) -> bool:
    """Whether a word can be a Debian package's name (policy 5.6.7)."""
    return bool(_NAME.match(word))


def find(wanted: str, *, refresh: bool = False) -> Package:
    """The package that `wanted` means: a series ("6.1": its newest generic kernel) or a package's name.

    Raises VmError when apt is missing, the archive cannot be reached, or there is no such package.
    """
    if not _SERIES.match(wanted) and not is_package_name(wanted):
        raise UsageError(f"debian:{wanted}: neither a kernel series nor a package name", "try debian:6.1")
    for suites in SUITES:
        with _apt(suites, refresh=refresh) as apt:
            found = apt.newest(wanted)
        if found is not None:
            return Package(*found, suites)
    kind = "generic kernel of the series" if _SERIES.match(wanted) else "package"
    names = ", ".join(suite for suites in SUITES for suite in suites)
    raise VmError(f"debian:{wanted}: no {kind} {wanted} in {names}", "try debian:6.1 or debian:6.12")


def fetch(package: Package) -> Path:
    """The directory with the package unpacked (as `dpkg -x` leaves it), downloaded and verified if need be."""
    with locked("kernels") as base:
        target = base / "kernels" / package.key
        if not target.is_dir():
            with _apt(package.suites) as apt, new_directory(target) as part:
                archive = apt.download(package)
                try:
                    _run(["dpkg-deb", "-x", str(archive), str(part)], f"{package.name} cannot be unpacked")
                finally:
                    archive.unlink()
    return target


def debug_files(package: Package, wanted: re.Pattern[str]) -> Path:
    """The directory with those files of a (large) package whose path matches, e.g. vmlinux of a -dbg package."""
    with locked("kernels") as base:
        target = base / "debug" / package.key
        if not target.is_dir():
            with _apt(package.suites) as apt, new_directory(target) as part:
                archive = apt.download(package)
                try:
                    _unpack_some(archive, part, wanted)
                finally:
                    archive.unlink()
    return target


def _unpack_some(archive: Path, into: Path, wanted: re.Pattern[str]) -> None:
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(archive)], stdout=subprocess.PIPE) as unpacker:
        with tarfile.open(fileobj=unpacker.stdout, mode="r|") as tar:
            for member in tar:
                # By hand: extract(filter=) came with 3.11.4 only, and a path must not lead out of the directory.
                place = Path(member.name)
                if member.isfile() and wanted.search(member.name) and ".." not in place.parts:
                    content = tar.extractfile(member)
                    target = into / str(place).lstrip("/")
                    target.parent.mkdir(parents=True, exist_ok=True)
                    if content is not None:
                        with content, target.open("wb") as copy:
                            shutil.copyfileobj(content, copy)
        if unpacker.wait() != 0:
            raise VmError(f"{archive.name} cannot be unpacked: dpkg-deb ended with {unpacker.returncode}")


class _Apt:
    """apt-get and apt-cache on a private configuration."""

    def __init__(self, base: Path, suites: tuple[str, ...]) -> None:
        self.base = base
        self.suites = suites
        self.env = {"APT_CONFIG": str(base / "apt.conf"), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}

    def update(self, refresh: bool) -> None:
        stamp = self.base / "updated"
        if not refresh and stamp.exists() and time.time() - stamp.stat().st_mtime < LISTS_FRESH_S:
            return
        _run(
            ["apt-get", "-qq", "--error-on=any", "update"],
            f"Debian's package lists ({', '.join(self.suites)}) cannot be fetched",
            hint="is the network up? A kernel of your own needs none: --kernel BZIMAGE --modules DIR",
            env=self.env,
            timeout_s=300,
        )
        stamp.touch()

    def newest(self, wanted: str) -> tuple[str, str] | None:
        """Name and version of the newest package meant, None when there is none."""
        names = [wanted]
        if _SERIES.match(wanted):
            # The generic flavour only: cloud kernels have no 9p, and rt and -unsigned are other packages.
            generic = re.compile(rf"linux-image-{re.escape(wanted)}\.[0-9][0-9a-z.+~-]*(?<!cloud)(?<!rt)-amd64\Z")
            every = self._cache("pkgnames", f"linux-image-{wanted}.").split()
            names = [name for name in every if generic.match(name)]
        if not names:
            return None
        found: list[tuple[str, str]] = []
        for line in self._cache("madison", *names).splitlines():
            name, version = (part.strip() for part in line.split("|")[:2])
            found.append((name, version))
        return max(found, key=lambda item: _version_key(item[1])) if found else None

    def download(self, package: Package) -> Path:
        archives = self.base / "archives"
        with new_directory(archives / package.key) as part:
            _run(
                ["apt-get", "-qq", "download", f"{package.name}={package.version}"],
                f"{package.name} {package.version} cannot be downloaded",
                hint="run 'nsprof vm fetch' with --update: the lists may be older than the archive",
                env=self.env,
                cwd=part,
                timeout_s=1800,
            )
            files = list(part.glob("*.deb"))
            if len(files) != 1:
                raise VmError(f"{package.name}: apt-get download left {len(files)} files instead of one")
            kept = archives / files[0].name
            files[0].rename(kept)
        shutil.rmtree(archives / package.key)
        return kept

    def _cache(self, *words: str) -> str:
        return _run(["apt-cache", *words], "apt-cache failed", env=self.env)


@contextmanager
def _apt(suites: tuple[str, ...], *, refresh: bool = False) -> Iterator[_Apt]:
    for program in ("apt-get", "apt-cache", "dpkg-deb"):
        if not shutil.which(program, path="/usr/bin:/bin"):
            raise VmError(
                f"debian: kernels need {program}, which this machine does not have",
                "give a kernel of your own: --kernel BZIMAGE --modules DIR",
            )
    if not KEYRING.exists():
        raise VmError(
            f"debian: kernels cannot be verified: {KEYRING} does not exist",
            "install debian-archive-keyring (Ubuntu has it too: apt install debian-archive-keyring)",
        )
    base = cache_dir() / "apt" / suites[0]
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked("apt"):
        _configure(base, suites)
        apt = _Apt(base, suites)
        apt.update(refresh)
        yield apt


def _configure(base: Path, suites: tuple[str, ...]) -> None:
    if '"' in str(base):
        raise VmError(f"cache {base}: apt cannot take a path with quotation marks", "set NSPROF_CACHE")
    for each in ("lists/partial", "archives/partial", "empty"):
        (base / each).mkdir(mode=0o700, parents=True, exist_ok=True)
    main, security = _mirrors()
    lines = [
        f"deb [arch=amd64 signed-by={KEYRING}] {security if suite.endswith('-security') else main} {suite} main"
        for suite in suites
    ]
    (base / "sources.list").write_text("\n".join(lines) + "\n")
    settings = {
        "Dir::State": base,
        "Dir::State::lists": base / "lists",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": base,
        "Dir::Cache::pkgcache": "",  # 76 MB to save a second
        "Dir::Cache::srcpkgcache": "",
        "Dir::Etc::SourceList": base / "sources.list",
        # An empty directory instead of the system's: its hooks (packagekit, docker-clean) are not ours to run.
        **{f"Dir::Etc::{part}": base / "empty" for part in ("Parts", "SourceParts", "PreferencesParts")},
        "Dir::Etc::Preferences": "/dev/null",
        "Dir::Etc::Main": "/dev/null",
        "APT::Architecture": "amd64",
        "APT::Sandbox::User": "",  # apt's own user cannot write into a private cache
        "Acquire::Languages": "none",
        "Acquire::Retries": "2",
        "Acquire::AllowInsecureRepositories": "false",
    }
    text = "".join(f'{key} "{value}";\n' for key, value in settings.items()) + _network_settings()
    (base / "apt.conf").write_text(text)


@functools.cache
def _network_settings() -> str:
    """The machine's own proxy and TLS settings, without which its mirror may be out of reach."""
    dump = _run(["apt-config", "dump"], "apt-config failed")
    return "".join(
        f"{line}\n" for line in dump.splitlines() if re.match(r'Acquire::https?::(?!.*"";)\S+ ".*";\Z', line)
    )


def _mirrors() -> tuple[str, str]:
    """The Debian mirrors that this machine already uses: main archive, security archive."""
    main, security = "", ""
    base = Path("/etc/apt")
    for file in (base / "sources.list", *sorted((base / "sources.list.d").glob("*"))):
        if file.suffix not in (".list", ".sources") or not file.is_file():
            continue
        for url in re.findall(r"^(?:deb |URIs:).*?(https?://[^\s\]]+)", file.read_text(errors="replace"), re.M):
            if url.rstrip("/").endswith("/debian"):
                main = main or url
            elif url.rstrip("/").endswith("/debian-security"):
                security = security or url
    return main or DEFAULT_MIRROR, security or SECURITY_MIRROR


@functools.cmp_to_key
def _version_key(left: str, right: str) -> int:
    for relation, answer in (("lt", -1), ("gt", 1)):
        if subprocess.run(["dpkg", "--compare-versions", left, relation, right], check=False).returncode == 0:
            return answer
    return 0


def _run(
    argv: list[str],
    failure: str,
    *,
    hint: str = "",
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float = 120,
) -> str:
    try:
        done = subprocess.run(
            argv, env=env, cwd=cwd, timeout=timeout_s, capture_output=True, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as error:
        raise VmError(f"{failure}: no end after {timeout_s:.0f} s", hint) from error
    if done.returncode != 0:
        said = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        raise VmError(f"{failure}: {said[0].strip() if said else f'{argv[0]} ended with {done.returncode}'}", hint)
    return done.stdout.decode(errors="replace")
