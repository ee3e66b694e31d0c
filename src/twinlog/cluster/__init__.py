"""Connections to one Kafka cluster, and its administration."""
