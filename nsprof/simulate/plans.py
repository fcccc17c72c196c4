"""The scenarios of `nsprof simulate`: the topologies of `nsprof topo`, written as steps for the minimal guest.

The names, addresses and order of steps are those of nsprof.topology (a test builds both and compares them);
added are fixed MAC addresses, since bridges and neighbours hash them, and the perturbations that show what one
more rule, port or route costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from nsprof.errors import UsageError
from nsprof.model.scenario import TopologySpec
from nsprof.topology.plan import Addresses, Macs, Names, check_spec
from nsprof.vm.guest_minimal import Hops, Plan, Step

__all__ = ["PERTURBATIONS", "SHAPES", "Perturbations", "plan_for"]

ETH = "eth0"


@dataclass(frozen=True)
class Perturbations:
    """What is changed in the host namespace on top of the scenario. All off: the scenario itself.

    `rules` netfilter rules that match no packet, on the hook that forwarded packets pass (for shape host: those
    to and from the host); `routes` more routes; `bridge_ports` more ports of br0, without traffic; `br_nf`
    loads br_netfilter and sets bridge-nf-call-iptables (IPv6: -ip6tables). `offloads` are those of `ethtool -K`,
    off where False, on both ends of every pair; `mtu` is the containers' MTU where it differs from the wire's.
    """

    rules: int = 0
    routes: int = 0
    bridge_ports: int = 0
    br_nf: bool = False
    mtu: int = 0
    offloads: Mapping[str, bool] = field(default_factory=dict)


#: What `--with` and `--sweep` take besides "containers".
PERTURBATIONS = ("rules", "routes", "bridge-ports", "br-nf", "mtu")

#: sysctl settings of every namespace; as nsprof.topology.maker has them.
_QUIET_V6 = (
    ("accept_dad", "0"),
    ("dad_transmits", "0"),
    ("accept_ra", "0"),
    ("autoconf", "0"),
    ("router_solicitations", "0"),
    ("mldv2_unsolicited_report_interval", "1"),
)


class _Builder:
    """Collects the steps of one scenario; the shapes below read like those of nsprof.topology."""

    def __init__(self, spec: TopologySpec, extra: Perturbations) -> None:
        self.spec, self.extra = spec, extra
        self.names, self.addresses = Names(), Addresses(spec.family)
        self.containers = 0
        self.steps: list[Step] = []
        self.modules: list[str] = []
        self.programs: list[str] = []
        self.client, self.client_address = "host", self.addresses.host
        self.address = self.addresses.remote
        self.inner_mtu = 0

    # -- steps

    def do(self, netns: str, *ip: str, settings: tuple[tuple[str, str], ...] = ()) -> None:
        self.steps.append(Step(netns, settings, ip))

    def prepare(self, netns: str) -> None:
        """Settings of a new namespace, before it has devices."""
        if self.spec.family == 4:
            settings = [("net/ipv6/conf/all/disable_ipv6", "1"), ("net/ipv6/conf/default/disable_ipv6", "1")]
        else:
            settings = [(f"net/ipv6/conf/default/{name}", value) for name, value in _QUIET_V6]
        self.do(netns, "link set lo up", settings=tuple(settings))

    def mtu(self, value: int) -> str:
        return f" mtu {value}" if value else ""

    def ends(self) -> None:
        """Host and remote, and the wire between them."""
        self.prepare("host")
        self.prepare("remote")
        mtu, wire = self.mtu(self.spec.mtu), self.names.wire
        self.do(
            "host",
            f"link add {wire}{mtu} address {Macs.wire} type veth "
            f"peer name {ETH}{mtu} address {Macs.remote} netns remote",
        )
        self.do("remote", f"addr add {self.addresses.remote}/{self.addresses.prefix} dev {ETH}", f"link set {ETH} up")

    def host_up(self, device: str, address: str = "", prefix: int = 0) -> None:
        lines = [f"addr add {address}/{prefix or self.addresses.prefix} dev {device}"] if address else []
        self.do("host", *lines, f"link set {device} up")

    def forward(self) -> None:
        key = "net/ipv6/conf/all/forwarding" if self.spec.family == 6 else "net/ipv4/ip_forward"
        self.do("host", settings=((key, "1"),))

    def proxy(self, *devices: str) -> None:
        settings: list[tuple[str, str]] = []
        for device in devices:
            if self.spec.family == 4:
                settings += [
                    (f"net/ipv4/conf/{device}/proxy_arp", "1"),
                    (f"net/ipv4/neigh/{device}/proxy_delay", "0"),
                ]
            else:
                settings += [
                    (f"net/ipv6/conf/{device}/proxy_ndp", "1"),
                    (f"net/ipv6/neigh/{device}/proxy_delay", "0"),
                ]
        self.do("host", settings=tuple(settings))

    def make_bridge(self) -> None:
        name = self.names.bridge
        self.do("host", f"link add {name}{self.mtu(self.spec.mtu)} address {Macs.bridge} type bridge")
        self.do("host", f"link set {name} up")

    def pairs(
        self,
        address: Callable[[int], str],
        *,
        master: str = "",
        gateway: str = "",
        prefix: int = 0,
        after: Callable[[int], list[str]] | None = None,
        netkit: bool = False,
    ) -> None:
        """All containers, each with a pair v<i> - eth0: of kind veth, or netkit."""
        count = self.spec.containers
        self.containers = count
        mtu = self.mtu(self.extra.mtu or self.inner_mtu or self.spec.mtu)
        for number in range(count):
            self.prepare(f"c{number}")
        births, afters = [], []
        for number in range(count):
            name, enslaved = self.names.pair(number), f" master {master}" if master else ""
            if netkit:  # not by `ip`, which may be too old for it
                self.steps.append(Step("host", run=(("traffic", "netkit", name, ETH, f"/run/netns/c{number}"),)))
                if mtu:
                    births.append(f"link set {name}{mtu}")
                    self.do(f"c{number}", f"link set {ETH}{mtu}")
            else:
                births.append(
                    f"link add {name}{mtu} address {Macs.pair(number)}{enslaved} type veth "
                    f"peer name {ETH}{mtu} address {Macs.container(number)} netns c{number}"
                )
            afters += after(number) if after else [f"link set {name} up"]
        self.do("host", *births)
        for number in range(count):
            lines = [f"addr add {address(number)}/{prefix or self.addresses.prefix} dev {ETH}", f"link set {ETH} up"]
            if gateway:
                lines.append(f"route add {self.addresses.whole} via {gateway} dev {ETH}")
            self.do(f"c{number}", *lines)
        self.do("host", *afters)
        self.client, self.client_address = "c0", address(0)


def _host(b: _Builder) -> None:
    b.host_up(b.names.wire, b.addresses.host)


def _device(b: _Builder) -> None:
    b.containers = 1
    b.prepare("c0")
    wire = b.names.wire
    b.do("host", f"link set {wire} netns c0")
    b.do("c0", f"addr add {b.addresses.container(0)}/{b.addresses.prefix} dev {wire}", f"link set {wire} up")
    b.client, b.client_address = "c0", b.addresses.container(0)


def _route_to_containers(b: _Builder, *, table: int = 254, master: str = "", netkit: bool = False) -> None:
    a = b.addresses
    b.host_up(b.names.wire, a.host)
    b.proxy(b.names.wire)
    b.forward()

    def after(number: int) -> list[str]:
        name = b.names.pair(number)
        lines = [
            f"addr add {a.pair(number)}/{a.full} dev {name}",
            f"link set {name} up",
            f"route add {a.container(number)}/{a.full} dev {name} table {table}",
        ]
        if a.family == 6:
            lines.append(f"neigh add proxy {a.container(number)} dev {b.names.wire}")
            if not netkit:
                lines.append(f"neigh add proxy {a.remote} dev {name}")
        return lines

    b.pairs(a.container, master=master, after=after, netkit=netkit)
    if not netkit:
        b.proxy(*(b.names.pair(n) for n in range(b.spec.containers)))


def _veth_route(b: _Builder) -> None:
    _route_to_containers(b)


def _netkit(b: _Builder) -> None:
    _route_to_containers(b, netkit=True)


def _veth_bridge(b: _Builder) -> None:
    b.make_bridge()
    b.do("host", f"link set {b.names.wire} master {b.names.bridge} up")
    b.host_up(b.names.bridge, b.addresses.host)
    b.pairs(b.addresses.container, master=b.names.bridge)


def _veth_bridge_route(b: _Builder) -> None:
    _bridge_and_route(b, told=True)


def _bridge_and_route(b: _Builder, *, told: bool) -> None:
    """A bridge with a network of its own, routed to the wire; `told` gives the remote end the route back."""
    a = b.addresses
    b.host_up(b.names.wire, a.host)
    b.make_bridge()
    b.host_up(b.names.bridge, a.pod_gateway)
    b.forward()
    if told:
        b.do("remote", f"route add {a.pods} via {a.host} dev {ETH}")
    b.pairs(a.pod, master=b.names.bridge, gateway=a.pod_gateway)


def _vrf(b: _Builder) -> None:
    name = b.names.vrf
    b.modules.append("vrf")
    b.do("host", f"link add {name} address 02:00:00:00:00:0c type vrf table 1001", f"link set {name} up")
    b.do("host", f"link set {b.names.wire} master {name}")
    _route_to_containers(b, table=1001, master=name)


def _children(b: _Builder, kind: str) -> None:
    """Containers whose eth0 is a child of the wire."""
    b.modules.append(kind)
    b.host_up(b.names.wire, b.addresses.host)
    b.containers = b.spec.containers
    for number in range(b.spec.containers):
        b.prepare(f"c{number}")
        mac = f" address {Macs.container(number)}" if kind == "macvlan" else ""
        mode = "bridge" if kind == "macvlan" else "l2"
        b.do("host", f"link add link {b.names.wire} name {ETH}{mac} netns c{number} type {kind} mode {mode}")
        address = f"{b.addresses.container(number)}/{b.addresses.prefix}"
        b.do(f"c{number}", f"addr add {address} dev {ETH}", f"link set {ETH} up")
    b.client, b.client_address = "c0", b.addresses.container(0)


def _macvlan(b: _Builder) -> None:
    _children(b, "macvlan")


def _ipvlan(b: _Builder) -> None:
    _children(b, "ipvlan")


def _veth_nat(b: _Builder) -> None:
    b.modules += ["nf_tables", "nf_conntrack", "nft_chain_nat", "nft_masq"]
    b.programs.append("nft")
    _bridge_and_route(b, told=False)
    family = "ip" if b.spec.family == 4 else "ip6"
    rules = (
        f"add table {family} nat; "
        f"add chain {family} nat postrouting {{ type nat hook postrouting priority srcnat ; policy accept ; }}; "
        f'add rule {family} nat postrouting {family} saddr {b.addresses.pods} oifname "{b.names.wire}" masquerade'
    )
    b.steps.append(Step("host", run=(("nft", rules),)))


def _vxlan(b: _Builder) -> None:
    a, names = b.addresses, b.names
    b.modules.append("vxlan")
    mtu = (b.spec.mtu or 1500) - (50 if b.spec.family == 4 else 70)
    b.host_up(names.wire, a.host)
    b.make_bridge()

    def tunnel(name: str, mac: str, local: str, remote: str, device: str) -> str:
        ends = f"local {local} remote {remote} dev {device}"
        return f"link add {name} mtu {mtu} address {mac} type vxlan id 18 {ends} dstport 4789 learning"

    b.do("host", tunnel(names.vxlan, Macs.vxlan, a.host, a.remote, names.wire))
    b.do("host", f"link set {names.vxlan} master {names.bridge} up")
    b.do("remote", tunnel("vx0", Macs.remote_vxlan, a.remote, a.host, ETH))
    b.do("remote", f"addr add {a.pod_gateway}/{a.prefix} dev vx0", "link set vx0 up")
    b.address = a.pod_gateway
    b.inner_mtu = mtu
    b.pairs(a.pod, master=names.bridge)


SHAPES: dict[str, Callable[[_Builder], None]] = {
    "host": _host,
    "device": _device,
    "veth-route": _veth_route,
    "netkit": _netkit,
    "veth-bridge": _veth_bridge,
    "veth-bridge-route": _veth_bridge_route,
    "veth-nat": _veth_nat,
    "macvlan": _macvlan,
    "ipvlan": _ipvlan,
    "vrf": _vrf,
    "vxlan": _vxlan,
}


def _perturb(b: _Builder) -> None:
    extra = b.extra
    if extra.bridge_ports:
        if "bridge" not in b.spec.shape:
            raise UsageError(f"bridge-ports: scenario {b.spec.shape} has no bridge", "take veth-bridge")
        b.modules.append("dummy")
        lines = []
        for number in range(extra.bridge_ports):
            mac = f"02:00:00:03:{number >> 8:02x}:{number & 255:02x}"
            lines += [
                f"link add p{number} address {mac} type dummy",
                f"link set p{number} master {b.names.bridge} up",
            ]
        b.do("host", *lines)
    if extra.routes:
        form = "10.{}.{}.0/24" if b.spec.family == 4 else "2001:db8:{:x}:{:x}::/64"
        table = " table 1001" if b.spec.shape == "vrf" else ""
        lines = [f"route add blackhole {form.format(n >> 8, n & 255)}{table}" for n in range(extra.routes)]
        b.do("host", *lines)
    if extra.br_nf:
        b.modules.append("br_netfilter")
        word = "ip6tables" if b.spec.family == 6 else "iptables"
        b.do("host", settings=((f"net/bridge/bridge-nf-call-{word}", "1"),))
    if extra.rules:
        _rules(b, extra.rules)
    if extra.offloads:
        _offloads(b, extra.offloads)


def _rules(b: _Builder, count: int) -> None:
    """Rules that compare the source address with one that no packet has, where the scenario's packets pass."""
    b.modules += ["nf_tables"]
    b.programs.append("nft")
    bridged = b.spec.shape == "veth-bridge" and not b.extra.br_nf
    if bridged:  # without it nft_meta refuses the family, and a guest's kernel cannot fetch modules by itself
        b.modules.append("nft_meta_bridge")
    family = "bridge" if bridged else "ip6" if b.spec.family == 6 else "ip"
    hooks = ("input", "output") if b.spec.shape == "host" else ("forward",)
    match = "ip6 saddr 2001:db8::" if b.spec.family == 6 else "ip saddr 203.0.113."
    commands = [f"add table {family} nsprof"]
    for hook in hooks:
        commands.append(f"add chain {family} nsprof {hook} {{ type filter hook {hook} priority 0 ; }}")
        commands += [f"add rule {family} nsprof {hook} {match}{1 + n % 250} drop" for n in range(count)]
    b.steps.append(Step("host", run=(("nft", "; ".join(commands)),)))


