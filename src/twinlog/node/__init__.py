"""`twinlog run`: the driver process, its metrics and health."""
