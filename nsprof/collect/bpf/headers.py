"""Kernel headers for BCC, made from the running kernel's own type information (BTF).

BCC's prologue includes a handful of kernel headers. A tree in which each of them leads to one `vmlinux.h`, dumped
from `/sys/kernel/btf/vmlinux`, has the exact struct offsets of the running kernel and needs no linux-headers
package. Whoever can write the tree decides what root compiles, so the cache is private and its owner is checked.
"""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
from pathlib import Path

from nsprof.errors import PreflightError
from nsprof.files import Scratch, cache_root

__all__ = ["BTF", "header_tree", "private_directory"]

BTF = Path("/sys/kernel/btf/vmlinux")

#: Part of the cache key: raise it whenever the text below changes.
_LAYOUT = 3

#: bpftool takes a second; in a guest without KVM on a busy host it took more than 60.
_DUMP_S = 300

#: Headers that BCC's own prologue (helpers.h and friends) includes by name.
_STUBS = (
    "linux/types.h",
    "linux/bpf_common.h",
    "linux/log2.h",
    "linux/version.h",
    "linux/ptrace.h",
    "linux/sched.h",
    "linux/skbuff.h",
    "linux/netdevice.h",
    "uapi/linux/bpf.h",
    "uapi/linux/if_ether.h",
    "uapi/linux/if_packet.h",
    "uapi/linux/ptrace.h",
    "asm/page.h",
)

# Included first by BCC on the command line. The include guards keep BCC's bundled bpf.h out: BTF has the types.
_KCONFIG = """\
#ifndef NSPROF_KCONFIG_H
#define NSPROF_KCONFIG_H
#define CONFIG_BPF_SYSCALL 1
#define BPF_NO_PRESERVE_ACCESS_INDEX
#include "vmlinux.h"
#define __LINUX_BPF_H__
#define _UAPI__LINUX_BPF_H__
#define _UAPI__LINUX_BPF_COMMON_H__
#define _UAPI_LINUX_TYPES_H
#define PAGE_SHIFT {page_shift}
#define PAGE_SIZE {page_size}
#define LINUX_VERSION_CODE {version_code}
#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + ((c) > 255 ? 255 : (c)))
#define NULL ((void *)0)
#define __user
#define __percpu
#define __rcu
#define __kernel
#define BPF_F_FAST_STACK_CMP (1ULL << 9)
#define BPF_F_USER_STACK (1ULL << 8)
#define roundup_pow_of_two(n) (1UL << (64 - __builtin_clzl((n) - 1)))
{missing}#endif
"""

#: Helper numbers that BCC's helpers.h names and older kernels' BTF lacks (the kernel's uapi/linux/bpf.h).
_HELPER_IDS = {"BPF_FUNC_cgrp_storage_get": 210, "BPF_FUNC_cgrp_storage_delete": 211}


def header_tree(btf: Path = BTF, cache: Path | None = None, *, release: str = "") -> Path:
    """The header tree of a kernel, made at the first call and cached by the BTF's own digest.

    `release` is the kernel's, the running one's when empty.
    For the environment variable BCC_KERNEL_SOURCE. Raises PreflightError when the kernel has no BTF, bpftool is
    missing, or the cache directory could be written by somebody else.
    """
    try:
        content = btf.read_bytes()
    except OSError as error:
        raise PreflightError(
            f"no kernel type information: {btf}: {error.strerror}",
            "use a kernel with CONFIG_DEBUG_INFO_BTF=y (all current distribution kernels have it)",
        ) from error
    release = release or os.uname().release
    digest = hashlib.sha256(b"%d\0%s\0" % (_LAYOUT, release.encode()) + content).hexdigest()[:24]
    root = cache_root() if cache is None else cache
    private_directory(root)
    tree = root / f"headers-{digest}"
    if tree.exists():
        _check_private(tree)
        return tree
    with Scratch("headers", where=root) as work:  # 0700, and a name nobody can foresee
        _fill(work, btf, release)
        try:
            work.rename(tree)
        except OSError:
            _check_private(tree)  # another nsprof was faster; its tree is as good as ours
    return tree


def private_directory(path: Path) -> None:
    """Make a directory that is this user's alone. Raises PreflightError when it cannot be made or is not."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise PreflightError(
            f"cache directory {path} cannot be made: {error.strerror}", f"mkdir -m 700 {path}"
        ) from error
    _check_private(path)


def _check_private(path: Path) -> None:
    """Raises PreflightError unless `path` is a real directory of ours that nobody else can write."""
    info = path.lstat()
    if not stat.S_ISDIR(info.st_mode):
        raise PreflightError(f"{path} is not a directory", f"rm {path}")
    if info.st_uid != os.geteuid() or info.st_mode & 0o022:
        raise PreflightError(
            f"{path} belongs to uid {info.st_uid} with mode {stat.S_IMODE(info.st_mode):o}: "
            "others could change what is compiled into the kernel",
            f"rm -r {path}  (nsprof makes it again)",
        )


def _fill(tree: Path, btf: Path, release: str) -> None:
    include = tree / "include"
    (include / "linux").mkdir(parents=True)
    for extra in ("include/generated", "arch/x86/include/asm", "arch/arm64/include/asm"):
        (tree / extra).mkdir(parents=True)
    text = _dump(btf)
    (include / "vmlinux.h").write_bytes(text)
    missing = "".join(
        f"#define {name} {number}\n" for name, number in _HELPER_IDS.items() if name.encode() not in text
    )
    page_size = os.sysconf("SC_PAGE_SIZE")
    kconfig = _KCONFIG.format(
        page_size=page_size,
        page_shift=page_size.bit_length() - 1,
        version_code=_version_code(release),
        missing=missing,
    )
    (include / "linux" / "kconfig.h").write_text(kconfig)
    for name in _STUBS:
        stub = include / name
        stub.parent.mkdir(parents=True, exist_ok=True)
        stub.write_text('#include "vmlinux.h"\n')


def _dump(btf: Path) -> bytes:
    command = ["bpftool", "btf", "dump", "file", str(btf), "format", "c"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_DUMP_S, check=False)
    except FileNotFoundError as error:
        raise PreflightError(
            "bpftool is not installed; it turns the kernel's BTF into headers",
            "apt install bpftool (Debian) or linux-tools-common (Ubuntu)",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise PreflightError(f"bpftool did not finish dumping {btf} within {_DUMP_S} s") from error
    if done.returncode != 0 or b"struct task_struct" not in done.stdout:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        reason = words[-1] if words else f"status {done.returncode}, no struct task_struct in its output"
        raise PreflightError(f"bpftool cannot dump {btf}: {reason}", " ".join(command) + " | head")
    return done.stdout


def _version_code(release: str) -> int:
    """LINUX_VERSION_CODE of a release string such as 6.1.0-18-amd64."""
    numbers: list[int] = []
    for part in release.replace("-", ".").split(".")[:3]:
        if not part.isdigit():
            break
        numbers.append(int(part))
    major, minor, patch = (*numbers, 0, 0, 0)[:3]
    return (major << 16) + (minor << 8) + min(patch, 255)
