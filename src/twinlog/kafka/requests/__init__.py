"""Requests about many topics or partitions, each sent to the broker that answers it."""
