"""What `nsprof churn` needs of a machine is said before it begins, with the package, and listed by the doctor."""

from __future__ import annotations

import shutil

import pytest

from nsprof.churn import ChurnOptions
from nsprof.collect.checks import preflight
from nsprof.errors import PreflightError


def test_a_program_that_is_not_there_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "setpriv" else f"/usr/bin/{name}")
    with pytest.raises(PreflightError, match="setpriv not found") as raised:
        ChurnOptions(namespaces=2).check()
    assert raised.value.hint == "apt install util-linux"
    ChurnOptions(namespaces=2, mount_namespaces=0).check()  # nothing is held, so nothing is lacking
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    ChurnOptions(namespaces=2).check()


def test_the_doctor_lists_what_churn_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_which", lambda name: "" if name == "setpriv" else f"/usr/bin/{name}")
    row = next(row for row in preflight._tools() if row.key == "churn")
    assert (row.state, row.detail) == ("no", "setpriv not on PATH")
    assert "util-linux" in row.remedy
    monkeypatch.setattr(preflight, "_which", lambda name: f"/usr/bin/{name}")
    assert next(row for row in preflight._tools() if row.key == "churn").state == "yes"
