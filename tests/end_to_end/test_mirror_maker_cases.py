"""MirrorMaker 2's own integration cases, by `twinlog mirror-maker`, each under six conditions.

    renamed         copies have the source's alias before their names
    identity        copies have the source's names
    killed          the flows are killed (SIGKILL, all processes) while they copy: exactly once
    tls             both clusters are reached by TLS
    transactional   producers write in transactions, some of which are aborted
    exactly-once    the flows write in transactions (KIP-656), and are killed while they copy

MirrorMaker 2 translates to the last offset that it has recorded, at most `offset.lag.max` records
behind: a group reads up to as many records again, and none with 0. twinlog translates exactly, so
here a group reads none again, whatever the setting is.

All cases of a condition run beside each other on one pair of clusters (mirror_maker_course.py).
"""

import asyncio
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import librdkafka_tools
import pytest
from flow_ordeal import difference, records_of
from mirror_maker_course import CONDITIONS, PAUSE, Outcomes, Two, run_course
from remote_topics import places
from waiting import SECONDS, until
from whole_logs import read_whole_log

from twinlog.interfaces.client.remote_cluster_utils import RemoteClusterUtils
from twinlog.kafka.types import TopicPartition as KafkaPartition
from twinlog.local.cluster import LocalCluster
from twinlog.local.load import delete_before
from twinlog.mirror.mm2_records import decode_offset_sync_key

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1200)]


def numbered(text: str, start: int, end: int) -> list[str]:
    return [f"{text}-{number}" for number in range(start, end)]


def checkpoint(two: Two, group: str, topic: str, alias: str = "primary") -> int | None:
    """Return the offset on the backup that MirrorMaker 2's clients find for a group."""
    if f"{alias}.checkpoints.internal" not in two.topics(two.backup):
        return None
    servers = {"bootstrap.servers": two.backup.bootstrap_servers}
    found = asyncio.run(RemoteClusterUtils.translate_offsets(servers, alias, group))
    offset = found.get(KafkaPartition(two.remote(topic, alias), 0))
    return None if offset is None else offset.offset


def await_checkpoint(two: Two, group: str, topic: str, record: int) -> None:
    """Wait until the checkpoint of a group is that record's place, counted from 0."""
    at = places(two.backup, two.remote(topic))
    place = at[record] if record < len(at) else at[-1] + 1
    until(
        lambda: checkpoint(two, group, topic),
        SECONDS,
        f"the checkpoint of {group} at record {record}",
        good=lambda found: found == place,
        pause=PAUSE,
    )


def synced_topics(cluster: LocalCluster, topic: str) -> set[str]:
    """Return the topics of which a topic of offset syncs has positions; none: it does not exist."""
    found = read_whole_log(cluster.bootstrap_servers, topic, [0]) or {0: []}
    return {decode_offset_sync_key(message.key()).topic for message in found[0]}


# ---- the cases -----------------------------------------------------------------------------------


