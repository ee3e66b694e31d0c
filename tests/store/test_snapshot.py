"""The snapshot: the last record of a key holds, tombstones delete, no silent loss."""

from dataclasses import replace
from itertools import pairwise
from uuid import UUID

import pytest

from twinlog.kafka.errors import UnsupportedVersion
from twinlog.mirror.placement import MirrorPartition, state_partition
from twinlog.store.config_records import (
    MIRROR_VERSION,
    ConfigRecord,
    Feature,
    Mirror,
    MirrorTopic,
    StopRequest,
    Wanted,
    encode,
    encode_key,
    key_of,
)
from twinlog.store.snapshot import (
    SettingsReplaced,
    Snapshot,
    StoredRecord,
    require_settings,
    shared_topics,
)

MIRROR = Mirror(name="m", source={"bootstrap.servers": "h:1"}, source_cluster_id="c")
TOPIC = MirrorTopic(mirror="m", topic="t", topic_id=UUID(int=7), partitions=3)


def stored_record(record: ConfigRecord, offset: int = 0) -> StoredRecord:
    return StoredRecord(0, offset, *encode(record))


def test_the_last_record_of_a_key_counts() -> None:
    paused = MirrorTopic(
        mirror="m", topic="t", topic_id=UUID(int=7), partitions=4, wanted=Wanted.PAUSED
    )
    first = Snapshot().after([stored_record(MIRROR), stored_record(TOPIC)])
    second = first.after([stored_record(paused)])
    assert first.topics == (TOPIC,)
    assert second.topics == (paused,)
    assert second.mirror_of("t") == paused
    assert second.mirror_of("u") is None


def test_a_tombstone_deletes_its_record() -> None:
    """A topic whose mirror is deleted does not count, in any order of the tombstones."""
    full = Snapshot().after([stored_record(MIRROR), stored_record(TOPIC)])
    assert full.after([StoredRecord(0, 2, encode_key(key_of(TOPIC)), None)]).topics == ()
    without = full.after([StoredRecord(0, 2, encode_key(key_of(MIRROR)), None)])
    assert (without.mirrors, without.topics) == ({}, ())


def test_an_unreadable_record_is_kept_until_overwritten() -> None:
    key, _ = encode(TOPIC)
    broken = Snapshot().after([stored_record(MIRROR), StoredRecord(3, 9, key, b"{")])
    assert broken.mirrors == {"m": MIRROR}
    (why,) = broken.unreadable.values()
    assert why.startswith("__mirror_config-3, offset 9: ")
    mended = broken.after([StoredRecord(3, 10, *encode(TOPIC))])
    assert (dict(mended.unreadable), mended.topics) == ({}, (TOPIC,))


def test_an_unreadable_record_invalidates_earlier_records_of_its_key() -> None:
    """Neither for a reader that has read it, nor for a new one after the topic was compacted."""
    key, _ = encode(TOPIC)
    broken = StoredRecord(0, 9, key, b"{")
    followed = Snapshot().after([stored_record(MIRROR), stored_record(TOPIC)]).after([broken])
    assert followed.topics == ()
    assert followed.records == Snapshot().after([stored_record(MIRROR), broken]).records
    assert set(followed.unread) == {key_of(TOPIC)}


def test_an_unreadable_record_deletes_no_topic() -> None:
    """Users of a topic's states keep them until its record is gone."""
    key, _ = encode(TOPIC)
    full = Snapshot().after([stored_record(MIRROR), stored_record(TOPIC)])
    broken = full.after([StoredRecord(0, 9, key, b"{"), StoredRecord(0, 10, b"no key", b"{")])
    assert full.deleted(broken) == set()
    gone = broken.after([StoredRecord(0, 11, key, None)])
    assert broken.deleted(gone) == full.deleted(gone) == {("m", "t")}


def test_a_topic_counts_as_recreated_only_if_both_ids_are_known() -> None:
    ids = [None, UUID(int=1), UUID(int=1), UUID(int=2), None, UUID(int=2)]
    topics = [replace(TOPIC, destination_topic_id=one) for one in ids]
    seen = [Snapshot().after([stored_record(MIRROR), stored_record(topic)]) for topic in topics]
    changes = [before.recreated(now) for before, now in pairwise(seen)]
    assert changes == [set(), set(), {("m", "t")}, set(), set()]
    assert Snapshot().recreated(seen[1]) == set()
    # Not where a flow goes on in the new one: what is stored of its partitions holds.
    goes_on = replace(topics[3], lost_topic_ids=(UUID(int=1),))
    later = Snapshot().after([stored_record(MIRROR), stored_record(goes_on)])
    assert seen[2].recreated(later) == set()


def test_record_kinds_of_later_versions_are_ignored() -> None:
    after = Snapshot().after([StoredRecord(0, 0, b'["flow","f"]', b"{}")])
    assert (after.records, after.unreadable) == ({}, {})


