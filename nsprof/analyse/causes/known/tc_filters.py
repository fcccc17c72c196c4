"""tc classifiers and actions on the path."""

from __future__ import annotations

from nsprof.analyse.causes.look import datapath_more, none_of
from nsprof.analyse.causes.rule import Owned, Rule, Try, words

RULE = Rule(
    name="tc-filters",
    title="tc filters and actions are evaluated for every packet",
    what="Filters of one priority after the other are tried until one matches; linear lists cost per filter.",
    owns=(
        Owned(
            words(
                "tcf_classify __tcf_classify tcf_classify_* tc_run tcf_action_exec sch_handle_egress "
                "sch_handle_ingress "
                "u32_classify cls_bpf_classify fl_classify basic_classify mall_classify fw_classify route4_classify "
                "tcf_* act_* fl_*"
            )
        ),
    ),
    signature=words("tcf_classify __tcf_classify u32_classify cls_bpf_classify fl_classify tc_run"),
    checks=(datapath_more("tc_filters", "tc filters"),),
    contradictions=(none_of("tc_filters", noun="tc filters"),),
    tries=(
        Try(
            "hash tables (u32 divisor, flower) or one BPF program instead of a list",
            "tc -s filter show dev DEV egress",
        ),
    ),
    source="net/sched/cls_api.c tcf_classify()",
    threshold="no limit of its own: runs only where a filter is attached",
)