def replication_in_both_directions(two: Two) -> Iterator[None]:
    """Topics of both clusters are copied; a group fails over and back, and reads on exactly."""
    name = "both-directions"
    there, back = (name, name) if two.renames else (f"case-{name}", f"back-{name}")
    copy, back_copy = two.remote(there), two.remote(back, "backup")
    ours, theirs, group = numbered("p", 0, 25), numbered("b", 0, 17), f"group-{name}"
    two.create(two.primary, there)
    two.create(two.backup, back)
    two.write(two.primary, there, ours[:20])
    two.write(two.backup, back, theirs[:12])
    two.commit(two.primary, group, there, 8)
    two.commit(two.backup, group, back, 5)
    yield
    two.await_values(two.backup, copy, ours[:20])
    two.await_values(two.primary, back_copy, theirs[:12])
    two.await_next(two.backup, group, copy, 8)
    assert two.resume(two.backup, group, copy) == ours[8:20], "failover"
    two.await_next(two.primary, group, back_copy, 5)
    assert two.resume(two.primary, group, back_copy) == theirs[5:12], "failback"
    yield
    two.write(two.primary, there, ours[20:])
    two.write(two.backup, back, theirs[12:])
    yield
    two.await_values(two.backup, copy, ours)
    two.await_values(two.primary, back_copy, theirs)
    assert two.resume(two.backup, group, copy) == ours[20:], "not again what it has read there"
    assert two.resume(two.primary, group, back_copy) == theirs[12:]
    assert two.values(two.primary, there) == ours, "no record comes back to where it was written"
    for cluster, alias in ((two.backup, "primary"), (two.primary, "backup")):
        servers = {"bootstrap.servers": cluster.bootstrap_servers}
        until(
            lambda servers=servers, alias=alias: asyncio.run(
                RemoteClusterUtils.replication_hops(servers, alias)
            ),
            SECONDS,
            f"heartbeats of {alias}",
            good=lambda hops: hops == 1,
            pause=PAUSE,
        )
        twice = ("backup.primary.", "primary.backup.")
        assert not [name for name in two.topics(cluster) if name.startswith(twice)]


def group_offset_of_an_empty_partition(two: Two) -> Iterator[None]:
    """A group that has read nothing of a partition, since it is empty, begins at its beginning."""
    topic, group = "case-empty-partition", "group-empty-partition"
    copy, values = two.remote(topic), numbered("v", 0, 10)
    two.create(two.primary, topic, 2)
    two.write(two.primary, topic, values)
    two.commit(two.primary, group, topic, 10)
    librdkafka_tools.commit(two.primary.bootstrap_servers, group, topic, {1: 0})
    yield
    two.await_values(two.backup, copy, values)
    two.await_next(two.backup, group, copy, 10)
    assert two.resume(two.backup, group, copy) == []
    assert two.resume(two.backup, group, copy, 1) == []
    yield
    two.write(two.primary, topic, ["first", "second"], 1)
    yield
    two.await_values(two.backup, copy, ["first", "second"], 1)
    found = librdkafka_tools.committed(two.backup.bootstrap_servers, group, copy)
    assert found[1] == 0
    assert two.resume(two.backup, group, copy, 1) == ["first", "second"]
    assert two.resume(two.backup, group, copy) == []


def _one_way(two: Two, alias: str, prefix: str) -> Iterator[None]:
    flow, group = f"{alias}-to-backup", f"group-one-way-{prefix}"
    first, second = f"{prefix}-one-way-first", f"{prefix}-one-way-second"
    values = numbered("v", 0, 40)
    for topic in (first, second):
        two.create(two.primary, topic)
    yield
    for topic in (first, second):
        two.await_state(flow, topic, "MIRRORING")
        two.write(two.primary, topic, values[:30])
        two.await_values(two.backup, two.remote(topic, alias), values[:30])
    two.commit(two.primary, group, first, 30)
    two.commit(two.primary, group, second, 20)
    two.await_next(two.backup, group, two.remote(first, alias), 30)
    two.await_next(two.backup, group, two.remote(second, alias), 20)
    assert two.resume(two.backup, group, two.remote(first, alias)) == []
    assert two.resume(two.backup, group, two.remote(second, alias)) == values[20:30]
    yield
    two.write(two.primary, first, values[30:])
    two.commit(two.primary, group, first, 35)
    yield
    two.await_values(two.backup, two.remote(first, alias), values)
    two.await_next(two.backup, group, two.remote(first, alias), 35)
    assert two.resume(two.backup, group, two.remote(first, alias)) == values[35:]


def one_way_with_groups(two: Two) -> Iterator[None]:
    """With offset.lag.max=100 a group reads less than that again; here none."""
    yield from _one_way(two, "primary", "case")


def one_way_without_lag(two: Two) -> Iterator[None]:
    """With offset.lag.max=0 a group reads nothing again."""
    yield from _one_way(two, "late", "late")


