"""The last seconds of `nsprof top` as a profile: one run, with the kept samples and the counters around them."""

from __future__ import annotations

import platform
import time
from dataclasses import replace

from nsprof.collect.sampling.batch import add_batch
from nsprof.collect.symbols.kernel import KernelSymbols
from nsprof.collect.system import cputime, host, rtdump
from nsprof.errors import EvidenceError
from nsprof.model.builder import ProfileBuilder
from nsprof.model.profile import Counter, Device, Namespace, Profile, Run
from nsprof.top.devices import Devices, Key
from nsprof.top.watch import RowKey, Watch

__all__ = ["profile_of"]


def profile_of(watch: Watch, reference: RowKey | None = None) -> Profile:
    """The kept intervals as a profile of one run, scenario "top".

    Its unit is the skb of the device `reference`, else of the busiest device that was read at both ends of the time.
    Raises EvidenceError before there is a whole interval.
    """
    from nsprof import __version__

    if len(watch.moments) < 2:
        raise EvidenceError("nothing has been sampled yet", "wait for the first interval")
    first, last = watch.moments[0], watch.moments[-1]
    builder = ProfileBuilder()
    batch = watch.kept()
    if len(batch):
        # Slices are seconds since sampling began; the profile begins with its own first one.
        keys = batch.keys.copy()
        keys["slice"] -= keys["slice"].min()
        batch = replace(batch, keys=keys)
    devices = watch.devices

    def namespace(inode: int, cookie: int) -> Namespace:
        return Namespace(inode, cookie, name=_name(devices, (inode, cookie)))

    def device(inode: int, cookie: int, ifindex: int) -> Device | None:
        name = devices.labels.get((inode, cookie, ifindex))
        return Device(0, ifindex, name) if name else None

    busy = cputime.busy_seconds(first.cpu, last.cpu)
    losses = add_batch(
        builder, batch, 0, symbols=KernelSymbols(), namespace_of=namespace, device_of=device, busy_s=busy
    )
    rows = _counters(watch, builder)
    builder.counters.extend(rows)
    found = _reference(watch, builder, rows, reference)
    builder.runs.append(
        Run(
            scenario="top",
            kernel=platform.release(),
            started=first.wall,
            duration_s=last.at_s - first.at_s,
            cpus=len(busy),
            cpu_busy_s=busy,
            denominators={"skb": found[0]} if found else {},
            reference=found[1] if found else "",
            warnings=watch.notes if found else (*watch.notes, "no device carried packets all the time: no unit"),
            losses=losses,
            probes_on=("hop",) if watch.hop else (),
            own_cpu_s=last.own_s - first.own_s,
            status=0,
        )
    )
    builder.probes.extend(watch.sampler.probe_infos(batch.windows))
    builder.meta.update(
        tool={"name": "nsprof", "version": __version__},
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        host=host.snapshot({}),
        top={"seconds": last.at_s - first.at_s, "intervals": len(watch.moments) - 1},
    )
    return builder.build()


def _counters(watch: Watch, builder: ProfileBuilder) -> list[Counter]:
    """How the devices' counters moved, of namespaces that were read at both ends of the kept time."""
    first, last = watch.moments[0].counters, watch.moments[-1].counters
    rows = []
    for key in last.keys() & first.keys():
        number = _number(watch, builder, key)
        for ifindex, begin, end in zip(*last[key].since(first[key]), strict=True):
            name = watch.devices.labels.get((*key, int(ifindex)))
            if not name:
                continue
            for what, start, stop in zip(rtdump.LINK_STATS, begin.tolist(), end.tolist(), strict=True):
                if stop > start:
                    rows.append(Counter(0, "device", number, name, -1, what, float(start), float(stop - start)))
    return rows


def _number(watch: Watch, builder: ProfileBuilder, key: Key) -> int:
    return builder.namespace(Namespace(*key, name=_name(watch.devices, key)))


def _name(devices: Devices, key: Key) -> str:
    """The name that a namespace has, or had when it was read; "" where its inode is another's now."""
    if devices.keys.get(key[0], key) == key:
        return devices.names.get(key[0]) or devices.named.get(key, "")
    return devices.named.get(key, "")


def _reference(
    watch: Watch, builder: ProfileBuilder, rows: list[Counter], wanted: RowKey | None
) -> tuple[float, str] | None:
    """(skbs, words for where they were counted)."""
    moved: dict[tuple[int, str], float] = {}
    for row in rows:
        if row.name in ("rx_packets", "tx_packets"):
            moved[row.namespace, row.device] = moved.get((row.namespace, row.device), 0.0) + row.delta
    best = max(moved, key=lambda each: (each[1] != "lo", moved[each]), default=None)
    if wanted is not None and wanted[2]:
        mine = (_number(watch, builder, wanted[:2]), watch.devices.labels.get(wanted, ""))
        best = mine if mine in moved else best
    if best is None:
        return None
    label = builder.build().namespace_label(best[0])
    return moved[best], f"{best[1]} in {label} (rx + tx)"
