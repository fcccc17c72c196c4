"""Under lockdown=confidentiality the ledger counts packets, copies and drops, and says what it cannot read."""

from __future__ import annotations

from nsprof.analyse.ledger import ledger
from nsprof.collect.ledger.counting import Ledger
from tests.ledger_bed import COUNT, counted, datagrams, observer, routed


def test_packets_copies_and_callers_are_counted_and_the_rest_is_named() -> None:
    with routed() as made, observer(Ledger(budget_share=0, calibrate=False)) as watching:
        seen = counted(watching, made, datagrams(made, COUNT, 1000))
        rows = {row.name: row for row in seen.profile.probes}
        for row in rows.values():
            print(row.name, row.target, row.rung, row.state, row.hits, row.reason)
        for what in sorted({line.what for line in seen.profile.ledger}):
            print(what, [(row[0], row[1]) for row in seen.lines(what)])
        assert seen.rung("queue") == seen.rung("xmit") == seen.rung("receive") == "tp_btf"
        assert "no segments, fragments" in rows["xmit"].reason
        for what, name, device in (("skb tx", "c", "eth0"), ("skb rx", "h", "pc"), ("skb rx", "r", "eth0")):
            assert (seen.calls(what, name, device), seen.size(what, name, device)) == (COUNT, COUNT * 1028)
        assert (seen.calls("copy from user", "c"), seen.size("copy from user", "c")) == (COUNT, COUNT * 1000)
        assert (seen.calls("copy to user", "r"), seen.size("copy to user", "r")) == (COUNT, COUNT * 1000)
        assert seen.calls("checksum left to device", "h", "pr") == COUNT
        assert not [line for line in seen.profile.ledger if line.what.startswith(("segments", "fragments", "GSO"))]
        report = ledger(seen.profile)
        assert report.fragmentation.startswith("Fragmentation is unknown")
        refused = [row for row in rows.values() if row.state == "refused"]
        assert refused and all(row.reason for row in refused)
        # fentry's arguments have types: functions are counted by namespace, device and bytes all the same.
        assert rows["enqueue_to_backlog"].rung == "fentry"
        assert (seen.calls("backlog", "h", "pc"), seen.size("backlog", "h", "pc")) == (COUNT, COUNT * 1028)
