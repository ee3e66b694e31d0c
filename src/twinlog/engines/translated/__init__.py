"""Flows: the engine whose copies have other offsets than the source (docs/decisions/0014)."""
