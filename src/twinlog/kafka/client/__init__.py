"""Connections to one cluster: configuration, security, metadata, calls."""
