"""Flows whose `__mirror_offsets` loses records under the same topic id: one broker."""

from pathlib import Path

import pytest
from lane_processes import lanes
from lost_logs import copied, empty, failed, values, write
from transformed_flows import new_flow
from waiting import SECONDS, until

from conftest import Pair
from twinlog.local.cluster import LocalCluster
from twinlog.store.offset_log import OFFSETS_TOPIC

pytestmark = [pytest.mark.broker, pytest.mark.timeout(900)]

LOST = "nothing of a former owner is stored"


@pytest.mark.long
@pytest.mark.parametrize("keep", [0, 2], ids=["emptied", "the first owner's traces are left"])
def test_no_later_owner_copies_again_what_is_not_recorded_any_more(
    fragile: LocalCluster, kafka: LocalCluster, tmp_path: Path, keep: int
) -> None:
    """Goal: a lost plan is told from none, by each later owner; other partitions go on.

    An owner leaves traces in the log that has lost all before it. The replication factor is 1, and
    the broker's disk was replaced; or an unclean election has lost the log's end.
    """
    pair = Pair(kafka, fragile)
    mirror, topic = new_flow(pair, {})
    source = kafka.bootstrap_servers
    with lanes(fragile.bootstrap_servers, tmp_path) as nodes:
        nodes.start("first")
        write(source, topic, "0", "1", "2")
        copied(pair, topic, 0, "0", "1", "2")
        nodes.kill("first")
        empty(fragile, OFFSETS_TOPIC, keep)
        for number, node in enumerate(("second", "third")):
            nodes.start(node)
            log = tmp_path / f"{node}.log"
            until(lambda log=log: LOST in log.read_text(), SECONDS, f"{node} finds it FAILED")
            write(source, topic, str(number), partition=1)  # nothing of it was copied before
            copied(pair, topic, 1, *map(str, range(number + 1)))
            failed(pair, mirror, LOST)
            nodes.kill(node)
        assert values(pair, topic, 0) == [b"0", b"1", b"2"]