def _offloads(b: _Builder, offloads: Mapping[str, bool]) -> None:
    b.programs.append("ethtool")
    words = [word for name, on in offloads.items() for word in (name, "on" if on else "off")]
    ends = [("host", b.names.wire), ("remote", ETH)]
    if b.spec.shape.startswith("veth") or b.spec.shape in ("vrf", "netkit"):
        ends += [end for n in range(b.containers) for end in (("host", b.names.pair(n)), (f"c{n}", ETH))]
    elif b.spec.shape != "host":
        ends = [("remote", ETH), *((f"c{n}", ETH) for n in range(b.containers))]
    if b.spec.shape == "device":
        ends = [("remote", ETH), ("c0", b.names.wire)]
    b.steps += [Step(netns, run=(("ethtool", "-K", device, *words),)) for netns, device in ends]


def _hops(b: _Builder) -> tuple[Hops, Hops] | None:
    """The devices of a packet from the client, and of one from the server. None where a device hands its packets
    on inside a reception (macvlan, ipvlan, vxlan): there the order of receptions does not tell the device."""
    wire, far, bridge, pair = (
        ("host", b.names.wire),
        ("remote", ETH),
        ("host", b.names.bridge),
        ("host", b.names.pair(0)),
    )
    near = ("c0", ETH)
    if b.spec.shape in ("host", "device"):
        own = ("c0", b.names.wire) if b.spec.shape == "device" else wire
        return Hops((own,), (far,)), Hops((far,), (own,))
    if b.spec.shape in ("veth-route", "netkit", "veth-bridge", "vrf"):
        return Hops((near, wire), (pair, far)), Hops((far, pair), (wire, near))
    if b.spec.shape in ("veth-bridge-route", "veth-nat"):
        return Hops((near, wire), (pair, bridge, far)), Hops((far, bridge, pair), (wire, near))
    return None


def plan_for(spec: TopologySpec, extra: Perturbations | None = None) -> Plan:
    """The plan of a scenario. Raises TopologyError or UsageError for what cannot be meant."""
    check_spec(spec, tuple(SHAPES))
    builder = _Builder(spec, extra or Perturbations())
    builder.ends()
    SHAPES[spec.shape](builder)
    _perturb(builder)
    wire_in_container = spec.shape == "device"
    plan = Plan(
        name=spec.shape,
        netns=("host", "remote", *(f"c{n}" for n in range(builder.containers))),
        steps=tuple(builder.steps),
        client=builder.client,
        server="remote",
        address=builder.address,
        count_netns="c0" if wire_in_container else "host",
        wire=builder.names.wire,
        family=spec.family,
        modules=tuple(dict.fromkeys(builder.modules)),
        programs=tuple(dict.fromkeys(builder.programs)),
        hops=_hops(builder),
    )
    return replace(plan, steps=tuple(step for step in plan.steps if step.ip or step.settings or step.run))
