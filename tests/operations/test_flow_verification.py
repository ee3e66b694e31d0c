"""The report about a flow's partitions: nothing that no task has reported counts as good."""

import asyncio
import json
from collections import Counter
from typing import Any, cast
from uuid import UUID

import pytest

from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.types import LogBounds, Offset, TopicPartition
from twinlog.mirror.offset_runs import Ends
from twinlog.operations import flow_verification
from twinlog.operations.flow_claims import FlowClaims
from twinlog.operations.flow_routes import TopicRoute, Writer
from twinlog.operations.flow_verification import FlowPlan, flow_logs, is_only_remote
from twinlog.operations.serialise import json_data
from twinlog.operations.verification_report import DIFFERS, NOT_SEEN, SAME, Verification
from twinlog.store.config_records import MirrorTopic
from twinlog.verify.flow_task import NO_BEGIN, FlowClaim, FlowCompared, FlowPair
from twinlog.verify.job import Sides
from twinlog.verify.map_check import MapClaim
from twinlog.verify.transformed_log import TransformSettings
from twinlog.verify.verdict import DifferenceKind, Tally

PAIR = FlowPair("a-to-b", TopicPartition("t", 0), TopicPartition("a.t", 0))
BOUNDS = Sides(LogBounds(0, 2, 12, 12), LogBounds(0, 0, 8, 8))
PLAN = FlowPlan(pairs={PAIR: BOUNDS})


def good() -> FlowCompared:
    source = Tally(compared=7, absent=Counter(marker=1))
    remote = Tally(compared=7, absent=Counter(marker=1))
    return FlowCompared(
        pair=PAIR, source=source, remote=remote, recorded=Tally(compared=7), behind=2
    )


def verdict(result: FlowCompared | None, plan: FlowPlan = PLAN) -> Verification:
    return Verification(logs=tuple(flow_logs(plan, [] if result is None else [result])))


def test_a_complete_result_is_the_same() -> None:
    found = verdict(good())
    assert found.verdict == SAME
    assert (found.counts.length, found.counts.behind) == (10, 2)


def test_what_no_task_reports_is_not_seen() -> None:
    """Goal: a missing result, and offsets that it leaves out, on either side."""
    found = verdict(None)
    assert found.verdict == NOT_SEEN
    assert (found.counts.not_seen, found.counts.length) == (10, 10)
    for side in ("source", "remote"):
        result = good()
        getattr(result, side).compared -= 3
        found = verdict(result)
        assert found.verdict == NOT_SEEN
        assert [one.reason.rpartition(": ")[2] for one in found.unseen] == ["3 not classified"]


def test_a_map_that_cannot_be_read_is_not_seen() -> None:
    found = verdict(good(), FlowPlan(pairs={PAIR: BOUNDS}, trouble="it cannot be read: gone"))
    assert found.verdict == NOT_SEEN
    assert [one.reason for one in found.unseen] == ["recorded map: it cannot be read: gone"]


def test_what_a_map_does_not_have_is_not_seen() -> None:
    """Goal: it is named, and the verdict is not good; the count alone changes nothing."""
    result = good()
    assert result.recorded is not None
    result.recorded.not_seen = 3
    assert verdict(result).verdict == SAME
    result.recorded.see_not(2, 5, "recorded map: it begins later")
    found = verdict(result)
    assert found.verdict == NOT_SEEN
    assert [one[1:] for one in found.unseen] == [(2, 5, "recorded map: it begins later")]


def test_what_has_to_be_recorded() -> None:
    """Goal: a map of each position, if the flow records maps; where it has copied something."""
    partition, begin = PAIR.source, Ends(Offset(7), Offset(0))
    recorded = MapClaim(start=NO_BEGIN, position=9)
    for claim, with_map, without in (
        (FlowClaim(end=9, map=recorded), False, False),
        (FlowClaim(end=9), True, False),
        (FlowClaim(begin=begin, end=7, taken_over=True), False, False),
        (FlowClaim(begin=begin, end=8, taken_over=True), True, False),
    ):
        claims = {partition: claim}
        assert FlowClaims(of=claims).lacks(partition, claim) == with_map
        assert FlowClaims(of=claims, is_mapped=False).lacks(partition, claim) == without
        is_new = claim.taken_over and claim.end == 7
        for is_mapped in (True, False):
            assert FlowClaims(is_mapped=is_mapped).lacks(partition, claim) != is_new


def test_copies_without_a_map_are_not_seen() -> None:
    """Goal: a lost map; where nothing was compared, nothing has to be recorded."""
    plan = FlowPlan(pairs={PAIR: BOUNDS}, unmapped=frozenset({PAIR}))
    result = good()
    result.recorded = None
    found = verdict(result, plan)
    assert found.verdict == NOT_SEEN
    text = "recorded map: nothing is recorded, but records were copied"
    assert [one.reason for one in found.unseen] == [text]
    empty = FlowCompared(pair=PAIR, source=Tally(absent=Counter(marker=10)), remote=Tally())
    empty.remote.absent["marker"] = 8
    assert verdict(empty, plan).verdict == SAME


