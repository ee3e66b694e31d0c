"""Twin of twinlog.store.shared_remotes."""

from uuid import UUID

import pytest

from twinlog.kafka.errors import UserError
from twinlog.mirror.settings import TRANSACTIONAL, TRANSLATED
from twinlog.store.config_records import MirrorTopic
from twinlog.store.shared_remotes import check_positions, shared_remotes

TOPIC = MirrorTopic(
    mirror="m", topic="x.t", topic_id=UUID(int=1), partitions=1, destination_topic="t"
)


def test_two_topics_with_one_remote_name_share_it() -> None:
    assert not shared_remotes([TOPIC], {"x.t": "t", "x.u": "u"})
    assert shared_remotes([TOPIC], {"y.t": "t"}) == [("x.t", "y.t", "t")]
    assert shared_remotes([], {"x.t": "t", "z": "z", "y.t": "t"}) == [("x.t", "y.t", "t")]


def test_only_a_flow_that_writes_in_transactions_refuses_that() -> None:
    check_positions(TRANSLATED, [TOPIC], {"y.t": "t"})
    check_positions(TRANSACTIONAL, [TOPIC], {"x.t": "t", "y.u": "u"})
    with pytest.raises(UserError, match=r"x\.t and y\.t would both be copied to t"):
        check_positions(TRANSACTIONAL, [TOPIC], {"y.t": "t"})
