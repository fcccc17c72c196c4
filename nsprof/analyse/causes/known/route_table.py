"""Route look-ups that became dearer."""

from __future__ import annotations

from nsprof.analyse.causes.look import datapath_more
from nsprof.analyse.causes.rule import Owned, Rule, Try, words

RULE = Rule(
    name="route-table",
    title="look-ups in larger route tables",
    what="The IPv4 trie grows with the logarithm of the routes, the IPv6 tree with the prefix lengths in use; "
    "each level "
    "is a cache miss.",
    owns=(
        Owned(
            words(
                "fib_table_lookup fib6_table_lookup fib6_node_lookup* fib6_select_path fib_find_node fib_get_table "
                "ip6_pol_route find_rr_leaf __find_rr_leaf fib_lookup_good_nhc"
            ),
            not_under=words("fib_rules_lookup __fib_lookup"),
        ),
    ),
    checks=(datapath_more("routes", "routes", least=100),),
    needs_check=True,
    tries=(Try("aggregate routes", "ip route show table all"),),
    source="net/ipv4/fib_trie.c; Documentation/networking/fib_trie.rst",
    threshold="100 routes more than at base: fewer fit into two levels of the trie",
)
