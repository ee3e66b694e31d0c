"""Records of `__mirror_config`: round trips, readable values, and any bytes."""

from contextlib import suppress
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.kafka.acls import Acl, Operation, PatternType, Permission, ResourceType
from twinlog.kafka.errors import ProtocolError
from twinlog.store.config_records import (
    ConfigRecord,
    Feature,
    Followed,
    MadeAcl,
    MadeFor,
    Mirror,
    MirrorTopic,
    NotMirrored,
    StopRequest,
    Tombstone,
    Wanted,
    decode,
    encode,
    encode_key,
    key_of,
    topic_id_of,
    topic_id_text,
)

text = st.text(max_size=20)
acls = st.builds(
    Acl,
    st.sampled_from(ResourceType),
    text,
    st.sampled_from(PatternType),
    text,
    text,
    st.sampled_from(Operation),
    st.sampled_from(Permission),
)
records = st.one_of(
    st.builds(
        Followed,
        mirror=text,
        topic=text,
        destination_topic_id=st.none() | st.uuids(),
        caught_up_ms=st.integers(0, 1 << 50),
        retention_ms=st.integers(0, 1 << 50),
        behind_ms=st.integers(0, 1 << 50),
    ),
    st.builds(
        NotMirrored,
        mirror=text,
        topics=st.dictionaries(text, text, max_size=4).map(
            lambda found: tuple(sorted(found.items()))
        ),
        total=st.integers(0, 10_000),
    ),
    st.builds(
        Mirror,
        name=text,
        source=st.dictionaries(text, text, max_size=4),
        source_cluster_id=text,
        topic_patterns=st.lists(text, max_size=3).map(tuple),
        replication_factor=st.none() | st.integers(1, 9),
        paused=st.booleans(),
    ),
    st.builds(
        MirrorTopic,
        mirror=text,
        topic=text,
        topic_id=st.uuids(),
        partitions=st.integers(1, 10_000),
        wanted=st.sampled_from(Wanted),
        whole=st.booleans(),
        known_before=st.booleans(),
        source_deleted=st.booleans(),
        not_selected=st.booleans(),
        origins=st.lists(text, max_size=3).map(tuple),
        set_back=st.none()
        | st.dictionaries(text, text, max_size=3).map(lambda found: tuple(sorted(found.items()))),
        destination_topic_id=st.none() | st.uuids(),
        lost_topic_ids=st.lists(st.uuids(), max_size=3).map(tuple),
        begins=st.lists(st.integers(-1, 2**63 - 1), max_size=4).map(tuple),
        followed_from=st.lists(st.integers(-1, 2**63 - 1), max_size=4).map(tuple),
    ),
    st.builds(MadeAcl, mirror=text, acl=acls, made_for=st.sampled_from(MadeFor)),
    st.builds(StopRequest, node=text, requested_ms=st.integers(0, 2**62)),
    st.builds(Feature, name=text, level=st.integers(0, 2**15)),
)


@given(records)
def test_config_records_survive_encoding_and_decoding(record: ConfigRecord) -> None:
    key, value = encode(record)
    assert decode(key, value) == record
    assert decode(key, None) == Tombstone(key_of(record))
    assert key == encode_key(key_of(record))


def test_topic_records_have_a_stable_json_form() -> None:
    """The exact bytes: they are stored, so they never change."""
    topic = MirrorTopic(mirror="m", topic="orders", topic_id=UUID(int=(1 << 64) + 2), partitions=3)
    assert encode(topic) == (
        b'["topic","m","orders"]',
        b'{"partitions":3,"topic_id":"AAAAAAAAAAEAAAAAAAAAAg","version":1,"wanted":"MIRRORING"}',
    )
    assert encode(replace(topic, origins=("b", "a")))[1].startswith(b'{"origins":["b","a"],"part')
    known = replace(topic, destination_topic_id=UUID(int=3))
    assert encode(known)[1].startswith(b'{"destination_topic_id":"AAAAAAAAAAAAAAAAAAAAAw","part')
    assert encode(replace(topic, begins=(-1, 41)))[1].startswith(b'{"begins":[-1,41],"part')
    followed = replace(topic, followed_from=(7, 0))
    assert encode(followed)[1].startswith(b'{"followed_from":[7,0],"part')
    assert encode(replace(topic, whole=True))[1].endswith(b'"wanted":"MIRRORING","whole":true}')
    before = encode(replace(topic, known_before=True))[1]
    assert before.startswith(b'{"known_before":true,"partitions":3,')
    recorded = replace(topic, offsets_topic_id=UUID(int=3))
    assert encode(recorded)[1].startswith(b'{"offsets_topic_id":"AAAAAAAAAAAAAAAAAAAAAw","part')


def test_partitions_that_another_program_has_copied_begin_behind_it() -> None:
    """Goal: only those that have an offset; a topic may have grown since."""
    topic = MirrorTopic(
        mirror="m", topic="t", topic_id=UUID(int=1), partitions=4, begins=(0, -1, 7)
    )
    assert [topic.begin(index) for index in range(4)] == [0, None, 7, None]
    key, value = encode(topic)
    for broken in (b"[-2]", b"[true]", b"[1.5]", b'["1"]', b"7", b"[9223372036854775808]"):
        with pytest.raises(ProtocolError, match="begins"):
            decode(key, value.replace(b"[0,-1,7]", broken))


