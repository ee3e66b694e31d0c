"""The planned failover."""
