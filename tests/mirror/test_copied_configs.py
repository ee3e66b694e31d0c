"""Twin of twinlog.mirror.copied_configs."""

import re

from twinlog.mirror.copied_configs import (
    agreed_changes,
    left_out,
    remote_changes,
    remote_configs,
)
from twinlog.mirror.topic_configs import TIERED_STORAGE, DestinationConfig, SourceConfig

EXCLUDE = [re.compile(r"min\.insync\.replicas")]
SOURCE = {
    "retention.ms": SourceConfig("5", explicit=True),
    "segment.bytes": SourceConfig("7", explicit=False),
    "min.insync.replicas": SourceConfig("2", explicit=True),
    "new.in.7": SourceConfig("1", explicit=True),
}
KNOWN = ["retention.ms", "segment.bytes", "min.insync.replicas"]


def test_only_explicit_known_and_not_excluded_configurations_are_copied() -> None:
    assert remote_configs(SOURCE, EXCLUDE, KNOWN, source_defaults=False) == {"retention.ms": "5"}


def test_the_defaults_of_the_source_are_copied_on_request() -> None:
    configs = remote_configs(SOURCE, EXCLUDE, KNOWN, source_defaults=True)
    assert configs == {"retention.ms": "5", "segment.bytes": "7"}


def test_what_is_not_set_on_the_source_is_unset_and_excluded_ones_stay() -> None:
    current = {
        "retention.ms": DestinationConfig("9", explicit=True),
        "segment.bytes": DestinationConfig("7", explicit=False),
        "cleanup.policy": DestinationConfig("compact", explicit=True),
        "min.insync.replicas": DestinationConfig("1", explicit=True),
    }
    changes = remote_changes({"retention.ms": "5"}, current, EXCLUDE)
    assert changes == {"retention.ms": "5", "cleanup.policy": None}


def test_an_equal_default_is_set_as_the_default_may_change() -> None:
    current = {"retention.ms": DestinationConfig("5", explicit=False)}
    assert remote_changes({"retention.ms": "5"}, current, []) == {"retention.ms": "5"}
    explicit = {"retention.ms": DestinationConfig("5", explicit=True)}
    assert remote_changes({"retention.ms": "5"}, explicit, []) == {}


TIERED = {name: SourceConfig("true", explicit=True) for name in TIERED_STORAGE}


def test_tiered_storage_is_neither_copied_nor_unset() -> None:
    """Goal: a target without it accepts the topic, and one with it keeps what its operator set."""
    assert not remote_configs(TIERED, [], TIERED_STORAGE, source_defaults=False)
    assert not remote_configs(TIERED, [], TIERED_STORAGE, source_defaults=True)
    current = {name: DestinationConfig("true", explicit=True) for name in TIERED_STORAGE}
    assert not remote_changes({}, current, [])


def test_what_is_left_out_is_named_unless_it_is_excluded() -> None:
    source = {
        **SOURCE,
        "remote.storage.enable": SourceConfig("true", explicit=True),
        "local.retention.ms": SourceConfig("1000", explicit=True),
        "local.retention.bytes": SourceConfig("-2", explicit=False),
    }
    assert left_out(source, []) == ["remote.storage.enable", "local.retention.ms"]
    assert left_out(source, [re.compile(r"(remote|local)\..*")]) == []


def test_topics_that_share_a_copy_change_what_they_agree_on() -> None:
    """Goal: no topic undoes what another one sets; unsetting is a change like others."""
    one = {"retention.ms": "5", "max.message.bytes": "9", "cleanup.policy": None}
    other = {
        "retention.ms": "7",
        "max.message.bytes": "9",
        "cleanup.policy": None,
        "segment.ms": "1",
    }
    both = {"max.message.bytes": "9", "cleanup.policy": None}
    assert agreed_changes([one, other]) == agreed_changes([other, one]) == both
    assert agreed_changes([one]) == one
    assert agreed_changes([one, {}, other]) == {}
    assert agreed_changes([{"retention.ms": None}, {"segment.ms": "1"}]) == {}
