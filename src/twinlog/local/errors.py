"""The error of a local cluster: one line for the user."""


class LocalError(Exception):
    """The operation failed; the message names the cause, and what to do or where the log is."""
