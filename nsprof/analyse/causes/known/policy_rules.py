"""Policy routing rules tried one after the other."""

from __future__ import annotations

from nsprof.analyse.causes.look import absent, datapath_more
from nsprof.analyse.causes.rule import Owned, Rule, Try, words

#: local, main and default of IPv4; local and main of IPv6.
_BUILT_IN = 5

RULE = Rule(
    name="policy-rules",
    title="policy routing rules are tried one after the other",
    what="The first rule of one's own switches off the shortcut around rules; from then on every route look-up "
    "walks the "
    "list.",
    owns=(
        Owned(
            words(
                "fib_rules_lookup __fib_lookup fib4_rule_match fib4_rule_action fib4_rule_suppress fib6_rule_lookup "
                "fib6_rule_match fib6_rule_action __fib6_rule_action fib_rule_match l3mdev_fib_rule_match"
            )
        ),
    ),
    signature=words("fib_rules_lookup __fib_lookup"),
    checks=(datapath_more("policy_rules", "policy rules"),),
    contradictions=(
        absent(lambda f: ((f.get("datapath") or {}).get("policy_rules") or 0) > _BUILT_IN, "policy rules of its own"),
    ),
    tries=(Try("merge rules by prefix, or use one table with more routes", "ip rule show"),),
    source="net/core/fib_rules.c fib_rules_lookup(); net/ipv4/fib_rules.c __fib_lookup()",
    threshold="no limit of its own: runs only where there are rules besides the three built in",
)
