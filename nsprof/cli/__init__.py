"""The command line: thin, one module a verb."""
