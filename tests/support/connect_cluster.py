"""MirrorMaker 2's source connector in a Connect cluster of one's own, as Strimzi runs it."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

from real_mirror_maker import START_S, Handover
from waiting import until

from twinlog.local.artifacts import mirror_maker_jars
from twinlog.local.cluster import DEFAULT_VERSION
from twinlog.local.ports import PortClaim
from twinlog.local.processes import SHORT_LIVED, JavaProcess, JavaProgram, ProcessGroup

GROUP: Final = "mirrormaker2-cluster"
OFFSETS: Final = f"{GROUP}-offsets"
_REST_S: Final = 10.0


@contextmanager
def connect_worker(
    handover: Handover, group: ProcessGroup, connector: str
) -> Iterator[JavaProcess]:
    """Run a worker that stores all in the target, with the connector of a handover's topic."""
    claim = PortClaim.fresh(1)
    rest = f"http://127.0.0.1:{claim.ports[0]}"
    try:
        worker = group.start(
            JavaProgram(
                jars=mirror_maker_jars(DEFAULT_VERSION),
                main="org.apache.kafka.connect.cli.ConnectDistributed",
                arguments=[str(_properties(handover, rest))],
                flags=SHORT_LIVED,
                log=handover.folder / "connect.log",
            )
        )
        url = f"{rest}/connectors/{quote(connector)}/config"
        until(lambda: _put(url, _config(handover)), START_S, f"{connector} at {url}")
        handover.await_copies(1)
        yield worker
        worker.kill()
    finally:
        claim.close()


def _properties(handover: Handover, rest: str) -> Path:
    file = handover.folder / "connect.properties"
    converter = "org.apache.kafka.connect.converters.ByteArrayConverter"
    storage = ("offset", "config", "status")
    values = {
        "bootstrap.servers": handover.target.bootstrap_servers,
        "group.id": GROUP,
        "listeners": rest,
        "key.converter": converter,
        "value.converter": converter,
        "header.converter": converter,
        "offset.flush.interval.ms": "1000",
        "offset.storage.topic": OFFSETS,
        "config.storage.topic": f"{GROUP}-configs",
        "status.storage.topic": f"{GROUP}-status",
        **{f"{name}.storage.replication.factor": "1" for name in storage},
    }
    file.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    return file


def _config(handover: Handover) -> dict[str, str]:
    return {
        "connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
        "tasks.max": "1",
        "source.cluster.alias": handover.cluster,
        "target.cluster.alias": "b",
        "source.cluster.bootstrap.servers": handover.source.bootstrap_servers,
        "target.cluster.bootstrap.servers": handover.target.bootstrap_servers,
        "topics": handover.topic,
        "replication.factor": "1",
        "offset-syncs.topic.replication.factor": "1",
        "sync.topic.acls.enabled": "false",
    }


def _put(url: str, body: dict[str, str]) -> bool:
    """Whether Connect has taken a configuration; it starts, or rebalances, until then."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="PUT"
    )
    try:
        with urllib.request.urlopen(request, timeout=_REST_S):
            return True
    except urllib.error.HTTPError as error:
        if error.code < 500 and error.code not in {404, 409}:
            raise RuntimeError(f"{error.code}: {error.read().decode()}") from error
        return False
    except OSError:
        return False
