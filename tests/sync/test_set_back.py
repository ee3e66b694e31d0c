"""When a due set-back is complete; with brokers: tests/end_to_end/test_configs.py."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from sync_contexts import sync_context

from twinlog.kafka.errors import Refusal, Retriable
from twinlog.kafka.requests.topics import (
    Alteration,
    ConfigEntry,
    ConfigSource,
    KnownTopic,
    Resource,
)
from twinlog.store.config_records import MirrorTopic, Wanted
from twinlog.sync import configs as config_sync
from twinlog.sync import topic_identity
from twinlog.sync.configs import ConfigDifference, ConfigSync, set_configs_back

UNKNOWN, DENIED, INVALID = 3, 29, 40
ID = UUID(int=1)


@pytest.mark.parametrize("side", ["source", "destination", "record", "neither"])
def test_configs_of_a_recreated_topic_are_not_stored(
    side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic was recreated on either side, or added again, after reading its configurations.

    One broker knows it, the other one still shows the former topic.
    """
    read = MirrorTopic(
        mirror="m", topic="t", topic_id=ID, partitions=1, destination_topic_id=ID, set_back=()
    )
    other = UUID(int=2)
    stored = replace(read, topic_id=other) if side == "record" else read
    found = ConfigDifference({}, {}, (("retention.ms", "5"),))
    written: list[MirrorTopic] = []

    async def known_topics(cluster: object, names: Collection[str]) -> dict[str, KnownTopic]:
        ids = frozenset({ID, other} if cluster == side else {ID})
        return dict.fromkeys(names, KnownTopic(ids, 1, internal=False))

    monkeypatch.setattr(topic_identity, "known_topics", known_topics)

    async def change(decide: Any) -> None:
        written.extend(decide(SimpleNamespace(topics=[stored])))

    store = SimpleNamespace(change=change)
    context = sync_context("source", "destination", store, topics=[read])
    assert asyncio.run(ConfigSync().apply(context, {"t": found})) == 0
    noted = [replace(read, set_back=found.set_back)] if side == "neither" else []
    assert written == noted


NEEDED = {"compression.type": "producer", "message.timestamp.type": "CreateTime"}
LIMIT = "max.message.bytes"


class Destination:
    """A topic that is STOPPED and due, and the brokers' answers about it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.values = {**NEEDED, LIMIT: "5000"}
        """The topic's own configurations."""
        self.behind: dict[int, dict[str, str]] = {}
        """What brokers report that are behind."""
        self.silent: set[int] = set()
        self.takeovers: Iterator[Callable[[], None]] = iter(())
        """What happens when another writer takes over between decision and write."""
        self.listed = True
        self.topic_id = ID
        self.gone = False
        self.refused: Refusal | None = None
        self.topic = MirrorTopic(
            mirror="m",
            topic="t",
            topic_id=ID,
            partitions=1,
            wanted=Wanted.STOPPED,
            set_back=(("compression.type", "zstd"),),
            destination_topic_id=ID,
        )
        self.set = 0
        for name in (
            "known_configs",
            "describe_configs",
            "incremental_alter_configs",
            "absent_everywhere",
        ):
            monkeypatch.setattr(config_sync, name, getattr(self, name))

    def set_back(self) -> tuple[set[str], bool]:
        """Return the topics whose set-back failed, and whether it is still due."""
        failed = asyncio.run(set_configs_back(self, self, "m", ["t"]))  # type: ignore[arg-type]
        return failed, self.topic.set_back is not None

    async def known_configs(self, _: Any) -> Collection[str]:
        return {*NEEDED, LIMIT}

    async def refresh(self, names: Collection[str]) -> Any:
        topic = SimpleNamespace(topic_id=self.topic_id)
        topics = dict.fromkeys(names, topic) if self.listed else {}
        return SimpleNamespace(topics=topics, brokers=range(2))

    async def describe_configs(
        self, _: Any, resources: Collection[Resource], names: Collection[str], **asked: Any
    ) -> dict[Resource, dict[str, ConfigEntry]]:
        node = asked["node"]
        if node in self.silent:
            raise Retriable("the broker does not answer")
        values = dict.fromkeys(names) | self.behind.get(node, self.values)
        entries = {
            name: ConfigEntry(value, ConfigSource.TOPIC, read_only=False, sensitive=False)
            for name, value in values.items()
        }
        return dict.fromkeys(resources, entries)

    async def incremental_alter_configs(
        self, _: Any, changes: Mapping[Resource, Collection[Alteration]]
    ) -> dict[Resource, Refusal | None]:
        self.set += len(changes)
        for name, _operation, value in () if self.refused else chain(*changes.values()):
            self.values.pop(name, None)
            if value is not None:
                self.values[name] = value
        return dict.fromkeys(changes, self.refused)

    async def absent_everywhere(self, _: Any, names: Collection[str]) -> set[str]:
        return set(names) if self.gone else set()

    async def states(self) -> Any:
        return SimpleNamespace(stopped=lambda _: True)

    async def change(self, decide: Callable[[Any], Awaitable[list[MirrorTopic]]]) -> None:
        topics = await decide(SimpleNamespace(topics=[self.topic]))
        for takeover in self.takeovers:
            takeover()
            topics = await decide(SimpleNamespace(topics=[self.topic]))
        self.topic = next(iter(topics), self.topic)