def test_records_of_unknown_kinds_advance_the_read_position() -> None:
    """Records of unknown kinds count, too: a reader asks whether it has reached an offset."""
    first = Snapshot().after([StoredRecord(0, 4, b'["flow","f"]', b"{}"), stored_record(MIRROR)])
    assert first.ends[0] in {1, 5}
    assert first.after([StoredRecord(2, 7, None, None)]).ends[2] == 8


def test_each_mirror_partition_has_exactly_one_state_partition() -> None:
    """Each mirror partition is in exactly the state partition that the hash gives."""
    owned = Snapshot().after([stored_record(MIRROR), stored_record(TOPIC)]).owned(50)
    assert {(place, one) for place, group in owned.items() for one, _ in group} == {
        (state_partition("m", UUID(int=7), index, 50), MirrorPartition("m", "t", index))
        for index in range(3)
    }


def test_stop_requests_are_read() -> None:
    stop = StopRequest(node="n", requested_ms=5)
    assert Snapshot().after([stored_record(stop)]).stops == {"n": stop}


def test_a_missing_mirror_version_means_the_first_format() -> None:
    old = Snapshot().after([stored_record(MIRROR)])
    assert old.level is None
    assert old.known() is old
    first = old.after([stored_record(Feature(name=MIRROR_VERSION, level=1))])
    assert first.level == 1
    assert first.known() is first
    assert first.after([stored_record(Feature(name="another.version", level=9))]).known().level == 1


@pytest.mark.parametrize("level", [0, 2])
def test_an_unknown_mirror_version_is_refused(level: int) -> None:
    """Level 0 is KIP-1279's for mirroring that is switched off."""
    with pytest.raises(UnsupportedVersion) as caught:
        Snapshot().after([stored_record(Feature(name=MIRROR_VERSION, level=level))]).known()
    assert str(caught.value) == (
        f"UNSUPPORTED_VERSION: the control topics have mirror.version {level}, "
        "expected 1; use a version of twinlog that supports it"
    )
    assert caught.value.code == 35


def test_an_unreadable_mirror_version_is_refused() -> None:
    key, value = encode(Feature(name=MIRROR_VERSION, level=1))
    assert Snapshot().after([StoredRecord(0, 0, key, value)]).known()
    with pytest.raises(UnsupportedVersion, match="unreadable: "):
        Snapshot().after(
            [StoredRecord(0, 0, key, value.replace(b'"version":1', b'"version":2'))]
        ).known()


@pytest.mark.parametrize("in_order", [True, False])
def test_a_removal_overrides_an_older_record_in_another_partition(in_order: bool) -> None:
    """Partitions were added to the topic, and its partitions are read in any order."""
    key, value = encode(TOPIC)
    removed = encode(replace(TOPIC, wanted=Wanted.STOPPED))[1]
    older, newer = StoredRecord(1, 5, key, value, 100), StoredRecord(9, 0, key, removed, 200)
    found = Snapshot().after(
        [stored_record(MIRROR), *([older, newer] if in_order else [newer, older])]
    )
    assert found.topics[0].wanted is Wanted.STOPPED
    assert found.places[key].partition == 9
    gone = StoredRecord(9, 1, key, None, 300)
    records = [older, gone] if in_order else [gone, older]
    assert Snapshot().after([stored_record(MIRROR), *records]).topics == ()


def test_topics_that_are_copied_to_one_topic_are_found() -> None:
    """Goal: by the destination's name; a removed topic counts, as its records are there."""
    renamed = replace(TOPIC, topic="s", destination_topic="t", wanted=Wanted.STOPPED)
    other = replace(TOPIC, topic="r", destination_topic="a.r")
    assert shared_topics([TOPIC, other]) == {}
    assert shared_topics([TOPIC, renamed, other]) == {"t": ["s", "t"]}


def test_settings_that_were_replaced_are_noticed() -> None:
    """Goal: by any of the flow; a pause, or a mirror that is gone, is for others to notice.

    A start that takes over compares for minutes: a throttle, or another path of a keystore, that is
    stored meanwhile does not end it.
    """
    snapshot = Snapshot().after([stored_record(MIRROR)])
    require_settings(snapshot, replace(MIRROR, paused=True))
    require_settings(snapshot, replace(MIRROR, name="gone"))
    require_settings(snapshot, replace(MIRROR, source={"bootstrap.servers": "h:2"}))
    other = {**MIRROR.source, "mirror.flow.topics": "t"}
    for one in (replace(MIRROR, source=other), replace(MIRROR, source_cluster_id="another")):
        with pytest.raises(SettingsReplaced, match="settings of flow m have changed"):
            require_settings(snapshot, one)


def test_the_time_of_a_record_is_that_of_the_last_one_of_its_key() -> None:
    first, last = StoredRecord(0, 1, *encode(TOPIC), 100), StoredRecord(0, 2, *encode(TOPIC), 200)
    assert Snapshot().after([first, last]).stored_ms(TOPIC) == 200
    assert Snapshot().after([stored_record(TOPIC)]).stored_ms(TOPIC) is None
    assert Snapshot().stored_ms(TOPIC) is None
