"""Published files of MirrorMaker 2 run as they are: not a byte is changed, nothing is added.

The host names in them exist nowhere. mapped_names/ leads them to brokers of this machine, outside
of the command.
"""

import json
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import librdkafka_tools
import pytest
from checkout import ROOT
from mirror_maker_process import mirror_maker
from remote_topics import values
from waiting import until

from twinlog.local.cluster import LocalCluster
from twinlog.local.ports import PortClaim
from twinlog.local.stage import Stage

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1200)]

SECONDS = 240.0
KAFKAS = ROOT / "tests" / "data" / "mirror-maker" / "connect-mirror-maker.properties"
RESOLVER = ROOT / "tests" / "support" / "mapped_names"
ADDRESSES = "TWINLOG_TEST_ADDRESSES"
"""See mapped_names/sitecustomize.py."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Start two clusters."""
    with Stage(tmp_path_factory.mktemp("published-files")) as stage:
        stage.start_source()
        stage.start_destination()
        yield stage


def numbered(text: str, count: int) -> list[str]:
    return [f"{text}{number}" for number in range(count)]


def await_values(cluster: LocalCluster, topic: str, wanted: list[str]) -> None:
    until(lambda: topic in topics(cluster), SECONDS, f"the topic {topic}", pause=0.5)
    found = until(
        lambda: values(cluster, topic),
        SECONDS,
        f"{len(wanted)} records of {topic}",
        good=lambda found: len(found) >= len(wanted),
        pause=0.5,
    )
    assert found == wanted


def topics(cluster: LocalCluster) -> set[str]:
    return set(librdkafka_tools.admin(cluster.bootstrap_servers).list_topics(timeout=120).topics)


def test_kafkas_own_file_copies_in_both_directions(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: `twinlog mirror-maker config/connect-mirror-maker.properties`, byte for byte.

    One of the three hosts of each cluster is down, as others are there for that.
    """
    a, b = stage.source, stage.destination
    for cluster, topic in ((a, "orders"), (b, "payments")):
        librdkafka_tools.make_topic(cluster.bootstrap_servers, topic)
        librdkafka_tools.write(
            cluster.bootstrap_servers, topic, librdkafka_tools.simple(30, text=topic)
        )
    with closing(PortClaim.fresh(1)) as closed:
        down = f"127.0.0.1:{closed.ports[0]}"
        addresses = {
            f"{alias}_host{number}:9092": down if number == 1 else cluster.bootstrap_servers
            for alias, cluster in (("A", a), ("B", b))
            for number in (1, 2, 3)
        }
        monkeypatch.setenv(ADDRESSES, json.dumps(addresses))
        monkeypatch.setenv("PYTHONPATH", str(RESOLVER), prepend=os.pathsep)
        text = KAFKAS.read_text()
        with mirror_maker(tmp_path, text):
            assert (tmp_path / "mm2.properties").read_bytes() == KAFKAS.read_bytes()
            await_values(b, "A.orders", numbered("orders", 30))
            await_values(a, "B.payments", numbered("payments", 30))
            for cluster, topic in ((a, "orders"), (b, "payments")):
                more = librdkafka_tools.simple(10, text="later")
                librdkafka_tools.write(cluster.bootstrap_servers, topic, more)
            await_values(b, "A.orders", [*numbered("orders", 30), *numbered("later", 10)])
            await_values(a, "B.payments", [*numbered("payments", 30), *numbered("later", 10)])
            # Their copies may follow only at the file's next refresh, after ten minutes.
            for cluster in (a, b):
                until(
                    lambda cluster=cluster: "heartbeats" in topics(cluster),
                    SECONDS,
                    "heartbeats",
                    pause=0.5,
                )
                copies = [name.split(".")[:-1] for name in topics(cluster)]
                assert all(len(aliases) < 2 for aliases in copies if {*aliases} & {"A", "B"}), (
                    copies
                )
