"""The exact engine: the same records at the same offsets, appended by compare-and-swap."""
