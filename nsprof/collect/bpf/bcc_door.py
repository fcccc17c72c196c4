"""The only place that imports BCC, and only when somebody needs it.

BCC's Python module is the distribution's package `python3-bpfcc`; it lies in the system interpreter's
`dist-packages`, which a virtual environment does not see. PyPI's project `bcc` is something else.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from nsprof.errors import PreflightError

__all__ = ["DIST_PACKAGES", "functions", "load", "tables", "version"]

#: Where distributions put Python modules of the system interpreter.
DIST_PACKAGES = ("/usr/lib/python3/dist-packages", "/usr/lib/python3/site-packages")

_HINT = "apt install python3-bpfcc (Debian, Ubuntu) or dnf install python3-bcc (Fedora)"


def load(dist_packages: tuple[str, ...] = DIST_PACKAGES) -> ModuleType:
    """BCC's `bcc` module, imported at the first call.

    The distribution's own copy is taken first, by its path, so that neither a virtual environment nor PyPI's
    unrelated `bcc` hides it; the module search path is left as it was. Raises PreflightError naming the package
    where BCC is missing, and saying so where only the unrelated package is there.
    """
    present = sys.modules.get("bcc")
    if present is not None and hasattr(present, "BPF"):
        return present
    for base in dist_packages:
        found = Path(base) / "bcc" / "__init__.py"
        if found.is_file():
            return _import_from(found)
    try:
        module = importlib.import_module("bcc")
    except ImportError as error:
        raise PreflightError(f"BCC is not installed: {error}", _HINT) from error
    if not hasattr(module, "BPF"):
        sys.modules.pop("bcc", None)
        raise PreflightError(
            f"the Python package 'bcc' at {module.__file__} is not BCC but PyPI's unrelated project of that name",
            f"pip uninstall bcc, then {_HINT}",
        )
    return module


def version(dist_packages: tuple[str, ...] = DIST_PACKAGES) -> str:
    """The text that BCC says its version with, without importing it; "" where that cannot be told."""
    for base in dist_packages:
        try:
            return (Path(base) / "bcc" / "version.py").read_text()
        except OSError:
            continue
    return ""


def functions(bpf: Any) -> list[str]:
    """Names of the functions of a BPF object of BCC."""
    lib = load().libbcc.lib
    return [lib.bpf_function_name(bpf.module, i).decode() for i in range(lib.bpf_num_functions(bpf.module))]


def tables(bpf: Any) -> dict[str, int]:
    """Descriptors of the maps of a BPF object of BCC, by name."""
    lib = load().libbcc.lib
    count, name, fd = lib.bpf_num_tables, lib.bpf_table_name, lib.bpf_table_fd_id
    count.restype, count.argtypes = ctypes.c_size_t, [ctypes.c_void_p]
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.c_void_p, ctypes.c_size_t]
    fd.restype, fd.argtypes = ctypes.c_int, [ctypes.c_void_p, ctypes.c_size_t]
    return {name(bpf.module, i).decode(): fd(bpf.module, i) for i in range(count(bpf.module))}


def _import_from(init: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("bcc", init, submodule_search_locations=[str(init.parent)])
    if spec is None or spec.loader is None:
        raise PreflightError(f"{init} cannot be imported as a Python module", _HINT)
    module = importlib.util.module_from_spec(spec)
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name == "bcc" or name.startswith("bcc.")}
    sys.modules["bcc"] = module
    try:
        spec.loader.exec_module(module)
    except (ImportError, OSError, AttributeError) as error:  # libbcc.so.0 missing, or of another version
        for name in [n for n in sys.modules if n == "bcc" or n.startswith("bcc.")]:
            del sys.modules[name]
        sys.modules.update(hidden)
        raise PreflightError(f"BCC at {init.parent} cannot be loaded: {error}", _HINT) from error
    return module
