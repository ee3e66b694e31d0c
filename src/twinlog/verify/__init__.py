"""The comparison of two logs, independently of the engines."""
