"""CPU mitigations and retpolines."""

from __future__ import annotations

from nsprof.analyse.causes.case import Side
from nsprof.analyse.causes.look import machine_differs
from nsprof.analyse.causes.rule import Owned, Rule, Try, words


def _state(side: Side) -> str:
    simulated = side.profile.meta.get("simulate")
    if isinstance(simulated, dict):
        return str(side.described.get("mitigations") or simulated.get("mitigations", ""))
    found = side.host.get("mitigations")
    return "; ".join(f"{k}: {v}" for k, v in sorted(found.items())) if isinstance(found, dict) else ""


RULE = Rule(
    name="mitigations",
    title="CPU mitigations (retpolines, return thunks, barriers)",
    what="Each indirect call and each return goes through a thunk, and every entry into the kernel runs barriers.",
    owns=(
        Owned(
            words(
                "__x86_indirect_thunk* __x86_indirect_call_thunk* __x86_indirect_jump_thunk* __x86_return_thunk "
                "srso_* "
                "retbleed_* entry_ibpb write_ibpb clear_bhb_loop zen_untrain_ret its_return_thunk call_depth_* "
                "__x86_return_skl mds_verw_sel indirect_branch_prediction_barrier"
            ),
            leaf=True,
        ),
    ),
    checks=(machine_differs(_state, "mitigations"),),
    tries=(
        Try(
            "compare with a boot without them before deciding anything",
            "mitigations=off on the kernel's command line",
        ),
    ),
    source="Documentation/admin-guide/hw-vuln/",
    threshold="2 % of the base's cost",
)
