# For developers' comfort only: nothing here is needed to use nsprof or to run its tests.
.PHONY: setup check test quick format bench-overhead bench-topology bench-flamegraph bench-import causes calibrate

setup: ; scripts/setup.sh --tests
check: setup ; scripts/check.sh
test: ; tests/run.sh
quick: ; tests/run.sh --quick
format: setup
	.venv/bin/ruff check --fix-only -q nsprof tests scripts
	.venv/bin/ruff format -q nsprof tests scripts
	git ls-files 'probes/*.c' 'probes/*.h' | xargs -r .venv/bin/clang-format -i
bench-overhead: setup ; .venv/bin/python scripts/bench_overhead.py
bench-topology: setup ; .venv/bin/python scripts/bench_topology.py
bench-flamegraph: setup ; .venv/bin/python scripts/bench_flamegraph.py
bench-import: setup ; .venv/bin/python scripts/bench_import.py
calibrate: setup ; .venv/bin/python scripts/calibrate.py
causes: setup ; .venv/bin/python scripts/causes_bench.py --write
