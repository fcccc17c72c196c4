"""Who may import whom (ARCHITECTURE.md), read from the source itself."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import REPO

PACKAGE = REPO / "nsprof"
GROUND = {"errors", "units", "model", "kernelnames", "netns", "files", "escape"}
ROOMS = {"topology", "workload", "collect", "vm", "store", "analyse"}
#: third party -> where it may be imported
DOORS = {
    "bcc": {"collect/bpf/bcc_door.py"},
    "pyroute2": {"topology/", "collect/"},
    "pandas": {"analyse/", "api.py"},
    "scipy": {"analyse/"},
    "pyarrow": {"store/"},
    "rich": {"render/", "cli/"},
    "click": {"cli/"},
    "pyperf": {"analyse/", "store/exporters/"},
    "drgn": {"vm/"},
    "elftools": {"collect/", "store/importers/", "vm/"},
    "zstandard": {"store/importers/"},
}


def _imports(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            if node.module == "nsprof":
                yield from ((f"nsprof.{alias.name}", node.lineno) for alias in node.names)
            else:
                yield node.module, node.lineno


def _room(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else parts[0].removesuffix(".py")


def _allowed(room: str, target: str) -> bool:
    if target in ("cli",):
        return room in ("cli", "__main__")
    if room in ("cli", "__main__", "__init__") or room not in GROUND | ROOMS | {"render"}:
        return True  # orchestrators and the command line may import everything else
    if target in ("__version__", ""):
        return True
    if room in GROUND:
        return target in GROUND
    return target in GROUND or target == room


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(REPO)))
def test_every_module_keeps_the_import_rules(path: Path) -> None:
    room, wrong = _room(path), []
    relative = str(path.relative_to(PACKAGE))
    for module, line in _imports(path):
        top, *rest = module.split(".")
        if top == "nsprof":
            target = rest[0] if rest else ""
            if not _allowed(room, target):
                wrong.append(f"{path.name}:{line} {room} imports {module}")
        elif top in DOORS and not any(relative.startswith(door) for door in DOORS[top]):
            wrong.append(f"{path.name}:{line} {top} has its door in {sorted(DOORS[top])}")
    assert not wrong, "\n".join(wrong)


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom nsprof.cli.main import main\n"
        "try:\n    main.main(['--help'], prog_name='nsprof')\nexcept SystemExit:\n    pass\n"
        "heavy = {'pandas', 'pyarrow', 'numpy', 'bcc', 'scipy', 'pyroute2', 'rich'} & set(sys.modules)\n"
        "sys.exit(f'loaded for --help: {sorted(heavy)}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Usage: nsprof" in done.stdout


def test_no_path_of_one_machine_stands_in_the_tree() -> None:
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=REPO, capture_output=True, text=True)
    if tracked.returncode != 0:
        pytest.skip("not a git checkout")
    needle = "/" + "work" + "/"
    found = [
        name
        for name in tracked.stdout.split("\0")
        if name and (REPO / name).is_file() and needle.encode() in (REPO / name).read_bytes()
    ]
    assert not found
