"""Whether a failover is possible now, and what it would lose."""
