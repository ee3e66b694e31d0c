"""Twin of twinlog.runtime.daemon: a worker after the end of its application."""

import socket

import pytest

from twinlog.runtime import daemon


def test_a_worker_without_a_driver_ends_without_output(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Spark's own worker writes a stack trace of its broken pipe to the terminal."""
    worker_socket, driver_socket = socket.socketpair()
    with worker_socket:
        driver_socket.close()
        assert daemon._work_if_asked(worker_socket, authenticated=True) == 1
    assert capfd.readouterr() == ("", "")
