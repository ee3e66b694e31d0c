"""How every engine reads the source, and what its answers prove."""
