#!/usr/bin/env bash
# Linters, types, formats and import rules. Says which failed, runs all of them either way.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
bin=.venv/bin
failed=()
step() {
	local name=$1
	shift
	if output=$("$@" 2>&1); then
		echo "check: $name ok"
	else
		printf '%s\n' "$output"
		echo "check: $name FAILED"
		failed+=("$name")
	fi
}

step "ruff" $bin/ruff check nsprof tests scripts
step "ruff format" $bin/ruff format --check nsprof tests scripts
step "mypy --strict" $bin/mypy
mapfile -t sources < <(git ls-files 'probes/*.c' 'probes/*.h' 'probes/**/*.c' 'probes/**/*.h' 2>/dev/null)
if [ ${#sources[@]} -gt 0 ]; then step "clang-format" $bin/clang-format --dry-run -Werror "${sources[@]}"; fi
if command -v shellcheck >/dev/null; then
	mapfile -t scripts < <(git ls-files '*.sh' .ci/run 2>/dev/null)
	step "shellcheck" shellcheck -x -S warning "${scripts[@]}"
else
	echo "check: shellcheck is not installed, shell scripts are not checked"
fi
step "import rules" $bin/python -m pytest -q -p no:cacheprovider tests/unit/test_import_rules.py
[ ${#failed[@]} = 0 ] || {
	echo "check: failed: ${failed[*]}"
	exit 1
}
