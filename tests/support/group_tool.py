"""Kafka's own `kafka-consumer-groups`."""

import subprocess

from twinlog.java import find_java
from twinlog.local.artifacts import tools_jars
from twinlog.local.cluster import DEFAULT_VERSION


def consumer_groups(servers: str, *words: str) -> str:
    """Run it with these words; return what it prints."""
    done = subprocess.run(
        [
            str(find_java().executable),
            "-cp",
            f"{tools_jars(DEFAULT_VERSION)}/*",
            "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
            "--bootstrap-server",
            servers,
            *words,
            "--timeout",
            "180000",
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return done.stdout
