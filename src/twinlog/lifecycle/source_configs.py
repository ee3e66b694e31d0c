"""Reads the configurations of the source's topics, without believing one broker what is kept.

What a topic does not set is the default of the broker that answers, and brokers may differ. And a
broker whose metadata lags, or that is cut off from the controllers, answers with what was set
before. So every broker is asked for the configurations that decide which records are kept (KEEPING
in mirror/topic_configs.py), whether or not the topic sets them:

    the brokers report                          the configuration is
    ------------------------------------------  --------------------------------------------------
    one value                                   this value
    different defaults, and it is not set       the one that keeps most; of `cleanup.policy` none
    different values, set on the topic          the one that keeps most, and *unsettled*
    nothing, as one of them does not answer     an error, or *unsettled* with those that were read

An unsettled value may be one of the past. A topic on the destination may only keep more by it
(`topic_configs.settled_changes`).

Flows also go by where the values come from (`ConfigOrigin`), of KEEPING by what all brokers report.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import LEFT_OUT, Refusal, Retriable
from twinlog.kafka.requests.topics import (
    ConfigEntry,
    ConfigSource,
    describe_configs,
    topic_resource,
)
from twinlog.lifecycle.destination_topics import chunks
from twinlog.mirror.topic_configs import KEEPING, ConfigOrigin, SourceConfig, reported

_ORIGINS: Final[Mapping[int, ConfigOrigin]] = {
    ConfigSource.TOPIC: ConfigOrigin.TOPIC,
    ConfigSource.STATIC_BROKER: ConfigOrigin.STATIC,
    ConfigSource.DEFAULT: ConfigOrigin.DEFAULT,
}

Configs = Mapping[str, SourceConfig] | Refusal
"""A topic's configurations by name, or why they cannot be read."""


@dataclass(frozen=True, slots=True)
class BrokerReports:
    """By which values of KEEPING each broker of a source keeps the records of topics."""

    by_node: Mapping[int, Mapping[str, Configs] | Retriable]
    """By broker, what it reports by topic; or that it does not answer."""


async def broker_reports(source: KafkaCluster, names: Sequence[str]) -> BrokerReports:
    """Ask every broker of the source for the values of KEEPING of these topics.

    A broker that does not answer is not asked again for more of the topics. One that is known to be
    down is not asked at all: the metadata does not name it.

    Raises:
        Retriable: the metadata names no broker.
        UserError: a broker refuses the connection.
    """

    async def report(node: int) -> Mapping[str, Configs] | Retriable:
        found: dict[str, Configs] = {}
        try:
            for group in chunks(names):
                found |= await _described(source, group, node)
        except Retriable as error:
            return error
        return found

    nodes = list((await source.refresh([])).brokers) if names else []
    if names and not nodes:
        raise Retriable("the topics' configurations are unknown: the metadata names no broker")
    return BrokerReports(dict(zip(nodes, await asyncio.gather(*map(report, nodes)), strict=True)))


async def source_configs(
    source: KafkaCluster, names: Sequence[str], reports: BrokerReports | None = None
) -> dict[str, dict[str, SourceConfig] | Refusal]:
    """All configurations of the source's topics, by topic and name, or the refusal.

    Args:
        source: the cluster.
        names: topics.
        reports: what each broker has reported of them (`broker_reports`), to know all that can be
            known while one of them does not answer. None: they are asked, and each has to answer.

    Raises:
        Retriable: the source does not answer; without `reports`, one of its brokers.
    """
    configs: dict[str, dict[str, SourceConfig] | Refusal] = {}
    for group in chunks(names):
        for name, found in (await _described(source, group)).items():
            configs[name] = found if isinstance(found, Refusal) else dict(found)
    strict = reports is None
    if reports is None:
        readable = [name for name, found in configs.items() if not isinstance(found, Refusal)]
        reports = await broker_reports(source, readable)
        for answer in reports.by_node.values():
            if isinstance(answer, Retriable):
                raise answer
    return {
        name: found if isinstance(found, Refusal) else _combined(found, name, reports, strict)
        for name, found in configs.items()
    }


async def _described(
    source: KafkaCluster, names: Sequence[str], node: int | None = None
) -> dict[str, Configs]:
    """What one broker reports of topics: all configurations, or a certain broker's KEEPING."""
    keys = None if node is None else KEEPING
    answers = await describe_configs(source, [topic_resource(n) for n in names], keys, node=node)
    return {
        resource.name: entries
        if isinstance(entries, Refusal)
        else {
            name: SourceConfig(
                entry.value, entry.source == ConfigSource.TOPIC, origin=config_origin(entry)
            )
            for name, entry in entries.items()
            if entry.value is not None
        }
        for resource, entries in answers.items()
    }


def config_origin(entry: ConfigEntry) -> ConfigOrigin:
    """Where a value of a topic comes from, by one broker's answer.

    MirrorMaker 2 leaves out what is STATIC_BROKER_CONFIG, read-only or sensitive, and unsets what
    is DEFAULT_CONFIG. All else it sets, also what is from a source that it does not know.
    """
    if entry.read_only or entry.sensitive or entry.source < ConfigSource.UNKNOWN:
        return ConfigOrigin.UNKNOWN
    return _ORIGINS.get(entry.source, ConfigOrigin.DYNAMIC)


def _combined(
    configs: Mapping[str, SourceConfig], topic: str, reports: BrokerReports, strict: bool
) -> dict[str, SourceConfig] | Refusal:
    """A topic's configurations, with the values of KEEPING that its brokers have reported."""
    answers: list[Mapping[str, SourceConfig]] = []
    silent: list[int] = []
    for node, answer in sorted(reports.by_node.items()):
        found: Configs = LEFT_OUT if isinstance(answer, Retriable) else answer.get(topic, LEFT_OUT)
        if not isinstance(found, Refusal) and not found.keys() >= {*KEEPING}:
            found = LEFT_OUT
        if not isinstance(found, Refusal):
            answers.append(found)
        elif strict:
            return found
        else:
            silent.append(node)
    nodes = ", ".join(map(str, silent))
    missing = f"what is kept is not reported by broker {nodes} of the source" if silent else ""
    answers = answers or [configs]
    if not all(answer.keys() >= {*KEEPING} for answer in answers):
        return LEFT_OUT  # what is not known to be set is not unset
    result = dict(configs)
    for name in KEEPING:
        values = [answer[name] for answer in answers]
        config = reported(name, values, missing)
        texts = ", ".join(sorted({value.value for value in values}))
        if config is None:
            text = f"{name} is not set on the topic, and the source's brokers have different"
            return Refusal(ErrorCode.INVALID_CONFIG, f"{text} defaults: {texts}")
        if strict and config.unsettled and name == "cleanup.policy":
            text = f"the source's brokers report different values of {name}: {texts}"
            return Refusal(ErrorCode.INVALID_CONFIG, text)
        result[name] = config
    return result
