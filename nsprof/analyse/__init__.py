"""Numbers: unit costs, categories, deltas, statistics, ledger, causes."""
