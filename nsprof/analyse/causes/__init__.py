"""Root causes, one small rule file each."""
