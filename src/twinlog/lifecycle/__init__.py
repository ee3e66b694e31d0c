"""Mirrors and their topics are created, added, paused, removed, failed back, rebuilt."""
