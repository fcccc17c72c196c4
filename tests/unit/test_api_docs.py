"""The Python blocks of docs/api.md run as they stand, and so does the notebook."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nsprof import store
from tests.profiles import bench_profile
from tests.support import REPO


def test_the_blocks_of_the_page_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save(bench_profile(runs=8), tmp_path / "bench.nsprof")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", (REPO / "docs" / "api.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 6
    names: dict[str, object] = {}
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        for block in blocks:
            exec(compile(block, "docs/api.md", "exec"), names)  # noqa: S102 - the documentation's own words
    text = said.getvalue()
    assert "('host', 'veth-bridge')" in text
    assert "veth_xmit" in text
    assert "no such file" in text


@pytest.mark.timeout(200)
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    store.save(bench_profile(runs=8), tmp_path / "bench.nsprof")
    # In a process of its own: the kernel's sockets and event loops are not this test's.
    code = (
        "import sys, nbformat, nbclient\n"
        f"book = nbformat.read({str(REPO / 'examples' / 'analysis.ipynb')!r}, 4)\n"
        "nbclient.NotebookClient(book, timeout=120, kernel_name='python3',\n"
        "    resources={'metadata': {'path': sys.argv[1]}}).execute()\n"
        "nbformat.write(book, sys.argv[1] + '/done.ipynb')\n"
    )
    env = {**os.environ, "PYTHONPATH": str(REPO), "IPYTHONDIR": str(tmp_path / "ipython")}
    env["NSPROF_EXAMPLE"] = str(tmp_path / "bench.nsprof")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=190,
        env=env,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    import nbformat

    book = nbformat.read(tmp_path / "done.ipynb", 4)
    outputs = [
        output.get("text", "") or str(output.get("data", {}).get("text/plain", ""))
        for cell in book.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    ]
    assert any("veth_xmit" in text for text in outputs)
    assert any("'host', 'veth-bridge'" in text for text in outputs)
    assert not any(output.get("output_type") == "error" for c in book.cells for output in c.get("outputs", ()))


def test_the_committed_notebook_holds_no_output() -> None:
    import json

    book = json.loads((REPO / "examples" / "analysis.ipynb").read_text())
    assert all(not c["outputs"] and c["execution_count"] is None for c in book["cells"] if c["cell_type"] == "code")