@pytest.mark.parametrize(
    ("later", "lacking"),
    [
        (FlowClaims(of={PAIR.source: FlowClaim(end=7)}, is_mapped=False), []),
        (FlowClaims(is_mapped=False), [PAIR.source]),
        (FlowClaims(trouble="it cannot be read: gone"), []),
    ],
)
def test_a_flow_that_begins_during_the_check_is_no_trouble(
    monkeypatch: pytest.MonkeyPatch, later: FlowClaims, lacking: list[TopicPartition]
) -> None:
    """Goal: it began between the reading of its claims and of the logs' ends, and says so later."""

    async def read(*_: object) -> FlowClaims:
        return later

    monkeypatch.setattr(flow_verification, "read_claims", read)
    nobody, nothing = cast("Any", None), FlowClaims(is_mapped=False)
    claimed = {PAIR.source: FlowClaim()}
    found, trouble = asyncio.run(flow_verification._lacking(nobody, nobody, (), nothing, claimed))
    assert (list(found), trouble) == (lacking, later.trouble)


def test_what_shares_a_remote_partition_counts_whatever_is_compared() -> None:
    """Goal: records of a topic that was not asked for, or was removed, are not foreign."""
    t, u, other = (
        MirrorTopic(
            mirror="a-to-b",
            topic=name,
            topic_id=UUID(int=1),
            partitions=2,
            destination_topic=remote,
        )
        for name, remote in (("t", "all"), ("u", "all"), ("other", "a.other"))
    )
    routes = {
        topic.topic: TopicRoute(targets=frozenset({topic.destination_name}))
        for topic in (t, u, other)
    }
    pair = FlowPair("a-to-b", TopicPartition("t", 0), TopicPartition("all", 0))
    shares = flow_verification._shares([pair], routes, [t, u, other])
    assert shares[pair.remote] == 2
    assert shares[TopicPartition("a.other", 1)] == 1


def test_topics_that_a_task_has_found_are_reported() -> None:
    """Goal: with bounds of their own; without a position, or with another flow's records, unseen.

    Results of other flows are left out.
    """
    found = good()
    found.pair = PAIR._replace(remote=TopicPartition("day-1", 0))
    found.bounds = BOUNDS._replace(source=LogBounds(0, 2, 12, 12))
    other = good()
    other.pair, other.bounds = found.pair._replace(flow="other"), BOUNDS
    routes = {
        "t": TopicRoute(
            targets=frozenset(), transforms=TransformSettings(values={}, topic="a.t"), is_dated=True
        )
    }

    def logs(**plan: Any) -> Verification:
        full = FlowPlan(pairs={PAIR: BOUNDS}, routes=routes, **plan)
        return Verification(logs=tuple(flow_logs(full, [good(), found, other])))

    result = logs()
    assert [log.remote.partition.topic for log in result.logs if log.remote] == ["a.t", "day-1"]
    assert (result.verdict, result.counts.compared) == (SAME, 14)
    assert len(logs(unmapped=frozenset({PAIR})).unseen) == 2, "of both logs"
    taken = logs(writers={"day-1": [Writer("a-to-b", "t"), Writer("other", "u")]})
    assert (taken.verdict, taken.counts.compared) == (NOT_SEEN, 7)
    assert "records of u of flow other go to day-1, too" in taken.unseen[0].reason


def test_only_an_empty_partition_that_the_source_never_had_is_dropped() -> None:
    """Goal: any other error of the source leaves the partition in the report."""
    topic = MirrorTopic(mirror="a-to-b", topic="t", topic_id=UUID(int=1), partitions=2)
    unknown = LogBounds(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1, -1)
    leaderless = LogBounds(ErrorCode.LEADER_NOT_AVAILABLE, -1, -1, -1)
    empty, filled = LogBounds(0, 3, 3, 3), LogBounds(0, 0, 1, 1)
    assert is_only_remote(topic, 2, Sides(unknown, empty))
    assert not is_only_remote(topic, 1, Sides(unknown, empty))
    assert not is_only_remote(topic, 2, Sides(leaderless, empty))
    assert not is_only_remote(topic, 2, Sides(unknown, filled))
    assert not is_only_remote(topic, 2, Sides(unknown, unknown))


def test_each_side_and_the_map_can_make_it_differ() -> None:
    for side in ("source", "remote", "recorded"):
        result = good()
        getattr(result, side).differ(3, 4, DifferenceKind.CONTENT)
        assert verdict(result).verdict == DIFFERS, side


def test_the_json_form_of_a_flow_is_stable() -> None:
    """Goal: the fields of an exact mirror, and those of the remote log."""
    result = good()
    result.remote.compared -= 1
    result.remote.differ(4, 5, "a record too many")
    counts = {
        "absent": {
            "marker": 1,
            "aborted": 0,
            "compacted": 0,
            "log_start": 0,
            "filtered": 0,
            "routed": 0,
            "other_topics": 0,
        },
        "not_seen": 0,
    }
    data = json_data(verdict(result))
    assert json.loads(json.dumps(data))["logs"] == [
        {
            "topic": "t",
            "partition": 0,
            "length": 10,
            "compared": 7,
            "differs": 0,
            **counts,
            "behind": 2,
            "remote": {
                "flow": "a-to-b",
                "topic": "a.t",
                "partition": 0,
                "length": 8,
                "compared": 6,
                "differs": 1,
                **counts,
                "behind": 0,
                "recorded_map": {"agrees": 7, "differs": 0, "not_seen": 0},
            },
        }
    ]
