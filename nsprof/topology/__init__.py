"""Builds and removes the namespaces, links, addresses and routes of a scenario."""
