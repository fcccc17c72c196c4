"""One module a cause; each holds `RULE`. See `nsprof.analyse.causes.rule` for what a rule says."""
