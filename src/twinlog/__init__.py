"""twinlog: one Kafka log, in two clusters."""

__version__ = "0.1.0.dev0"
