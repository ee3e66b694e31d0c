"""All texts of an exception and its chain, to search for leaked secrets."""

import traceback


def exposed_text(error: BaseException) -> str:
    """Return all that a log, a traceback, or a message made of its `repr` could show of it."""
    found = traceback.format_exception(error)
    reason: BaseException | None = error
    while reason is not None:
        found += [str(reason), repr(reason), repr(vars(reason))]
        reason = reason.__cause__ or (None if reason.__suppress_context__ else reason.__context__)
    return "\n".join(found)
