"""Each test of tests/vm/guest, under each kernel, as a test of its own here."""

from __future__ import annotations

import pytest

from tests.vm.suite import BOOTS, TIMEOUT_S, guest_tests, report

pytestmark = [pytest.mark.vm, pytest.mark.timeout(3 * TIMEOUT_S)]  # the first test of a boot waits for all of them

_EVERY = [(boot, test) for boot in BOOTS for test in guest_tests(boot)]


@pytest.mark.parametrize(("boot", "name"), _EVERY, ids=[f"{boot}:{test}" for boot, test in _EVERY])
def test_in_guest(boot: str, name: str, request: pytest.FixtureRequest) -> None:
    selected = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    ran = report(
        boot, {kernel: tuple(each["name"] for each in selected if each.get("boot") == kernel) for kernel in BOOTS}
    )
    cases = ran.cases.get(name)
    if not cases:
        pytest.fail(f"no result from the guest: {ran.broke_off or ran.said}")
    for case in cases:
        print(f"{case['test']}: {case['outcome']} in {case['seconds']:.2f} s\n{case['printed']}")
    failed = [case for case in cases if case["outcome"] == "failed"]
    if failed:
        pytest.fail("\n".join(f"{case['test']}\n{case['words']}" for case in failed), pytrace=False)
    if all(case["outcome"] == "skipped" for case in cases):
        pytest.skip(f"in the guest: {cases[0]['words']}")
