"""Names of kernel and user addresses."""
