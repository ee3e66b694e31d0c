"""Twin of twinlog.operations.flow_claims: what counts where nothing is recorded."""

from dataclasses import replace
from uuid import UUID

import pytest
from written_flows import compare_logs
from written_logs import WrittenLog

from twinlog.mirror.flow import flow_properties
from twinlog.operations.flow_claims import BEGAN_AT_END, BEGIN_UNREAD, unclaimed
from twinlog.store.config_records import Mirror, MirrorTopic
from twinlog.verify.flow_job import BEGIN_UNKNOWN
from twinlog.verify.job import Sides

TOPIC = MirrorTopic(mirror="a-to-b", topic="t", topic_id=UUID(int=1), partitions=1)
UNREAD = "it cannot be read: gone"


def flow(**settings: str) -> Mirror:
    """A flow with these settings; `_` is written for `.`."""
    values = {key.replace("_", "."): value for key, value in settings.items()}
    properties = flow_properties({"enabled": "true", **values}, "a", "b")
    return Mirror(name="a-to-b", source=properties, source_cluster_id="source")


LATEST = flow(consumer_auto_offset_reset="latest")


@pytest.mark.parametrize(
    ("mirror", "topic", "trouble", "lacks"),
    [
        (flow(), TOPIC, None, ("", "")),
        (flow(), TOPIC, UNREAD, (BEGIN_UNREAD, BEGIN_UNREAD)),
        (LATEST, TOPIC, UNREAD, (BEGIN_UNREAD, BEGIN_UNREAD)),
        (LATEST, TOPIC, None, ("", BEGAN_AT_END)),
        (LATEST, replace(TOPIC, followed_from=(0,)), None, ("", "")),
        (LATEST, replace(TOPIC, followed_from=(5,)), None, ("", BEGAN_AT_END)),
        (flow(), replace(TOPIC, begins=(60,)), UNREAD, (BEGIN_UNKNOWN, BEGIN_UNREAD)),
        (flow(transaction_producer="true"), TOPIC, UNREAD, ("", "")),  # its positions were read
        (
            flow(transaction_producer="true", consumer_auto_offset_reset="latest"),
            *(TOPIC, None, ("", BEGAN_AT_END)),
        ),
    ],
)
def test_what_is_not_recorded_is_not_claimed(
    mirror: Mirror, topic: MirrorTopic, trouble: str | None, lacks: tuple[str, str]
) -> None:
    assert unclaimed(mirror, topic, 0, trouble).lacks == Sides(*lacks)


@pytest.mark.parametrize(
    ("mirror", "trouble", "source", "remote", "unseen"),
    [
        (LATEST, UNREAD, "abcdefgh", "fgh", (5, 0)),
        (LATEST, None, "abcdefgh", "fgh", (5, 0)),
        (flow(), UNREAD, "fgh", "xyfgh", (0, 2)),
        (flow(), UNREAD, "abc", "abc", (0, 0)),
    ],
)
def test_a_right_copy_does_not_differ(
    mirror: Mirror, trouble: str | None, source: str, remote: str, unseen: tuple[int, int]
) -> None:
    """Goal: what the flow has not copied on purpose is not seen, and not lost or foreign."""
    claim = unclaimed(mirror, TOPIC, 0, trouble)
    logs = (WrittenLog().records(source), WrittenLog().records(remote))
    result = compare_logs(*logs, claim)
    found = (result.source, result.remote)
    assert not any(tally.differences for tally in found)
    assert tuple(sum(end - at for at, end, _ in tally.unseen) for tally in found) == unseen
