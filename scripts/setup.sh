#!/usr/bin/env bash
# The one set-up step: leaves a working .venv/bin/nsprof. Idempotent; a second start takes no time.
#
#   scripts/setup.sh [--tests] [--enable-non-free] [--quiet]
#
# --tests            also what the tests need (browser, QEMU, linters)
# --enable-non-free  add Debian's non-free component, for netperf (implied by CI=true together with --tests)
set -euo pipefail
cd "$(dirname "$0")/.."

tests=0 nonfree=0 quiet=0
for word in "$@"; do
	case $word in
	--tests) tests=1 ;;
	--enable-non-free) nonfree=1 ;;
	--quiet) quiet=1 ;;
	*)
		echo "setup.sh: unknown option '$word' (known: --tests --enable-non-free --quiet)" >&2
		exit 2
		;;
	esac
done
[ "$tests" = 1 ] && [ "${CI:-}" = true ] && nonfree=1

say() { [ "$quiet" = 1 ] || echo "setup: $*" >&2; }
die() {
	echo "setup: $1" >&2
	[ -z "${2:-}" ] || echo "  hint: $2" >&2
	exit 1
}

stamp=.venv/.nsprof-setup
want=$(cat pyproject.toml scripts/setup.sh | sha256sum | cut -c1-16)-tests$tests-nonfree$nonfree
# A set-up with --tests serves one without.
have=$(cat "$stamp" 2>/dev/null || true)
key=${want%%-*}
if [ -x .venv/bin/nsprof ]; then
	case $have in
	"$want" | "$key-tests1-nonfree$nonfree" | "$key-tests1-nonfree1") exit 0 ;;
	"$key-tests0-nonfree1") [ "$tests" = 0 ] && exit 0 ;;
	esac
fi

command -v apt-get >/dev/null || die "this set-up knows Debian and Ubuntu (apt-get not found)" \
	"install python3-venv, python3-bpfcc, bpftool, iperf3 and dbench your way, then: python3 -m venv .venv && .venv/bin/pip install -e ."

apt() { DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 "$@" >/dev/null; }
available() { LC_ALL=C apt-cache policy "$1" 2>/dev/null | grep -q 'Candidate: [^(]'; }
installed() { dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null | grep -qx installed; }

wanted=(python3 python3-venv python3-bpfcc bpftool iperf3 dbench iputils-ping)
[ "$tests" = 0 ] || wanted+=(python3-dev gcc libc6-dev git iproute2 ethtool nftables iptables conntrack kmod cpio zstd busybox-static
	qemu-system-x86 chromium fonts-dejavu-core linux-perf shellcheck tmux clang-format nodejs npm)

# Another source may carry a newer nodejs that holds npm itself and refuses Debian's npm package.
if [ "$tests" = 1 ] && command -v npm >/dev/null; then wanted=("${wanted[@]/#npm/}"); fi

missing=()
for package in "${wanted[@]}"; do
	[ -z "$package" ] || installed "$package" || missing+=("$package")
done
need_netperf=0
command -v netperf >/dev/null || need_netperf=1

if [ ${#missing[@]} -gt 0 ] || [ "$need_netperf" = 1 ]; then
	if [ "$(id -u)" != 0 ]; then
		[ ${#missing[@]} = 0 ] || die "these packages are missing and installing them needs root: ${missing[*]}" "run it with sudo"
	else
		if [ "$need_netperf" = 1 ] && [ "$nonfree" = 1 ] && ! available netperf && grep -qi '^ID=debian' /etc/os-release; then
			say "adding Debian's non-free component for netperf"
			codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
			printf 'Types: deb\nURIs: http://deb.debian.org/debian\nSuites: %s\nComponents: non-free\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n' \
				"$codename" >/etc/apt/sources.list.d/nsprof-non-free.sources
			apt update
		fi
		for package in "${missing[@]}"; do
			available "$package" || {
				say "reading the package lists"
				apt update || die "apt-get update failed" "check the network and /etc/apt/sources.list"
				break
			}
		done
		# bpftool is a package of its own on Debian and a part of linux-tools on Ubuntu.
		packages=() optional=()
		for package in "${missing[@]}"; do
			if available "$package"; then
				packages+=("$package")
			elif [ "$package" = bpftool ] && available linux-tools-common; then
				packages+=(linux-tools-common linux-tools-generic)
			elif [ "$package" = linux-perf ] && available linux-tools-generic; then
				packages+=(linux-tools-generic)
			else
				optional+=("$package")
			fi
		done
		if [ "$need_netperf" = 1 ] && available netperf; then packages+=(netperf); fi
		[ ${#optional[@]} = 0 ] || say "not in this machine's package sources: ${optional[*]} (what needs them will say so)"
		if [ ${#packages[@]} -gt 0 ]; then
			say "installing ${packages[*]}"
			apt install -y --no-install-recommends "${packages[@]}" || die "apt-get install failed for: ${packages[*]}"
		fi
	fi
fi

# The distribution's Python is the one that python3-bpfcc serves; another python3 may come first on PATH.
python=
for candidate in /usr/bin/python3 /usr/bin/python3.13 /usr/bin/python3.12 /usr/bin/python3.11 python3; do
	if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
		python=$candidate
		break
	fi
done
[ -n "$python" ] || die "no Python >= 3.11 with venv found" "apt-get install python3 python3-venv"

extras=""
[ "$tests" = 0 ] || extras="[test,check,drgn]"
say "making .venv with $("$python" --version)"
[ -x .venv/bin/python ] || "$python" -m venv .venv
log=$(mktemp)
trap 'rm -f "$log"' EXIT
.venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".$extras" >"$log" 2>&1 || {
	tail -n 20 "$log" >&2
	die "pip could not install nsprof's libraries (its last words are above)"
}
.venv/bin/nsprof --version >/dev/null || die "the installed nsprof does not start"
echo "$want" >"$stamp"
# Whoever called sudo owns the checkout; leave nothing of root's in it that stops them from removing it.
if [ -n "${SUDO_UID:-}" ]; then chown -R "$SUDO_UID:${SUDO_GID:-$SUDO_UID}" .venv; fi
say "done: .venv/bin/nsprof"
