"""Boots kernels under QEMU and runs jobs in them."""
