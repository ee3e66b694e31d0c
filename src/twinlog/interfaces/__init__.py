"""The user interfaces: they parse arguments, call operations, and print results."""