@pytest.fixture
def destination(monkeypatch: pytest.MonkeyPatch) -> Destination:
    return Destination(monkeypatch)


def test_a_reset_stays_due_until_every_broker_reports_the_topic_absent(
    destination: Destination,
) -> None:
    """A broker that has just started may not know it: it stays due until every broker agrees."""
    destination.listed = False
    assert destination.set_back() == ({"t"}, True)
    destination.listed, destination.refused = True, Refusal(UNKNOWN)
    assert destination.set_back() == ({"t"}, True)
    destination.gone = True
    assert destination.set_back() == (set(), False)


@pytest.mark.parametrize(
    ("code", "due"), [(None, False), (DENIED, True), (INVALID, False)], ids=str
)
def test_a_reset_is_retried_only_after_recoverable_errors(
    destination: Destination, code: int | None, due: bool
) -> None:
    """What brokers never accept is not retried; a missing right may be granted later."""
    destination.refused = None if code is None else Refusal(code)
    assert destination.set_back() == ({"t"} if due else set(), due)
    assert destination.set == 1


def test_a_recreated_topic_is_not_reset(destination: Destination) -> None:
    """The recreated topic's configurations belong to its users."""
    destination.topic_id = UUID(int=2)
    assert destination.set_back() == (set(), False)
    assert destination.set == 0


def test_what_a_user_sets_while_another_writer_takes_over_stays(destination: Destination) -> None:
    """Goal: one call sets a topic back once, however often it has to decide anew."""
    users = {"compression.type": "producer", "message.timestamp.type": "LogAppendTime", LIMIT: "7"}
    destination.takeovers = iter([lambda: destination.values.update(users), lambda: None])
    assert destination.set_back() == (set(), False)
    assert destination.values == users
    assert destination.set == 1


def test_what_was_refused_is_set_by_the_next_attempt(destination: Destination) -> None:
    """Goal: only what was set counts as done."""

    def permit() -> None:
        destination.refused = None

    destination.refused, destination.takeovers = Refusal(DENIED), iter([permit])
    assert destination.set_back() == (set(), False)
    assert destination.values == {"compression.type": "zstd"}


def crash() -> None:
    raise Retriable("the node ends")


def test_what_a_user_sets_after_a_crash_stays(destination: Destination) -> None:
    """Goal: a node that finds it not done changes only what is still as mirroring needs it.

    `max.message.bytes` does not tell: any value may be mirroring's own.
    """
    destination.takeovers = iter([crash])
    with pytest.raises(Retriable):
        destination.set_back()
    assert destination.values == {"compression.type": "zstd"}
    users = {"compression.type": "lz4", "message.timestamp.type": "LogAppendTime"}
    destination.values = {**users, LIMIT: "7"}
    assert destination.set_back() == (set(), False)
    assert destination.values == users


@pytest.mark.parametrize("broker", ["behind", "silent"])
def test_a_value_stays_only_if_every_broker_reports_it(
    destination: Destination, broker: str
) -> None:
    """Goal: what a broker still reports of the time before the mirror does not end a set-back."""
    needed = dict(destination.values)
    if broker == "behind":
        destination.behind = {0: {**needed, "message.timestamp.type": "LogAppendTime"}}
    else:
        destination.values["message.timestamp.type"] = "LogAppendTime"
        destination.silent = {1}
    assert destination.set_back() == (set(), False)
    assert destination.values == {"compression.type": "zstd"}
