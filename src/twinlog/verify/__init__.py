"""The comparison of two logs, independent of the engines."""
