"""What can go wrong with a local cluster, as one line for the user."""


class LocalError(Exception):
    """The operation failed; the message names the cause, and what to do or where the log is."""
