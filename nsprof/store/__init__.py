"""Profiles on disk: the .nsprof file, importers and exporters."""
