"""What can be done on this machine, found by trying."""
