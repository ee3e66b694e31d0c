"""Requests about many topics or partitions, each sent to the broker that can answer it."""
