"""Twin of twinlog.mirror.copied_configs; against MirrorMaker 2: test_mirror_maker_java.py."""

import re

import pytest

from twinlog.mirror.copied_configs import (
    agreed_changes,
    left_out,
    remote_changes,
    remote_configs,
    shortened,
)
from twinlog.mirror.topic_configs import (
    KEEPING,
    TIERED_STORAGE,
    ConfigOrigin,
    DestinationConfig,
    SourceConfig,
)


def of(origin: ConfigOrigin, value: str) -> SourceConfig:
    return SourceConfig(value, origin is ConfigOrigin.TOPIC, origin=origin)


EXCLUDE = [re.compile(r"min\.insync\.replicas")]
SOURCE = {
    "retention.ms": of(ConfigOrigin.TOPIC, "5"),
    "segment.bytes": of(ConfigOrigin.DEFAULT, "7"),
    "segment.ms": of(ConfigOrigin.STATIC, "8"),
    "max.message.bytes": of(ConfigOrigin.DYNAMIC, "9"),
    "min.insync.replicas": of(ConfigOrigin.TOPIC, "2"),
    "new.in.7": of(ConfigOrigin.TOPIC, "1"),
}
KNOWN = ["retention.ms", "segment.bytes", "segment.ms", "max.message.bytes", "min.insync.replicas"]
SET = {"retention.ms": "5", "max.message.bytes": "9"}


def test_known_and_not_excluded_configurations_that_are_set_are_copied() -> None:
    assert remote_configs(SOURCE, EXCLUDE, KNOWN, source_defaults=False) == SET


def test_kafkas_defaults_of_the_source_are_copied_on_request() -> None:
    """Goal: a value of a broker's server.properties is not, as with MirrorMaker 2 4.3."""
    configs = remote_configs(SOURCE, EXCLUDE, KNOWN, source_defaults=True)
    assert configs == {**SET, "segment.bytes": "7"}


@pytest.mark.parametrize(
    ("origin", "target", "source"),
    [
        (ConfigOrigin.TOPIC, "5", "5"),
        (ConfigOrigin.DYNAMIC, "5", "5"),
        (ConfigOrigin.STATIC, "9", "9"),
        (ConfigOrigin.DEFAULT, None, "5"),
        (ConfigOrigin.DIFFERENT, "9", "9"),
        (ConfigOrigin.UNKNOWN, "9", "9"),
    ],
)
def test_an_operators_own_value_is_replaced_unset_or_left(
    origin: ConfigOrigin, target: str | None, source: str
) -> None:
    """Goal: a longer retention of an archive stays, unless the source sets one, or has Kafka's.

    `target` and `source` are what becomes of it by `use.defaults.from`.
    """
    configs = {"retention.ms": of(origin, "5")}
    remote = {"retention.ms": DestinationConfig("9", explicit=True)}
    for source_defaults, value in ((False, target), (True, source)):
        wanted = remote_configs(configs, [], remote, source_defaults=source_defaults)
        changes = remote_changes(configs, wanted, remote, [])
        assert changes == ({} if value == "9" else {"retention.ms": value})
        excluded = [re.compile("retention.*")]
        wanted = remote_configs(configs, excluded, remote, source_defaults=source_defaults)
        assert remote_changes(configs, wanted, remote, excluded) == {}


def test_where_the_brokers_differ_a_remote_topic_only_keeps_more() -> None:
    """Goal: it is created with the value that keeps most, and shortened by none."""
    configs = {
        "retention.ms": of(ConfigOrigin.DIFFERENT, "5"),
        "cleanup.policy": of(ConfigOrigin.DIFFERENT, "compact"),
    }
    wanted = remote_configs(configs, [], configs, source_defaults=False)
    assert wanted == {"retention.ms": "5", "cleanup.policy": "compact"}
    for former, changes in (("4", {"retention.ms": "5"}), ("5", {}), ("6", {}), ("-1", {})):
        remote = {
            "retention.ms": DestinationConfig(former, explicit=False),
            "cleanup.policy": DestinationConfig("delete", explicit=False),
        }
        assert remote_changes(configs, wanted, remote, []) == changes


def test_what_the_source_does_not_know_stays_and_so_does_what_is_excluded() -> None:
    """Goal: a configuration that only a newer target has is its operator's."""
    current = {
        "retention.ms": DestinationConfig("9", explicit=True),
        "segment.bytes": DestinationConfig("8", explicit=True),
        "segment.ms": DestinationConfig("9", explicit=True),
        "cleanup.policy": DestinationConfig("compact", explicit=True),
        "min.insync.replicas": DestinationConfig("1", explicit=True),
    }
    wanted = remote_configs(SOURCE, EXCLUDE, current, source_defaults=False)
    changes = remote_changes(SOURCE, wanted, current, EXCLUDE)
    assert changes == {"retention.ms": "5", "segment.bytes": None}


def test_an_equal_default_is_set_as_the_default_may_change() -> None:
    source, wanted = {"retention.ms": of(ConfigOrigin.TOPIC, "5")}, {"retention.ms": "5"}
    current = {"retention.ms": DestinationConfig("5", explicit=False)}
    assert remote_changes(source, wanted, current, []) == {"retention.ms": "5"}
    explicit = {"retention.ms": DestinationConfig("5", explicit=True)}
    assert remote_changes(source, wanted, explicit, []) == {}


@pytest.mark.parametrize("origin", ConfigOrigin)
def test_tiered_storage_is_neither_copied_nor_unset(origin: ConfigOrigin) -> None:
    """Goal: a target without it accepts the topic, and one with it keeps what its operator set."""
    tiered = {name: of(origin, "true") for name in TIERED_STORAGE}
    assert not remote_configs(tiered, [], TIERED_STORAGE, source_defaults=False)
    assert not remote_configs(tiered, [], TIERED_STORAGE, source_defaults=True)
    current = {name: DestinationConfig("true", explicit=True) for name in TIERED_STORAGE}
    assert not remote_changes(tiered, {}, current, [])


def test_what_is_left_out_is_named_unless_it_is_excluded() -> None:
    source = {
        **SOURCE,
        "remote.storage.enable": of(ConfigOrigin.TOPIC, "true"),
        "local.retention.ms": of(ConfigOrigin.DYNAMIC, "1000"),
        "local.retention.bytes": of(ConfigOrigin.DEFAULT, "-2"),
    }
    assert left_out(source, []) == ["remote.storage.enable", "local.retention.ms"]
    assert left_out(source, [re.compile(r"(remote|local)\..*")]) == []


@pytest.mark.parametrize(
    ("name", "former", "value", "text"),
    [
        ("retention.ms", "9", "7", "retention.ms from 9 to 7"),
        ("retention.ms", "-1", "7", "retention.ms from -1 to 7"),
        ("retention.ms", "7", "9", ""),
        ("retention.ms", "7", "-1", ""),
        ("retention.ms", "7", "7", ""),
        (
            "retention.ms",
            "9",
            None,
            "retention.ms from 9 to the target's default (the source's is 5)",
        ),
        ("delete.retention.ms", "9", "7", "delete.retention.ms from 9 to 7"),
        ("cleanup.policy", "compact", "delete", "cleanup.policy from compact to delete"),
        ("segment.ms", "9", "7", ""),
    ],
)
def test_what_may_keep_less_is_named_with_both_values(
    name: str, former: str, value: str | None, text: str
) -> None:
    source = dict.fromkeys((*KEEPING, "segment.ms"), of(ConfigOrigin.DEFAULT, "5"))
    current = {name: DestinationConfig(former, explicit=True)}
    assert shortened({name: value}, source, current) == ({name: text} if text else {})


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