def no_bookkeeping_when_switched_off(two: Two) -> Iterator[None]:
    """Without emit.offset-syncs there are no offset syncs, no checkpoints, no group offsets."""
    topic, group, values = "off-no-bookkeeping", "group-off", numbered("v", 0, 10)
    copy = two.remote(topic, "off")
    two.create(two.primary, topic)
    two.write(two.primary, topic, values)
    two.commit(two.primary, group, topic, 5)
    yield
    two.await_values(two.backup, copy, values)
    yield
    yield
    syncs = "mm2-offset-syncs.backup.internal"
    found = until(lambda: synced_topics(two.primary, syncs), SECONDS, "syncs of the other flow")
    assert "off-no-bookkeeping" not in found
    assert two.next_record(two.backup, group, copy) is None
    off = {"off.checkpoints.internal", "mm2-offset-syncs.off.internal"}
    assert not off & (two.topics(two.backup) | two.topics(two.primary))


def offset_syncs_on_the_target(two: Two) -> Iterator[None]:
    """With offset-syncs.topic.location=target nothing is written to the source."""
    topic, group, values = "late-syncs-on-target", "group-syncs-on-target", numbered("v", 0, 10)
    two.create(two.primary, topic)
    yield
    two.await_state("late-to-backup", topic, "MIRRORING")
    two.write(two.primary, topic, values)
    two.await_values(two.backup, two.remote(topic, "late"), values)
    two.commit(two.primary, group, topic, 4)
    until(
        lambda: topic in synced_topics(two.backup, "mm2-offset-syncs.late.internal"),
        SECONDS,
        "offset syncs on the target",
        pause=PAUSE,
    )
    place = places(two.backup, two.remote(topic, "late"))[4]
    until(
        lambda: checkpoint(two, group, topic, "late"),
        SECONDS,
        "the checkpoint",
        good=lambda found: found == place,
        pause=PAUSE,
    )
    yield
    yield
    assert topic not in synced_topics(two.primary, "mm2-offset-syncs.backup.internal")
    assert "mm2-offset-syncs.late.internal" not in two.topics(two.primary)


def nothing_is_translated_before_it_was_mirrored(two: Two) -> Iterator[None]:
    """A group's offset of a topic without records has no checkpoint, until there is a record.

    Its offset on the target is the beginning, where the first record will be: that is exact.
    """
    full, empty, group = "case-translated", "case-untranslated", "group-untranslated"
    two.create(two.primary, full)
    two.create(two.primary, empty)
    two.write(two.primary, full, numbered("v", 0, 10))
    two.commit(two.primary, group, full, 10)
    librdkafka_tools.commit(two.primary.bootstrap_servers, group, empty, {0: 0})
    yield
    two.await_topic(two.backup, two.remote(empty))
    two.await_values(two.backup, two.remote(full), numbered("v", 0, 10))
    await_checkpoint(two, group, full, 10)
    two.await_next(two.backup, group, two.remote(empty), 0)
    assert checkpoint(two, group, empty) is None
    yield
    two.write(two.primary, empty, numbered("w", 0, 10))
    two.commit(two.primary, group, empty, 6)
    yield
    two.await_values(two.backup, two.remote(empty), numbered("w", 0, 10))
    await_checkpoint(two, group, empty, 6)
    await_checkpoint(two, group, full, 10)


def restart_in_the_middle(two: Two) -> Iterator[None]:
    """Records and a group's offsets go on where they were; nothing is copied twice."""
    topic, group, values = "case-restart", "group-restart", numbered("v", 0, 60)
    copy = two.remote(topic)
    two.create(two.primary, topic)
    yield
    two.write(two.primary, topic, values[:30])
    two.await_values(two.backup, copy, values[:30])
    two.commit(two.primary, group, topic, 30)
    two.await_next(two.backup, group, copy, 30)
    await_checkpoint(two, group, topic, 30)
    yield
    two.write(two.primary, topic, values[30:50])
    two.commit(two.primary, group, topic, 45)
    yield
    two.await_values(two.backup, copy, values[:50])
    two.await_next(two.backup, group, copy, 45)
    two.write(two.primary, topic, values[50:])
    two.await_values(two.backup, copy, values)
    two.commit(two.primary, group, topic, 60)
    two.await_next(two.backup, group, copy, 60)
    await_checkpoint(two, group, topic, 60)


