"""Lanes on Spark: sessions, ownership of state partitions, states and statuses."""
