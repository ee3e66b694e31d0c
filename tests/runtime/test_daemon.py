"""Twin of twinlog.runtime.daemon: a worker after the end of its application."""

import socket

import pytest

from twinlog.runtime import daemon


def test_a_worker_that_is_not_asked_any_more_says_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Spark's own worker writes a stack trace of its broken pipe to the terminal."""
    ours, sparks = socket.socketpair()
    with ours:
        sparks.close()
        assert daemon._work_if_asked(ours, authenticated=True) == 1
    assert capfd.readouterr() == ("", "")
