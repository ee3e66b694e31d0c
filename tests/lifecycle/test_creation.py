"""Checks before any request to a cluster; the rest: interfaces/cli/test_kafka_mirrors.py."""

import asyncio
from types import MappingProxyType
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import Topic
from twinlog.kafka.client.references import NOTHING
from twinlog.kafka.errors import UserError
from twinlog.lifecycle.changes import alter_mirror
from twinlog.lifecycle.creation import check_properties, create_mirror, resolve
from twinlog.mirror.errors import MirrorError, MirrorRefused

SERVERS = {"bootstrap.servers": "h:1"}


def topics(*names: str, internal: tuple[str, ...] = ()) -> dict[str, Topic]:
    return {
        name: Topic(name, UUID(int=1), name in internal, MappingProxyType({}))
        for name in (*names, *internal)
    }


def test_unused_security_settings_are_warnings() -> None:
    """Files that work for Kafka's clients contain them."""
    config, warnings = check_properties({**SERVERS, "ssl.protocol": "TLSv1.3"}, NOTHING)
    assert config.bootstrap_servers[0].port == 1
    assert warnings == ("ssl.protocol is not used by twinlog",)


def test_settings_that_are_not_of_a_mirror_are_refused() -> None:
    with pytest.raises(UserError, match=r"fetch\.min\.bytes: not a setting of a mirror"):
        check_properties({**SERVERS, "fetch.min.bytes": "1"}, NOTHING)


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        (
            {"bootstrap.server": "h:1"},
            r"bootstrap\.server: not a setting of a mirror; expected bootstrap\.servers",
        ),
        ({}, r"bootstrap\.servers is '': expected"),
        (
            {**SERVERS, "mirror.topic.num.partitions": "4"},
            r"mirror\.topic\.num\.partitions is not .* of the control topics; .*--command-config",
        ),
    ],
)
def test_misplaced_settings_are_refused(properties: dict[str, str], words: str) -> None:
    """An unknown setting is reported before a missing one."""
    with pytest.raises(UserError, match=words):
        check_properties(properties, NOTHING)


def test_an_expression_split_by_a_comma_is_refused() -> None:
    """--create and --alter refuse it before any request to a cluster; a stored one still works."""
    properties = {**SERVERS, "mirror.groups.include": r"app-\d{1,3}"}
    unreached = KafkaCluster(check_properties(properties, NOTHING)[0])
    for action in (create_mirror, alter_mirror):
        with pytest.raises(UserError, match="unbalanced"):
            asyncio.run(action(unreached, "m", properties))


def test_expressions_match_in_full_and_skip_internal_topics() -> None:
    some = topics("a", "ab", "b", internal=("__c", "marked"))
    assert resolve("a.?", some) == ["a", "ab"]
    assert resolve(".*", some) == ["a", "ab", "b"]
    assert resolve("__c", some) == ["__c"]
    with pytest.raises(MirrorRefused, match=r"UNKNOWN_TOPIC_OR_PARTITION.*the rights of.*internal"):
        resolve("__.*", some)


def test_a_topic_name_takes_precedence_over_an_expression() -> None:
    assert resolve("a.b", topics("a.b", "axb")) == ["a.b"]
    assert resolve("a.b", topics("axb")) == ["axb"]


def test_listed_names_must_exist_and_are_no_expressions() -> None:
    some = topics("a", "ab", internal=("__c",))
    assert resolve({"ab", "a", "__c"}, some) == ["__c", "a", "ab"]
    with pytest.raises(MirrorRefused, match=r"UNKNOWN_TOPIC_OR_PARTITION: .*: a\.\*, x"):
        resolve(["a", "x", "a.*"], some)


@given(st.text(max_size=20))
def test_any_expression_gives_topics_or_a_documented_error(expression: str) -> None:
    """Any expression gives topics, or one of two errors."""
    try:
        assert resolve(expression, topics("a", "b"))
    except MirrorRefused as refused:
        assert refused.kind in {  # noqa: PT017
            MirrorError.INVALID_REGULAR_EXPRESSION,
            MirrorError.UNKNOWN_TOPIC_OR_PARTITION,
        }


@pytest.mark.parametrize("expression", ["*", "(", "[a", "a{99999999999999999999}", "(?P<1>a)"])
def test_invalid_expressions_are_refused(expression: str) -> None:
    with pytest.raises(MirrorRefused) as caught:
        resolve(expression, topics("a"))
    assert caught.value.kind is MirrorError.INVALID_REGULAR_EXPRESSION
