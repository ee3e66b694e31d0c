"""Keeps topics, configurations, group offsets, ACLs and read-only topics like the source's."""