def translation_behind_the_flow(two: Two) -> Iterator[None]:
    """A group that is far behind what is copied is translated, forwards and back, exactly."""
    topic, group, values = "case-behind", "group-behind", numbered("v", 0, 1000)
    copy = two.remote(topic)
    two.create(two.primary, topic)
    two.write(two.primary, topic, values[:10])
    two.commit(two.primary, group, topic, 10)
    yield
    two.await_values(two.backup, copy, values[:10])
    await_checkpoint(two, group, topic, 10)
    for first in range(10, 1000, 99):
        two.write(two.primary, topic, values[first : first + 99])
    two.await_values(two.backup, copy, values)
    two.commit(two.primary, group, topic, 900)
    await_checkpoint(two, group, topic, 900)
    two.await_next(two.backup, group, copy, 900)
    yield
    yield
    two.commit(two.primary, group, topic, 100)
    await_checkpoint(two, group, topic, 100)
    two.await_next(two.backup, group, copy, 100)


def configurations_are_synced_or_excluded(two: Two) -> Iterator[None]:
    """What is changed on the target is set back, unless config.properties.exclude has it."""
    topic = "case-configs"
    copy, config = two.remote(topic), {"delete.retention.ms": "1000", "retention.bytes": "1000000"}
    two.create(two.primary, topic, config=config)
    yield
    two.await_topic(two.backup, copy)
    two.alter(two.backup, copy, delete_retention_ms="2000", retention_bytes="2000000")
    two.await_configs(two.backup, copy, delete_retention_ms="2000", retention_bytes="1000000")
    yield
    two.alter(two.primary, topic, retention_bytes="3000000", delete_retention_ms="3000")
    yield
    two.await_configs(two.backup, copy, delete_retention_ms="2000", retention_bytes="3000000")


def configurations_with_defaults_of_the_source(two: Two) -> Iterator[None]:
    """With use.defaults.from=source, the source's default replaces what is set on the target."""
    topic = "late-source-defaults"
    copy = two.remote(topic, "late")
    two.create(two.primary, topic)
    yield
    two.await_topic(two.backup, copy)
    two.alter(two.backup, copy, delete_retention_ms="2000", retention_bytes="2000000")
    two.await_configs(two.backup, copy, delete_retention_ms="2000", retention_bytes="-1")
    yield
    two.alter(two.backup, copy, retention_bytes="4000000")
    yield
    two.await_configs(two.backup, copy, delete_retention_ms="2000", retention_bytes="-1")


def configurations_with_defaults_of_the_target(two: Two) -> Iterator[None]:
    """What is no longer set on the source has the target's default again."""
    topic = "case-target-defaults"
    copy = two.remote(topic)
    two.create(two.primary, topic, config={"retention.bytes": "1000000"})
    yield
    two.await_topic(two.backup, copy)
    two.await_configs(two.backup, copy, retention_bytes="1000000")
    two.alter(two.primary, topic, retention_bytes=None)
    two.await_configs(two.backup, copy, retention_bytes="-1")
    yield
    two.alter(two.primary, topic, retention_bytes="5000000")
    yield
    two.await_configs(two.backup, copy, retention_bytes="5000000")


