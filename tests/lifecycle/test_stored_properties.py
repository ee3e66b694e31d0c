"""A mirror that another client has written into `__mirror_config`, and the server it points to."""

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest
from fake_broker import FakeBroker

from twinlog.kafka.client.configuration import parse_config
from twinlog.kafka.errors import TwinlogError
from twinlog.lifecycle.creation import connected_source
from twinlog.runtime.mirror_engines import RunningEngine
from twinlog.store.config_records import Mirror
from twinlog.verify.job import ANY_TOPICS, Sides, VerifyTask, verify_task

SECRET = "the-secret-of-the-node"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


def _mirror(port: int, properties: dict[str, str]) -> Mirror:
    source = {"bootstrap.servers": f"127.0.0.1:{port}", "request.timeout.ms": "300", **properties}
    return Mirror(name="m", source=source, source_cluster_id="s", replication_factor=None)


SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
ATTACKS: list[tuple[dict[str, str], str]] = [
    (
        {"client.id": "${env:NODE_SECRET}"},
        "client.id of a mirror contains the reference ${env:NODE_SECRET}",
    ),
    (
        SASL | {"sasl.jaas.config": f'{PLAIN} username="a" password="${{env:NODE_SECRET}}";'},
        "sasl.jaas.config of a mirror: ${env:NODE_SECRET} does not match mirror.allowlist.pattern",
    ),
]


@pytest.mark.parametrize(("properties", "why"), ATTACKS, ids=["client.id", "password"])
@pytest.mark.parametrize("reader", ["node", "lane", "verify"])
def test_a_secret_of_the_node_is_not_sent_to_a_foreign_server(
    properties: dict[str, str], why: str, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever process connects: it sends no secret, and the error names the cause.

    The server acts as a broker that accepts every password, so a password would be sent to it.
    """
    monkeypatch.setenv("NODE_SECRET", SECRET)
    own = parse_config({"bootstrap.servers": "127.0.0.1:1"}).config
    connect = {"node": _as_node, "lane": _as_lane, "verify": _as_verify}[reader]

    async def attempt() -> tuple[bytes, str]:
        async with FakeBroker(password="") as broker:
            said = await connect(_mirror(broker.port, properties), own)
            return b"".join(request.frame for request in broker.requests), said

    heard, said = asyncio.run(attempt())
    assert SECRET.encode() not in heard
    assert SECRET not in said
    assert why in said


async def _as_node(mirror: Mirror, own: Any) -> str:
    with pytest.raises(TwinlogError) as caught:
        async with connected_source(mirror, own.grants, 1.0):
            pass
    return str(caught.value)


async def _as_lane(mirror: Mirror, own: Any) -> str:
    """Return the reason that a lane reports for the mirror's partitions."""
    reasons: list[str] = []
    failing = SimpleNamespace(fail_all=reasons.append)
    lane: Any = SimpleNamespace(
        grants=own.grants,
        lane="lane",
        random=random.Random(1),
        engine_for=lambda *_: failing,
        engine_changed=lambda *_, **__: None,
    )
    running = RunningEngine(lane, mirror)
    try:
        async with asyncio.timeout(3):
            while not reasons:
                await asyncio.sleep(0.01)
    finally:
        await running.close()
    return reasons[0]


async def _as_verify(mirror: Mirror, _own: Any) -> str:
    task = VerifyTask(
        source=mirror.source,
        destination={"bootstrap.servers": "127.0.0.1:1"},
        cluster_ids=Sides("a", "b"),
        topic_ids=ANY_TOPICS,
        stretches=[],
    )
    with pytest.raises(TwinlogError) as caught:
        await asyncio.to_thread(verify_task, task)
    return str(caught.value)
