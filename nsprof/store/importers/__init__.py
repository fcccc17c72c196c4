"""Other tools' files become profiles; one module a format, detected by content."""
