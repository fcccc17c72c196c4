"""Compiling, loading and attaching BPF programs; the one door to BCC."""
