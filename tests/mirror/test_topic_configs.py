"""Configurations of a mirror's topic: copied, never copied, required."""

import re

import pytest

from twinlog.mirror.settings import parse_settings
from twinlog.mirror.topic_configs import (
    FOREVER,
    GENEROUS_BATCH,
    NEVER_COPIED,
    REQUIRED,
    DestinationConfig,
    SourceConfig,
    accepted_batch_limit,
    config_changes,
    destination_configs,
    required_configs,
    set_back,
    set_back_changes,
)

MODERN = {
    "message.timestamp.type",
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
    "compression.type",
    "max.message.bytes",
}
OLD = {
    "message.timestamp.type",
    "message.timestamp.difference.max.ms",
    "compression.type",
    "max.message.bytes",
}
EXCLUDE = parse_settings({}).topic_properties_exclude


def explicit(**configs: str) -> dict[str, SourceConfig]:
    return {name.replace("_", "."): SourceConfig(value, True) for name, value in configs.items()}


def test_only_what_was_set_on_the_topic_itself() -> None:
    source = explicit(cleanup_policy="compact", retention_ms="5") | {
        "segment.bytes": SourceConfig("1073741824", False)
    }
    configs = destination_configs(source, EXCLUDE, MODERN)
    assert (configs["cleanup.policy"], configs["retention.ms"]) == ("compact", "5")
    assert "segment.bytes" not in configs


def test_the_kips_exclusions_hold_by_default() -> None:
    source = explicit(min_insync_replicas="2", unclean_leader_election_enable="true")
    assert destination_configs(source, EXCLUDE, ()) == {}


def test_exclusions_are_regular_expressions() -> None:
    source = explicit(retention_ms="5", retention_bytes="5", segment_ms="5")
    configs = destination_configs(source, [re.compile("retention.*")], ())
    assert configs == {"segment.ms": "5"}


def test_what_the_append_needs_wins() -> None:
    """The required values win over any configuration of the source."""
    source = explicit(
        message_timestamp_type="LogAppendTime",
        message_timestamp_after_max_ms="3600000",
        compression_type="gzip",
        max_message_bytes="1000",
    )
    assert destination_configs(source, [], MODERN) == {
        "message.timestamp.type": "CreateTime",
        "message.timestamp.before.max.ms": FOREVER,
        "message.timestamp.after.max.ms": FOREVER,
        "compression.type": "producer",
        "max.message.bytes": str(GENEROUS_BATCH),
    }


@pytest.mark.parametrize(
    ("current", "changed"),
    [
        (DestinationConfig("8388608", explicit=True), {}),
        (DestinationConfig("1048588", explicit=True), {"max.message.bytes": "5000000"}),
        (DestinationConfig("8388608", explicit=False), {"max.message.bytes": str(GENEROUS_BATCH)}),
    ],
)
def test_a_limit_that_the_destination_caps_stays(
    current: DestinationConfig, changed: dict[str, str]
) -> None:
    """It stays while it is at least the source's; an unset one is set again."""
    source, known = explicit(max_message_bytes="5000000"), ["max.message.bytes"]
    there = {"max.message.bytes": current}
    wanted = destination_configs(source, [], known, accepted_batch_limit(there))
    assert config_changes(wanted, there, []) == changed


def test_a_larger_limit_of_the_source_holds() -> None:
    """It is a default of the source, and so not copied."""
    larger = str(2 * GENEROUS_BATCH)
    source = {"max.message.bytes": SourceConfig(larger, False)}
    assert required_configs(source, MODERN)["max.message.bytes"] == larger


def test_old_and_new_names_of_the_timestamp_limits() -> None:
    """3.6 added the new names, 4.0 removed the old one; 3.9 knows both."""
    both = MODERN | OLD
    assert "message.timestamp.difference.max.ms" in required_configs({}, OLD)
    assert "message.timestamp.before.max.ms" not in required_configs({}, OLD)
    assert "message.timestamp.difference.max.ms" not in required_configs({}, both)
    assert set(required_configs({}, MODERN)) == MODERN


def test_tiered_storage_is_not_copied() -> None:
    source = {name: SourceConfig("true", True) for name in NEVER_COPIED}
    assert destination_configs(source, [], MODERN | set(NEVER_COPIED)).keys() == MODERN


def test_each_requirement_has_its_reason() -> None:
    assert all(len(one.reason) > 20 for one in REQUIRED)


def test_what_decides_which_records_are_there_follows_even_as_a_default() -> None:
    """A destination with a shorter default retention must not lose what the source still has."""
    source = {
        "retention.ms": SourceConfig("-1", explicit=False),
        "cleanup.policy": SourceConfig("delete", explicit=False),
        "segment.bytes": SourceConfig("1048576", explicit=False),
    }
    found = destination_configs(source, (), MODERN)
    assert found["retention.ms"] == "-1"
    assert found["cleanup.policy"] == "delete"
    assert "segment.bytes" not in found


def current(**configs: str) -> dict[str, DestinationConfig]:
    return {
        name.replace("_", "."): DestinationConfig(value, True) for name, value in configs.items()
    }


def test_what_differs_is_changed_back() -> None:
    """A changed value is set again; one that the source does not set is unset."""
    wanted = {"retention.ms": "5", "segment.ms": "7"}
    there = current(retention_ms="6", flush_ms="1") | {
        "segment.ms": DestinationConfig("7", False),
        "segment.bytes": DestinationConfig("1", False),
    }
    assert config_changes(wanted, there, EXCLUDE) == {"retention.ms": "5", "flush.ms": None}


def test_what_is_excluded_is_left_alone() -> None:
    """Settings of another cluster's storage, and unknown ones, are left alone, too."""
    there = current(min_insync_replicas="2", remote_storage_enable="true")
    assert config_changes({"newer.name": "1"}, there, EXCLUDE) == {}


def test_required_settings_win_over_the_exclusion() -> None:
    there = current(message_timestamp_type="LogAppendTime")
    wanted = required_configs({}, MODERN)
    changes = config_changes(wanted, there, EXCLUDE)
    assert changes["message.timestamp.type"] == "CreateTime"


def test_the_cleanup_policy_stays() -> None:
    assert config_changes({"cleanup.policy": "compact"}, current(cleanup_policy="delete"), ()) == {}


def test_what_is_set_back_at_failover() -> None:
    """The source topic's own settings are kept; all else that mirroring needs is unset."""
    source = {
        "message.timestamp.type": SourceConfig("LogAppendTime", explicit=True),
        "compression.type": SourceConfig("zstd", explicit=True),
        "max.message.bytes": SourceConfig("1048588", explicit=False),
        "retention.ms": SourceConfig("1", explicit=True),
    }
    wanted = set_back(source)
    assert wanted == (("compression.type", "zstd"), ("message.timestamp.type", "LogAppendTime"))
    assert set_back_changes(wanted, MODERN) == {
        "message.timestamp.type": "LogAppendTime",
        "message.timestamp.before.max.ms": None,
        "message.timestamp.after.max.ms": None,
        "compression.type": "zstd",
        "max.message.bytes": None,
    }
    assert set_back_changes((), MODERN).keys() == MODERN