def test_where_a_flow_follows_partitions_from() -> None:
    """Goal: 0 is an offset, and -1 is none; a version without the field has stored none."""
    topic = MirrorTopic(
        mirror="m", topic="t", topic_id=UUID(int=1), partitions=4, followed_from=(0, -1, 7)
    )
    assert [topic.follows_from(index) for index in range(4)] == [0, None, 7, None]
    key, value = encode(topic)
    with pytest.raises(ProtocolError, match="followed_from"):
        decode(key, value.replace(b"[0,-1,7]", b"[-2]"))


def test_feature_records_have_a_stable_json_form() -> None:
    """The exact bytes: a version that does not know the level must be able to read it."""
    assert encode(Feature(name="mirror.version", level=2)) == (
        b'["feature","mirror.version"]',
        b'{"level":2,"version":1}',
    )


def test_an_acl_of_source_and_destination_has_separate_keys() -> None:
    """It is stored under two keys; the exact bytes of the source's."""
    acl = Acl(
        *(ResourceType.TOPIC, "t", PatternType.LITERAL, "User:p", "*"),
        *(Operation.WRITE, Permission.DENY),
    )
    on_source, on_destination = (
        MadeAcl(mirror="m", acl=acl, made_for=one)
        for one in (MadeFor.SWITCHOVER, MadeFor.READ_ONLY)
    )
    assert encode(on_source) == (
        b'["source-acl","m","TOPIC","t","LITERAL","User:p","*","WRITE","DENY"]',
        b'{"made_for":"SWITCHOVER","version":1}',
    )
    assert key_of(on_source) != key_of(on_destination)


def test_references_to_secrets_are_stored_unresolved_and_not_shown() -> None:
    """The references are stored as the user wrote them; `repr` leaves the properties out."""
    source = {"bootstrap.servers": "h:1", "ssl.key.password": "${file:/etc/s.properties:key}"}
    mirror = Mirror(name="m", source=source, source_cluster_id="id")
    decoded = decode(*encode(mirror))
    assert isinstance(decoded, Mirror)
    assert decoded.source == source
    assert "password" not in repr(mirror)


def test_record_kinds_of_later_versions_are_ignored() -> None:
    assert decode(b'["flow","f"]', b"whatever") is None
    assert decode(b'["mirror","m","n"]', b"whatever") is None


@pytest.mark.parametrize(
    ("key", "value", "trouble"),
    [
        (None, b"{}", "is not valid JSON"),
        (b"{}", b"{}", "is not a list of strings"),
        (b"[1]", b"{}", "is not a list of strings"),
        (b'["mirror","m"]', b"[]", "is not a JSON object"),
        (b'["mirror","m"]', b'{"version":2}', "version is 2, expected 1"),
        (b'["stop","n"]', b'{"version":1,"requested_ms":"1"}', "requested_ms is '1'"),
        (
            b'["topic","m","t"]',
            b'{"version":1,"topic_id":"AAAAAAAAAAEAAAAAAAAAAg","partitions":1,"wanted":"GONE"}',
            "wanted is 'GONE', expected MIRRORING, PAUSED, STOPPED",
        ),
        (b'["topic","m","t"]', b'{"version":1,"topic_id":"AA","partitions":1}', "1 bytes"),
        # A partition takes memory in every reader, of a mirror's source as well.
        (
            b'["topic","m","t"]',
            b'{"version":1,"topic_id":"AAAAAAAAAAEAAAAAAAAAAg","partitions":1000001}',
            "partitions is 1000001, expected a number from 0 to 1000000",
        ),
        # A lone surrogate cannot be encoded: it ended each lane that had to write about it.
        (rb'["topic","\ud800","t"]', b"{}", "surrogates not allowed"),
        (b'["mirror","m"]', rb'{"version":1,"source":{"\uDFFF":"\ud83d\ude00"}}', "surrogates"),
        (
            b'["source-acl","m","TOPIC","t","LITERAL","User:p","*","WRITE","DENY"]',
            b'{"version":1,"made_for":"READ_ONLY"}',
            "made_for is 'READ_ONLY', expected the one that belongs to a key with source-acl",
        ),
    ],
)
def test_invalid_config_records_are_refused(key: bytes | None, value: bytes, trouble: str) -> None:
    with pytest.raises(ProtocolError, match=trouble):
        decode(key, value)


@given(st.uuids())
def test_topic_ids_have_the_text_form_of_kafka(topic_id: UUID) -> None:
    assert topic_id_of(topic_id_text(topic_id)) == topic_id
    assert len(topic_id_text(topic_id)) == 22


@given(
    st.none() | st.binary(max_size=60) | st.sampled_from([b'["mirror","m"]', b'["topic","m","t"]']),
    st.none() | st.binary(max_size=60) | st.text().map(str.encode),
)
def test_any_bytes_give_a_record_or_a_protocol_error(
    key: bytes | None, value: bytes | None
) -> None:
    """Any bytes give a record, None, or ProtocolError."""
    with suppress(ProtocolError):
        decode(key, value)


@given(st.text(max_size=30))
def test_any_text_gives_a_topic_id_or_a_protocol_error(text: str) -> None:
    with suppress(ProtocolError):
        topic_id_of(text)