def starting_from_latest(two: Two) -> Iterator[None]:
    """With auto.offset.reset=latest, nothing older than the flow is copied, and all that is newer.

    After the restart it goes on where it was, also in a topic that had no record before. A topic or
    partition that is added later is copied from its first record on, also if no flow was running.
    """
    topic, empty, values = "late-from-latest", "late-from-latest-empty", numbered("v", 0, 19)
    new = "late-from-latest-new"
    two.create(two.primary, topic)
    two.create(two.primary, empty)
    two.write(two.primary, topic, numbered("old", 0, 10))
    yield
    two.await_state("late-to-backup", topic, "MIRRORING")
    two.await_state("late-to-backup", empty, "MIRRORING")
    two.create(two.primary, new)
    two.write(two.primary, new, values)
    two.write(two.primary, topic, values[:5])
    two.await_values(two.backup, two.remote(topic, "late"), values[:5])
    two.await_values(two.backup, two.remote(new, "late"), values)
    yield
    two.write(two.primary, topic, values[5:])
    two.write(two.primary, empty, values)
    for grown in (topic, new):
        librdkafka_tools.grow_topic(two.primary.bootstrap_servers, grown, 2)
        two.write(two.primary, grown, values, partition=1)
    yield
    two.await_values(two.backup, two.remote(topic, "late"), values)
    two.await_values(two.backup, two.remote(empty, "late"), values)
    for grown in (topic, new):
        two.await_values(two.backup, two.remote(grown, "late"), values, partition=1)


def _lose(two: Two, topic: str) -> tuple[list[str], int]:
    """Write ten records, and delete five of them; return those that are left, and their start."""
    values = numbered("later", 0, 10)
    two.write(two.primary, topic, values)
    start = places(two.primary, topic)[15]
    delete_before(two.primary.bootstrap_servers, [(topic, 0, start)])
    return values[5:], start


def loss_is_reported_and_passed_over(two: Two) -> Iterator[None]:
    """Retention deletes records that were not copied: with `continue`, the others are copied."""
    topic, values = "case-lost", numbered("v", 0, 10)
    two.create(two.primary, topic)
    two.write(two.primary, topic, values)
    yield
    two.await_values(two.backup, two.remote(topic), values)
    yield
    left, start = _lose(two, topic)
    yield
    two.await_values(two.backup, two.remote(topic), [*values, *left])
    row = until(
        lambda: two.row("primary-to-backup", topic),
        SECONDS,
        "the count of lost offsets",
        good=lambda found: bool(found and found["filled_offsets"]["log_start"]),
        pause=4 * PAUSE,
    )
    assert row["filled_offsets"]["log_start"] >= 5
    said = rf"{topic}-0: the source deleted records \[\d+, {start}\) before they were copied"
    assert re.search(said, two.log())


def loss_is_reported_and_the_partition_fails(two: Two) -> Iterator[None]:
    """Without `continue` nothing more is copied, and the reason has the range of offsets."""
    topic, values = "off-lost", numbered("v", 0, 10)
    two.create(two.primary, topic)
    two.write(two.primary, topic, values)
    yield
    two.await_values(two.backup, two.remote(topic, "off"), values)
    yield
    _, start = _lose(two, topic)
    yield
    row = two.await_state("off-to-backup", topic, "FAILED")
    assert "the source deleted records [" in row["reason"]
    assert f", {start}) before they were copied" in row["reason"]
    assert two.values(two.backup, two.remote(topic, "off")) == values


def a_recreated_topic_is_copied_behind_the_former_one(two: Two) -> Iterator[None]:
    """Nothing of the new topic is left out; MirrorMaker 2 goes on at its old offset."""
    topic, former, later = "case-recreated", numbered("former", 0, 8), numbered("later", 0, 12)
    two.create(two.primary, topic)
    two.write(two.primary, topic, former)
    yield
    two.await_values(two.backup, two.remote(topic), former)
    yield
    librdkafka_tools.delete_topic(two.primary.bootstrap_servers, topic)
    two.create(two.primary, topic)
    two.write(two.primary, topic, later)
    yield
    two.await_values(two.backup, two.remote(topic), [*former, *later])


