"""`python -m nsprof` is the same program as `nsprof`."""

from nsprof.cli.main import run

run()
