"""Twin of twinlog.interfaces.cli.start: the imports of a command, which delay a failover."""

import subprocess
import sys

import pytest

SHOW = """
import sys
from twinlog.interfaces.cli.start import {command}
try:
    {command}()
finally:
    print(*sorted(name for name in sys.modules if name.startswith("kafka.")))
"""


@pytest.mark.parametrize("command", ["kafka_mirrors", "twinlog"])
def test_commands_do_not_import_the_clients_of_kafka_python(command: str) -> None:
    """kafka-python's messages are imported, its producer, consumer and admin client are not."""
    show = SHOW.format(command=command)
    done = subprocess.run(
        [sys.executable, "-c", show, "verify", "--help"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    imported = done.stdout.splitlines()[-1].split()
    assert "kafka.protocol.api_header" in imported, done.stderr
    clients = ("kafka.producer", "kafka.consumer", "kafka.admin")
    assert not [name for name in imported if name.startswith(clients)]
