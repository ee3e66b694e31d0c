"""Configurations of a source whose brokers report different ones."""

import asyncio
from typing import Any

import pytest
from differing_brokers import DEFAULTS, DifferingBrokers, Values

from twinlog.kafka.errors import LEFT_OUT, Refusal, Retriable
from twinlog.kafka.requests.topics import ConfigEntry, ConfigSource
from twinlog.lifecycle import destination_topics
from twinlog.lifecycle.source_configs import broker_reports, config_origin, source_configs
from twinlog.mirror.topic_configs import KEEPING, ConfigOrigin, SourceConfig


def configs_of(
    monkeypatch: pytest.MonkeyPatch, explicit: Values, *brokers: Values
) -> dict[str, SourceConfig] | Refusal:
    """The configurations of a topic that sets these itself, of brokers with these defaults."""
    source = DifferingBrokers(monkeypatch, *(explicit for _ in brokers))
    source.defaults = list(brokers)
    return strict(source)


def strict(source: Any) -> dict[str, SourceConfig] | Refusal:
    return asyncio.run(source_configs(source, ["t"]))["t"]


def lenient(source: Any) -> dict[str, SourceConfig] | Refusal:
    async def read() -> dict[str, SourceConfig] | Refusal:
        reports = await broker_reports(source, ["t"])
        return (await source_configs(source, ["t"], reports))["t"]

    return asyncio.run(read())


def kept(found: dict[str, SourceConfig] | Refusal) -> SourceConfig:
    assert not isinstance(found, Refusal), found
    return found["retention.ms"]


SHORT = {
    "cleanup.policy": "delete",
    "retention.ms": "1000",
    "retention.bytes": "500",
    "delete.retention.ms": "10",
    "min.compaction.lag.ms": "0",
}
LONG = {
    **SHORT,
    "retention.ms": "9000",
    "retention.bytes": "-1",
    "delete.retention.ms": "70",
    "min.compaction.lag.ms": "30",
}


@pytest.mark.parametrize("brokers", [(SHORT, LONG), (LONG, SHORT)])
def test_the_longest_of_the_brokers_retentions_counts(
    monkeypatch: pytest.MonkeyPatch, brokers: tuple[Values, Values]
) -> None:
    """Goal: the destination removes no record that a leader of the source still keeps."""
    found = configs_of(monkeypatch, {"retention.ms": "7"}, *brokers)
    assert not isinstance(found, Refusal)
    assert {name: config.value for name, config in found.items()} == {
        "cleanup.policy": "delete",
        "retention.ms": "7",
        "retention.bytes": "-1",
        "delete.retention.ms": "10",
        "min.compaction.lag.ms": "30",
    }
    assert not any(config.unsettled for config in found.values()), "defaults may differ for good"


def test_brokers_that_do_not_agree_leave_a_topic_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a policy is not guessed, nor what a broker leaves out; no broker is no answer."""
    found = configs_of(monkeypatch, {}, SHORT, {**SHORT, "cleanup.policy": "compact"})
    assert isinstance(found, Refusal)
    assert "the source's brokers have different defaults: compact, delete" in found.message
    assert configs_of(monkeypatch, {}, SHORT, {"cleanup.policy": "delete"}) == LEFT_OUT
    assert not isinstance(configs_of(monkeypatch, SHORT, SHORT, {}), Refusal), "all are the topic's"
    with pytest.raises(Retriable, match="names no broker"):
        configs_of(monkeypatch, {})


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("other", [{"retention.ms": "3600000"}, {}])
def test_what_one_broker_takes_for_the_topics_own_is_unsettled(
    monkeypatch: pytest.MonkeyPatch, first: int, other: Values
) -> None:
    """Goal: whichever broker answers first, the most counts, and it is known to be contested."""
    topic = {name: value for name, value in DEFAULTS.items() if name != "retention.ms"}
    source = DifferingBrokers(
        monkeypatch, {**topic, "retention.ms": "864000000"}, {**topic, **other}
    )
    source.first = first
    for found in (strict(source), lenient(source)):
        assert kept(found).value == "864000000"
        assert kept(found).explicit
        assert "by the source's brokers" in kept(found).unsettled
        assert not isinstance(found, Refusal)
        assert not found["retention.bytes"].unsettled


def test_a_policy_of_the_topic_on_which_brokers_differ_is_unsettled_or_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: no topic is created with the policy of a broker that is behind."""
    source = DifferingBrokers(monkeypatch, {"cleanup.policy": "compact"}, {})
    refusal = strict(source)
    assert isinstance(refusal, Refusal)
    assert "report different values of cleanup.policy: compact, delete" in refusal.message
    found = lenient(source)
    assert not isinstance(found, Refusal)
    assert found["cleanup.policy"].unsettled