def a_recreated_topic_fails_unless_it_is_to_be_copied(two: Two) -> Iterator[None]:
    """Without `continue` the new topic is not mixed with the former one."""
    topic, former = "off-recreated", numbered("former", 0, 8)
    two.create(two.primary, topic)
    two.write(two.primary, topic, former)
    yield
    two.await_values(two.backup, two.remote(topic, "off"), former)
    yield
    librdkafka_tools.delete_topic(two.primary.bootstrap_servers, topic)
    two.create(two.primary, topic)
    two.write(two.primary, topic, numbered("later", 0, 12))
    yield
    row = two.await_state("off-to-backup", topic, "FAILED")
    assert "deleted and recreated" in row["reason"]
    assert two.values(two.backup, two.remote(topic, "off")) == former


def each_record_once_under_load(two: Two) -> Iterator[None]:
    """Records are written all the time, also while the flows end: each is copied once, in order."""
    topic, ended = "case-load", threading.Event()
    copy = two.remote(topic)
    two.create(two.primary, topic, 2)
    failures: list[BaseException] = []

    def load() -> None:
        number = 0
        try:
            while not ended.wait(0.02):
                two.write(two.primary, topic, numbered("v", number, number + 14), number % 2)
                number += 14 + 1
        except BaseException as error:
            failures.append(error)

    writer = threading.Thread(target=load, daemon=True)
    try:
        yield
        writer.start()
        until(
            lambda: len(two.values(two.backup, copy)) > 50,
            SECONDS,
            "the first records",
            pause=PAUSE,
        )
        yield
        yield
        before = len(two.values(two.backup, copy))
        until(
            lambda: len(two.values(two.backup, copy)) > before + 50,
            SECONDS,
            "later records",
            pause=PAUSE,
        )
    finally:
        ended.set()
    writer.join()
    assert not failures, failures
    for partition in (0, 1):
        wanted = records_of(two.primary.bootstrap_servers, topic, partition, "read_committed")
        two.await_values(two.backup, copy, two.values(two.primary, topic, partition), partition)
        # What a killed flow has written in a transaction is aborted, and written again.
        aborts = two.condition == "exactly-once"
        for isolation in ("read_committed",) if aborts else ("read_committed", "read_uncommitted"):
            found = records_of(two.backup.bootstrap_servers, copy, partition, isolation)
            assert found == wanted, difference(wanted, found)


CASES = (
    each_record_once_under_load,
    replication_in_both_directions,
    group_offset_of_an_empty_partition,
    one_way_with_groups,
    one_way_without_lag,
    no_bookkeeping_when_switched_off,
    offset_syncs_on_the_target,
    nothing_is_translated_before_it_was_mirrored,
    restart_in_the_middle,
    translation_behind_the_flow,
    configurations_are_synced_or_excluded,
    configurations_with_defaults_of_the_source,
    configurations_with_defaults_of_the_target,
    starting_from_latest,
    loss_is_reported_and_passed_over,
    loss_is_reported_and_the_partition_fails,
    a_recreated_topic_is_copied_behind_the_former_one,
    a_recreated_topic_fails_unless_it_is_to_be_copied,
)


# A condition costs minutes. Each of these is tested elsewhere, too.
_LONG = set(CONDITIONS) - {"transactional"}


@pytest.fixture(scope="module")
def courses() -> dict[str, Outcomes]:
    """What became of each condition's cases, once they have run."""
    return {}


@pytest.mark.parametrize("case", [case.__name__ for case in CASES])
@pytest.mark.parametrize(
    "condition",
    [
        pytest.param(condition, marks=[pytest.mark.long] if condition in _LONG else [])
        for condition in CONDITIONS
    ],
)
def test_case(
    courses: dict[str, Outcomes],
    condition: str,
    case: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Goal: what MirrorMaker 2 promises holds, under each condition; see the module."""
    folder: Path
    if condition not in courses:
        folder = tmp_path_factory.mktemp(f"cases-{condition}")
        courses[condition] = run_course(condition, CASES, folder)
    error = courses[condition].errors.get(case)
    if error is not None:
        raise error
