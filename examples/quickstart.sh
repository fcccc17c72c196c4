#!/usr/bin/env bash
# Installs what is needed, records host-only and veth + bridge traffic, prints the delta table, writes flame graphs.
#
#   sudo ./examples/quickstart.sh [SECONDS A RUN]        (default 2; about a minute, and the set-up)
#
# All traffic stays in network namespaces made for it; nothing of this machine's network is touched.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-2}
case $seconds in '' | *[!0-9]*)
	echo "quickstart.sh: '$seconds' is not a number of seconds" >&2
	exit 2
	;;
esac

[ "$(id -u)" = 0 ] || {
	echo "quickstart.sh: recording needs root: sudo $0" >&2
	exit 1
}
scripts/setup.sh
nsprof=.venv/bin/nsprof
out=out/quickstart
mkdir -p "$out"

if command -v netperf >/dev/null; then
	traffic=(netperf -t UDP_RR -l "$seconds")
	echo "quickstart: netperf, UDP request/response, $seconds s a run"
else
	traffic=(iperf3 -t "$seconds")
	echo "quickstart: iperf3, TCP, $seconds s a run (netperf is not among this machine's packages; Debian has it in non-free)"
fi

# From 8 runs a side on there are verdicts; short runs do, since the run is the unit of evidence.
$nsprof bench --scenario host,veth-bridge --runs 8 --top 0 -o "$out/demo.nsprof" -- "${traffic[@]}"
echo
$nsprof diff "$out/demo.nsprof" --baseline host --scenario veth-bridge
for scenario in host veth-bridge; do
	$nsprof flamegraph "$out/demo.nsprof" --scenario "$scenario" -o "$out/$scenario.svg"
done
$nsprof flamegraph --diff "$out/demo.nsprof" --baseline host --scenario veth-bridge -o "$out/diff.svg"
$nsprof report --html "$out/report.html" "$out/demo.nsprof" --scenario veth-bridge --baseline host
[ -z "${SUDO_UID:-}" ] || chown -R "$SUDO_UID:${SUDO_GID:-$SUDO_UID}" out
echo
echo "quickstart: open in a browser: $out/report.html, or the flame graphs $out/host.svg  $out/veth-bridge.svg  $out/diff.svg"
echo "quickstart: 'nsprof' is $PWD/$nsprof here; to have it as a command: sudo ln -s \"$PWD/$nsprof\" /usr/local/bin/nsprof"
echo "quickstart: next: $nsprof report $out/demo.nsprof --scenario veth-bridge      your own traffic: sudo $nsprof record -- COMMAND"