def test_a_broker_that_does_not_answer_leaves_only_what_is_kept_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: a long outage of one broker holds up no other configuration."""
    source = DifferingBrokers(monkeypatch, {"segment.ms": "5"}, {"segment.ms": "5"})
    source.silent = {1}
    with pytest.raises(Retriable):
        strict(source)
    found = lenient(source)
    assert not isinstance(found, Refusal)
    assert {name for name, config in found.items() if config.unsettled} == {*KEEPING}
    assert "not reported by broker 1" in found["retention.ms"].unsettled
    assert found["segment.ms"] == SourceConfig("5", explicit=True, origin=ConfigOrigin.TOPIC)


def test_origins_of_values_are_those_that_all_brokers_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: of what is kept, the answer of one broker is not enough, whichever answers first."""
    source = DifferingBrokers(monkeypatch, {"segment.ms": "5"}, {"segment.ms": "5"})
    for sources, origin in (
        ((ConfigSource.DEFAULT, ConfigSource.DEFAULT), ConfigOrigin.DEFAULT),
        ((ConfigSource.DEFAULT, ConfigSource.STATIC_BROKER), ConfigOrigin.STATIC),
        ((ConfigSource.DYNAMIC_BROKER, ConfigSource.DYNAMIC_BROKER), ConfigOrigin.DYNAMIC),
        ((ConfigSource.DYNAMIC_BROKER, ConfigSource.DEFAULT), ConfigOrigin.DIFFERENT),
    ):
        for default_sources in (sources, sources[::-1]):
            source.default_sources = [*default_sources]
            assert kept(strict(source)).origin is kept(lenient(source)).origin is origin


@pytest.mark.parametrize(
    ("source", "origin"),
    [
        (-1, ConfigOrigin.UNKNOWN),
        (ConfigSource.UNKNOWN, ConfigOrigin.DYNAMIC),
        (ConfigSource.TOPIC, ConfigOrigin.TOPIC),
        (ConfigSource.DYNAMIC_BROKER, ConfigOrigin.DYNAMIC),
        (ConfigSource.DYNAMIC_DEFAULT_BROKER, ConfigOrigin.DYNAMIC),
        (ConfigSource.STATIC_BROKER, ConfigOrigin.STATIC),
        (ConfigSource.DEFAULT, ConfigOrigin.DEFAULT),
        (99, ConfigOrigin.DYNAMIC),
    ],
)
def test_the_origin_of_a_value_by_a_brokers_answer(source: int, origin: ConfigOrigin) -> None:
    """Goal: MirrorMaker 2 sets what is from a source unknown to it; old brokers report none."""
    assert config_origin(ConfigEntry("1", source, read_only=False, sensitive=False)) is origin
    for fixed in (
        ConfigEntry("1", source, read_only=True, sensitive=False),
        ConfigEntry(None, source, read_only=False, sensitive=True),
    ):
        assert config_origin(fixed) is ConfigOrigin.UNKNOWN


def test_a_broker_that_does_not_know_the_topic_has_not_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = DifferingBrokers(monkeypatch, {}, {}, {})
    source.unknown = {1, 2}
    assert strict(source) == Refusal(3)
    assert "not reported by broker 1, 2" in kept(lenient(source)).unsettled


def test_each_broker_is_asked_once_for_a_part_and_not_again_if_it_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: thousands of topics wait for a broker without an answer once."""
    monkeypatch.setattr(destination_topics, "_CHUNK", 2)
    source: Any = DifferingBrokers(monkeypatch, {}, {}, {})
    source.silent = {1}
    names = ["a", "b", "c", "d", "e"]
    reports = asyncio.run(broker_reports(source, names))
    assert sorted(source.asked) == [0, 0, 0, 1, 2, 2, 2]
    source.asked.clear()
    asyncio.run(source_configs(source, names, reports))
    assert source.asked == [None, None, None]
