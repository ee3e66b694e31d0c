"""Configurations of a mirror's topic: copied, never copied, required."""

import re

import pytest

from twinlog.mirror.settings import parse_settings
from twinlog.mirror.topic_configs import (
    FOREVER,
    GENEROUS_BATCH,
    NEVER_COPIED,
    REQUIRED,
    ConfigOrigin,
    DestinationConfig,
    SourceConfig,
    accepted_batch_limit,
    agreed,
    config_changes,
    destination_configs,
    not_of_mirroring,
    reported,
    required_configs,
    set_back,
    set_back_changes,
    settled_changes,
    unsettled,
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


def test_only_configs_set_on_the_topic_are_copied() -> None:
    source = explicit(cleanup_policy="compact", retention_ms="5") | {
        "segment.bytes": SourceConfig("1073741824", False)
    }
    configs = destination_configs(source, EXCLUDE, MODERN)
    assert (configs["cleanup.policy"], configs["retention.ms"]) == ("compact", "5")
    assert "segment.bytes" not in configs


def test_exclusions_of_the_kip_apply_by_default() -> None:
    source = explicit(min_insync_replicas="2", unclean_leader_election_enable="true")
    assert destination_configs(source, EXCLUDE, ()) == {}


def test_exclusions_are_regular_expressions() -> None:
    source = explicit(retention_ms="5", retention_bytes="5", segment_ms="5")
    configs = destination_configs(source, [re.compile("retention.*")], ())
    assert configs == {"segment.ms": "5"}


def test_required_configs_override_those_of_the_source() -> None:
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
def test_an_accepted_lower_max_message_bytes_is_kept(
    current: DestinationConfig, changed: dict[str, str]
) -> None:
    """It stays while it is at least the source's; an unset one is set again."""
    source, known = explicit(max_message_bytes="5000000"), ["max.message.bytes"]
    destination = {"max.message.bytes": current}
    wanted = destination_configs(source, [], known, accepted_batch_limit(destination))
    assert config_changes(wanted, destination, []) == changed


def test_a_larger_default_limit_of_the_source_is_used() -> None:
    """It is a default of the source, and so not copied."""
    larger = str(2 * GENEROUS_BATCH)
    source = {"max.message.bytes": SourceConfig(larger, False)}
    assert required_configs(source, MODERN)["max.message.bytes"] == larger


def test_timestamp_limits_use_the_names_that_the_broker_has() -> None:
    """3.6 added the new names, 4.0 removed the old one; 3.9 knows both."""
    both = MODERN | OLD
    assert "message.timestamp.difference.max.ms" in required_configs({}, OLD)
    assert "message.timestamp.before.max.ms" not in required_configs({}, OLD)
    assert "message.timestamp.difference.max.ms" not in required_configs({}, both)
    assert set(required_configs({}, MODERN)) == MODERN


def test_tiered_storage_is_not_copied() -> None:
    source = {name: SourceConfig("true", True) for name in NEVER_COPIED}
    assert destination_configs(source, [], MODERN | set(NEVER_COPIED)).keys() == MODERN


def test_each_required_config_has_a_reason() -> None:
    assert all(len(one.reason) > 20 for one in REQUIRED)


def test_retention_configs_are_copied_even_if_they_are_defaults() -> None:
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


def test_changed_configs_are_restored() -> None:
    """A changed value is set again; one that the source does not set is unset."""
    wanted = {"retention.ms": "5", "segment.ms": "7"}
    destination = current(retention_ms="6", flush_ms="1") | {
        "segment.ms": DestinationConfig("7", False),
        "segment.bytes": DestinationConfig("1", False),
    }
    assert config_changes(wanted, destination, EXCLUDE) == {"retention.ms": "5", "flush.ms": None}


def test_retention_is_set_on_the_topic_where_the_default_is_equal() -> None:
    """Goal: a default that is lowered later deletes nothing; other defaults are left alone.

    What is set is not set again, and what is excluded, or not known for certain, is not set at all.
    """
    source = {
        "cleanup.policy": SourceConfig("delete", False),
        "retention.ms": SourceConfig("5", False),
        "retention.bytes": SourceConfig("-1", False),
        "min.insync.replicas": SourceConfig("2", True),
    }
    default = {name: DestinationConfig(one.value, False) for name, one in source.items()}
    wanted = destination_configs(source, [], set())
    changes = config_changes(wanted, default, [])
    assert changes == {"retention.ms": "5", "retention.bytes": "-1"}
    pinned = default | {name: DestinationConfig(value, True) for name, value in changes.items()}
    assert config_changes(wanted, pinned, []) == {}
    exclude = [re.compile(r"retention\..*")]
    assert config_changes(destination_configs(source, exclude, set()), default, exclude) == {}
    behind = source | {"retention.ms": SourceConfig("5", False, "a broker does not answer")}
    assert settled_changes(changes, behind, default) == {"retention.bytes": "-1"}


def test_excluded_and_unknown_configs_are_not_changed() -> None:
    """Settings of another cluster's storage, and unknown ones, are left alone, too."""
    destination = current(min_insync_replicas="2", remote_storage_enable="true")
    assert config_changes({"newer.name": "1"}, destination, EXCLUDE) == {}


def test_required_configs_override_the_exclusions() -> None:
    destination = current(message_timestamp_type="LogAppendTime")
    wanted = required_configs({}, MODERN)
    changes = config_changes(wanted, destination, EXCLUDE)
    assert changes["message.timestamp.type"] == "CreateTime"


def test_the_cleanup_policy_is_not_changed() -> None:
    assert config_changes({"cleanup.policy": "compact"}, current(cleanup_policy="delete"), ()) == {}


def test_a_failover_restores_the_configs_of_the_source_topic() -> None:
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


def test_what_has_another_value_than_mirroring_needs_is_not_of_mirroring() -> None:
    """Only by all reports; one without the configuration may know the value that is needed."""
    needed = {"compression.type": "producer", "message.timestamp.before.max.ms": FOREVER}
    other = {"compression.type": "zstd", "message.timestamp.before.max.ms": "5"}
    assert not_of_mirroring([other, other], MODERN) == other.keys()
    for report in (needed, {}, {"compression.type": "producer"}):
        assert "compression.type" not in not_of_mirroring([other, report], MODERN)
    assert not_of_mirroring([], MODERN) == set()


def test_what_mirroring_does_not_need_on_a_destination_is_set_back() -> None:
    """`max.message.bytes` may have any value that is enough; a later broker knows both limits."""
    name = "message.timestamp.difference.max.ms"
    report = {name: "5", "max.message.bytes": "1"}
    assert not_of_mirroring([report], OLD) == {name}
    assert not_of_mirroring([report], {*OLD, *MODERN}) == set()


@pytest.mark.parametrize(
    ("name", "values", "value"),
    [
        ("retention.ms", ["604800000", "86400000"], "604800000"),
        ("retention.ms", ["86400000", "-1"], "-1"),
        ("retention.bytes", ["-1", "-1"], "-1"),
        ("delete.retention.ms", ["1000", "900"], "900"),
        ("cleanup.policy", ["delete", "delete"], "delete"),
        ("cleanup.policy", ["delete", "compact"], None),
    ],
)
def test_brokers_with_different_defaults(name: str, values: list[str], value: str | None) -> None:
    """Goal: no record goes before the source's last broker removes it; a policy is not guessed."""
    assert agreed(name, values) == value
    assert agreed(name, values[::-1]) == value


def of_brokers(*values: str, own: bool) -> list[SourceConfig]:
    return [SourceConfig(value, explicit=own) for value in values]


def test_a_value_that_brokers_report_differently_is_unsettled_if_the_topic_sets_it() -> None:
    """Goal: defaults may differ for good; a topic has one value, and one of the brokers errs."""
    assert reported("retention.ms", of_brokers("1", "2", own=False)) == SourceConfig("2", False)
    for order in (("1", "2"), ("2", "1")):
        found = reported("retention.ms", of_brokers(*order, own=True))
        assert found == SourceConfig("2", True, "retention.ms is 1 or 2 by the source's brokers")
    mixed = [SourceConfig("1", True), SourceConfig("2", False)]
    found = reported("retention.ms", mixed)
    assert found is not None
    assert (found.value, found.explicit, bool(found.unsettled)) == ("2", False, True)
    mixed = [SourceConfig("2", True), SourceConfig("2", False)]
    assert reported("retention.ms", mixed) == SourceConfig("2", True), "unset if none has it set"


def test_a_policy_that_brokers_report_differently() -> None:
    assert reported("cleanup.policy", of_brokers("compact", "delete", own=False)) is None
    found = reported("cleanup.policy", of_brokers("delete", "compact", own=True))
    assert found is not None
    assert found.unsettled


def test_a_value_that_not_all_brokers_report_is_unsettled() -> None:
    found = reported("retention.ms", of_brokers("1", own=True), "broker 3")
    assert found == SourceConfig("1", True, "broker 3")


TOPIC, DYNAMIC, STATIC, DEFAULT, DIFFERENT, UNKNOWN = ConfigOrigin


@pytest.mark.parametrize(
    ("origins", "origin"),
    [
        ((TOPIC, TOPIC), TOPIC),
        ((DYNAMIC, DYNAMIC), DYNAMIC),
        ((STATIC, STATIC), STATIC),
        ((DEFAULT, DEFAULT), DEFAULT),
        ((UNKNOWN, UNKNOWN), UNKNOWN),
        ((TOPIC, DYNAMIC), DIFFERENT),
        ((TOPIC, STATIC), DIFFERENT),
        ((TOPIC, DEFAULT), DIFFERENT),
        ((TOPIC, UNKNOWN), DIFFERENT),
        ((DYNAMIC, STATIC), DIFFERENT),
        ((DYNAMIC, DEFAULT), DIFFERENT),
        ((DYNAMIC, UNKNOWN), DIFFERENT),
        ((STATIC, DEFAULT), STATIC),
        ((STATIC, UNKNOWN), STATIC),
        ((DEFAULT, UNKNOWN), STATIC),
    ],
)
def test_an_origin_on_which_brokers_do_not_agree_unsets_nothing(
    origins: tuple[ConfigOrigin, ConfigOrigin], origin: ConfigOrigin
) -> None:
    """Goal: only if all report Kafka's own default, a remote topic's value is unset.

    The same with different values: what is set for one broker may be another value than for others.
    """
    for order in (origins, origins[::-1]):
        reports = [SourceConfig("2", each is TOPIC, origin=each) for each in order]
        found = reported("retention.ms", reports)
        assert found is not None
        assert found.origin is origin
        one = SourceConfig("1", order[0] is TOPIC, origin=order[0])
        found = reported("retention.ms", [one, reports[1]])
        assert found is not None
        assert found.origin is (DIFFERENT if {TOPIC, DYNAMIC} & {*order} else origin)
        assert found.value == "2"


@pytest.mark.parametrize(
    ("name", "value", "former", "changed"),
    [
        ("retention.ms", "2", "1", True),
        ("retention.ms", "1", "2", False),
        ("retention.ms", "2", "2", False),
        ("retention.ms", None, "2", False),
        ("retention.ms", "-1", "2", True),
        ("retention.ms", "2", "-1", False),
        ("delete.retention.ms", "2", "1", True),
        ("retention.ms", "2", None, False),
        ("cleanup.policy", "compact", "delete", False),
    ],
)
def test_by_an_unsettled_value_a_topic_only_keeps_more(
    name: str, value: str | None, former: str | None, changed: bool
) -> None:
    current = {name: DestinationConfig(former, explicit=True)}
    for reason, expected in (("", True), ("contested", changed)):
        source = {name: SourceConfig("1", True, reason)}
        assert bool(settled_changes({name: value}, source, current)) is expected
    assert settled_changes({name: value}, {}, current) == {name: value}


def test_why_values_are_unsettled_that_are_copied() -> None:
    source = {
        "retention.ms": SourceConfig("1", True, "b"),
        "retention.bytes": SourceConfig("1", True, "b"),
        "cleanup.policy": SourceConfig("delete", True, "a"),
        "segment.ms": SourceConfig("1", True),
    }
    assert unsettled(source, []) == ["a", "b"]
    assert unsettled(source, [re.compile("retention.*")]) == ["a"]
