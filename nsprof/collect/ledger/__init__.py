"""What packets pay for: copies, checksums, segments, fragments, drops, by namespace and device."""
