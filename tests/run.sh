#!/usr/bin/env bash
# Installs what the tests need, runs every test that this machine can run, and says which it could not and why.
#
#   sudo ./tests/run.sh [--quick] [--no-vm] [--long] [--no-check] [--enable-non-free] [-- PYTEST WORDS...]
#
# --quick            under 5 minutes: no virtual machines, no slow tests
# --no-vm            everything but the virtual machines
# --long             also those that emulate for many minutes each (left out otherwise, and counted as deselected)
# --no-check         leave out linters, types and formats
# --enable-non-free  add Debian's non-free component, for netperf (CI=true does so too)
#
# NSPROF_REQUIRE=root,vm,browser turns the skips of these kinds into failures.
set -euo pipefail
cd "$(dirname "$0")/.."

quick=0 vm=1 check=1 long=0 setup=(--tests) words=()
while [ $# -gt 0 ]; do
	case $1 in
	--quick) quick=1 vm=0 ;;
	--no-vm) vm=0 ;;
	--long) long=1 ;;
	--no-check) check=0 ;;
	--enable-non-free) setup+=(--enable-non-free) ;;
	-h | --help)
		sed -n '2,14s/^# \{0,1\}//p' "$0"
		exit 0
		;;
	--)
		shift
		words=("$@")
		break
		;;
	*)
		echo "run.sh: unknown option '$1' (see --help)" >&2
		exit 2
		;;
	esac
	shift
done

scripts/setup.sh "${setup[@]}"

status=0
if [ "$check" = 1 ]; then scripts/check.sh || status=1; fi

[ "$(id -u)" = 0 ] || echo "run.sh: not root: tests with namespaces, BPF and real traffic will be skipped" >&2
select=()
if [ "$quick" = 1 ]; then
	select+=(-m "not slow and not vm and not browser and not long")
elif [ "$long" = 0 ]; then
	select+=(-m "not long")
	[ "$vm" = 0 ] || echo "run.sh: tests that emulate for many minutes are left out (--long runs them)" >&2
fi

# Cheap and telling things first; the virtual machines last.
places=(tests/unit tests/root tests/browser)
[ "$vm" = 0 ] || places+=(tests/vm)
# Real traffic on a machine that others use, too: a test that fails is tried once more, and the summary says so (R).
tests=(.venv/bin/python -m pytest -raR --reruns 1 --reruns-delay 2 "${select[@]}" "${words[@]}" "${places[@]}")
# In this shell's place, so that whoever ends this ends the tests; only failed linters need somebody to remember them.
[ "$status" != 0 ] || exec "${tests[@]}"
"${tests[@]}" || status=$?
exit "$status"
