"""The evidence for a failback, on real brokers; records that lanes would write are hand-written."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import librdkafka_tools
import pytest
from clients import client, make_topic, write_markers, write_state
from kafka.protocol.admin import DeleteTopicsRequest
from waiting import until, until_async

from conftest import Pair
from twinlog import Rebuild
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.connection import Connection
from twinlog.kafka.errors import Refusal, Retriable, UserError
from twinlog.kafka.requests.partitions import delete_records
from twinlog.kafka.requests.topics import NewTopic, create_topics, delete_topics
from twinlog.kafka.types import LeaderEpoch, Offset, TopicPartition
from twinlog.lifecycle import creation
from twinlog.lifecycle import rebuild as rebuild_module
from twinlog.lifecycle.changes import remove_topics
from twinlog.lifecycle.creation import add_topics, create_mirror
from twinlog.lifecycle.rebuild import Interrupted
from twinlog.local import commands
from twinlog.local.check import ConsumerView
from twinlog.local.cluster import LocalCluster
from twinlog.mirror.errors import MirrorRefused
from twinlog.mirror.states import State
from twinlog.store.config_records import Mirror, MirrorTopic
from twinlog.store.mirrors import MirrorStore
from twinlog.store.state_records import LastMirrored
from twinlog.verify.log_reader import READ_UNCOMMITTED, Bytes, LogReader, Nothing

pytestmark = pytest.mark.broker


def ended(*ends: int) -> dict[int, LastMirrored]:
    """Return each partition's last mirrored end, in the source's first epoch."""
    return {
        partition: LastMirrored(LeaderEpoch(0), Offset(end)) for partition, end in enumerate(ends)
    }


class Old:
    """The old source, `here`, of topics that were failed over to another cluster, `there`."""

    def __init__(self, pair: Pair, here: KafkaCluster, there: KafkaCluster, back: str) -> None:
        self.here, self.there, self.back = here, there, back
        self.servers = pair.destination.bootstrap_servers
        self.servers_there = pair.source.bootstrap_servers

    async def create(self) -> None:
        """Create the mirror that leads back."""
        await create_mirror(self.here, self.back, {"bootstrap.servers": self.servers_there})

    async def make(self, topic: str, *records: int) -> UUID:
        """Create a topic on both, with records on `here` alone; return its id on `here`."""
        await make_topic(self.there, topic, len(records))
        return await self.make_here(topic, *records)

    async def make_here(self, topic: str, *records: int) -> UUID:
        """Create a topic with this number of records in each partition; return its id."""
        await make_topic(self.here, topic, len(records))
        for partition, count in enumerate(records):
            librdkafka_tools.write_same(self.servers, topic, partition, 0, count)
        return (await self.here.refresh([topic])).topics[topic].topic_id

    def write(self, topic: str, *records: int) -> None:
        """Write this number of records to each partition on the old source."""
        for partition, count in enumerate(records):
            librdkafka_tools.write(self.servers, topic, librdkafka_tools.simple(count, partition))

    async def delete_here(self, topic: str) -> None:
        """Delete a topic, and wait until it is deleted."""
        await delete_topics(self.here, [topic])

        async def gone() -> bool:
            return topic not in (await self.here.refresh([topic])).topics

        await until_async(gone, what=f"no {topic}")

    async def fail_over(
        self,
        mirror: str,
        topic: str,
        topic_id: UUID,
        ends: Mapping[int, LastMirrored],
        id_there: UUID | None = None,
    ) -> None:
        """Write to `there` what a mirror has copied of a topic of `here`, and that it has ended."""
        one = MirrorTopic(
            mirror=mirror,
            topic=topic,
            topic_id=topic_id,
            partitions=len(ends),
            destination_topic_id=id_there,
        )
        await self.write_removed(one)
        held = ConsumerView(self.servers_there).ends([(topic, partition) for partition in ends])
        for partition, last in ends.items():
            begin = held[topic, partition]
            librdkafka_tools.write_same(self.servers_there, topic, partition, begin, last.end)
        await write_state(self.there, one, State.STOPPED, ends)

    async def write_removed(self, topic: MirrorTopic) -> None:
        """Write to `there` that a topic of `here` was removed from a mirror, but is not STOPPED."""
        store = MirrorStore(self.there)
        source = {"bootstrap.servers": self.servers}
        await store.create_mirror(
            Mirror(name=topic.mirror, source=source, source_cluster_id=self.here.cluster_id)
        )
        await store.add_topics(topic.mirror, [topic])
        await remove_topics(self.there, topic.mirror, topic.topic)

    async def refused(self, topic: str) -> str:
        """Return the error for a topic that cannot be mirrored back."""
        with pytest.raises(MirrorRefused) as caught:
            await add_topics(self.here, self.back, topic)
        return str(caught.value)

    def lie(self, topic: str, count: int) -> None:
        """Write to `there` records that `here` does not have."""
        librdkafka_tools.write(
            self.servers_there, topic, librdkafka_tools.simple(count, 0, "foreign")
        )

    async def diverge(self, topic: str, *beyond: int) -> None:
        """Create a topic failed over at 100, with this many more records in each partition."""
        topic_id = await self.make(topic, *(100 + more for more in beyond))
        await self.fail_over(f"there.{topic}", topic, topic_id, ended(*(100 for _ in beyond)))

    def ends(self, topic: str, partitions: int = 1) -> list[int]:
        """Return the log end offsets of `here`, where the topic may just have been created."""
        asked = [(topic, index) for index in range(partitions)]
        found = until(lambda: ConsumerView(self.servers).ends(asked), what=f"the ends of {topic}")
        return [found[one] for one in asked]


@asynccontextmanager
async def old_source(pair: Pair, back: str) -> AsyncIterator[Old]:
    """Yield a cluster that was a source, with the mirror of the way back."""
    async with client(pair.destination) as here, client(pair.source) as there:
        old = Old(pair, here, there, back)
        await old.create()
        yield old


def test_a_topic_recreated_after_its_failover_is_refused(
    pair: Pair, fresh_name: Callable[[str], str], topic: str
) -> None:
    """Its records are its own, though fewer than were mirrored; where it is empty it is taken."""

    async def run() -> None:
        async with old_source(pair, fresh_name("back")) as old:
            former = await old.make(topic, 0)
            await old.fail_over(fresh_name("there"), topic, former, ended(1000))
            await old.delete_here(topic)
            assert await old.make_here(topic, 50) != former
            said = await old.refused(topic)
            assert said.startswith("TOPIC_ALREADY_EXISTS: "), said
            assert (
                f"{topic}-0 is not empty, its log end offset is 50; {topic} was recreated since"
                in said
            )
            assert old.ends(topic) == [50]
            await old.delete_here(topic)
            await old.make_here(topic, 0)
            assert await add_topics(old.here, old.back, topic) == [topic]

    asyncio.run(run())


def test_a_topic_without_a_divergent_tail_continues(
    pair: Pair, fresh_name: Callable[[str], str], topic: str
) -> None:
    """It has no records beyond the last mirrored end."""

    async def run() -> None:
        async with old_source(pair, fresh_name("back")) as old:
            topic_id = await old.make(topic, 50)
            await old.fail_over(fresh_name("there"), topic, topic_id, ended(50))
            assert await add_topics(old.here, old.back, topic) == [topic]
            assert old.ends(topic) == [50]

    asyncio.run(run())


@pytest.mark.parametrize("foreign", [5, 20])
def test_a_wrong_last_mirrored_end_is_detected(
    pair: Pair, fresh_name: Callable[[str], str], topic: str, foreign: int
) -> None:
    """Each log ends in records that the other lacks, at one offset or not; ends prove nothing."""

    async def run() -> None:
        async with old_source(pair, fresh_name("back")) as old:
            topic_id = await old.make(topic, 10)
            await old.fail_over(f"there.{topic}", topic, topic_id, ended(10))
            old.lie(topic, foreign)
            late = MirrorTopic(
                mirror=f"there.{topic}", topic=topic, topic_id=topic_id, partitions=1
            )
            await write_state(old.there, late, State.STOPPED, ended(15))
            librdkafka_tools.write(old.servers, topic, librdkafka_tools.simple(4, 0, "own"))
            said = await old.refused(topic)
            assert said.startswith("MIRROR_TOPIC_DIVERGED: "), said
            assert f"{topic}-0 from offset 10 to 13" in said
            assert old.ends(topic) == [14]

    asyncio.run(run())


@pytest.mark.parametrize(("first", "second"), [(60, 100), (100, 60)])
def test_the_largest_last_mirrored_end_of_several_mirrors_counts(
    pair: Pair, fresh_name: Callable[[str], str], topic: str, first: int, second: int
) -> None:
    """The largest end is the latest, whatever the mirrors' names: the tail starts there."""

    async def run() -> None:
        async with old_source(pair, fresh_name("back")) as old:
            topic_id = await old.make(topic, 100)
            for mirror, end in (("alpha", first), ("zeta", second)):
                await old.fail_over(f"{mirror}.{topic}", topic, topic_id, ended(end))
            old.write(topic, 17)
            said = await old.refused(topic)
            assert said.startswith("MIRROR_TOPIC_DIVERGED: "), said
            assert f"{topic}-0 from offset 100 to 116" in said

    asyncio.run(run())


@pytest.mark.long
def test_a_failback_waits_for_the_end_of_all_failovers(
    pair: Pair, fresh_name: Callable[[str], str], topic: str
) -> None:
    """It goes on only after all of them have ended."""

    async def run() -> None:
        async with old_source(pair, fresh_name("back")) as old:
            topic_id = await old.make(topic, 100)
            for mirror, end in (("alpha", 100), ("zeta", 60)):
                await old.fail_over(f"{mirror}.{topic}", topic, topic_id, ended(end))
            late = MirrorTopic(mirror=f"late.{topic}", topic=topic, topic_id=topic_id, partitions=1)
            await old.write_removed(late)
            assert (await old.refused(topic)).startswith("TOPIC_ALREADY_EXISTS: ")
            await write_state(old.there, late, State.STOPPED)
            assert await add_topics(old.here, old.back, topic) == [topic]

    asyncio.run(run())


def test_creation_of_an_existing_topic_is_refused_only_as_existing(
    any_kafka: LocalCluster, topic: str
) -> None:
    """The only refusal is that it exists, so its creation is checked under another name."""

    async def run() -> None:
        async with client(any_kafka) as cluster:
            await make_topic(cluster, topic)
            for name, code in ((topic, 36), (f"{topic}.other", 38)):
                tried = NewTopic(name=name, partitions=1, replication_factor=9)
                answer = (await create_topics(cluster, [tried], validate_only=True))[name]
                assert isinstance(answer, Refusal)
                assert answer.code == code

    asyncio.run(run())


def test_a_topic_that_cannot_be_recreated_is_not_deleted(
    pair: Pair, fresh_name: Callable[[str], str], topic: str
) -> None:
    """The topic keeps its divergent tail, which is not even saved."""

    async def run() -> None:
        async with old_source(pair, fresh_name("back")) as old:
            await old.diverge(topic, 17)
            with pytest.raises(UserError, match="INVALID_REPLICATION_FACTOR"):
                await add_topics(
                    *(old.here, old.back, topic), replication_factor=9, rebuild=Rebuild(None)
                )
            assert old.ends(topic) == [117]

    asyncio.run(run())


def test_a_deleted_topic_whose_creation_fails_is_named(
    pair: Pair, fresh_name: Callable[[str], str], topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Creation fails although it was tried; once that is repaired, the topic is added."""

    async def untried(_: object, wanted: object, *__: object) -> object:
        return wanted

    async def run() -> None:
        async with old_source(pair, fresh_name("back")) as old:
            await old.diverge(topic, 17)
            with monkeypatch.context() as patched:
                patched.setattr(creation, "fitted", untried)
                with pytest.raises(UserError) as caught:
                    await add_topics(
                        *(old.here, old.back, topic), replication_factor=9, rebuild=Rebuild(None)
                    )
            assert f"deleted already: {topic}; repeat the same --add" in str(caught.value)
            assert await add_topics(old.here, old.back, topic) == [topic]
            assert old.ends(topic) == [0]

    asyncio.run(run())


@pytest.mark.parametrize(
    "moment", [pytest.param("delete_topics", marks=pytest.mark.long), "prepare", "add_topics"]
)
def test_an_interrupted_rebuild_is_completed(
    pair: Pair, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Ctrl-C between deletion and creation: the error names the topic; --add completes it (D12)."""
    places: dict[str, tuple[object, str]] = {
        "delete_topics": (rebuild_module, "delete_topics"),
        "prepare": (creation, "prepare"),
        "add_topics": (MirrorStore, "add_topics"),
    }

    async def interrupted(*_: object, **__: object) -> None:
        raise asyncio.CancelledError

    async def run() -> None:
        async with old_source(pair, f"back.{topic}") as old:
            await old.diverge(topic, 17)
            rebuild = Rebuild(tmp_path)
            with monkeypatch.context() as patched:
                patched.setattr(*places[moment], interrupted)
                with pytest.raises(Interrupted) as caught:
                    await add_topics(old.here, old.back, topic, rebuild=rebuild)
            assert topic in str(caught.value)
            assert "repeat the same --add" in str(caught.value)
            again = Rebuild(tmp_path / "again") if moment == "delete_topics" else rebuild
            assert await add_topics(old.here, old.back, topic, rebuild=again) == [topic]
            assert old.ends(topic) == [0]
            assert list(tmp_path.glob("*/*.log"))

    asyncio.run(run())


_STOPS_BEFORE_CREATION = """
import asyncio
from twinlog.lifecycle import creation

async def prepare(*_):
    print("deleted", flush=True)
    await asyncio.sleep(600)

creation.prepare = prepare
"""
"""The moment of Ctrl-C: a command has deleted the topic, and is about to create it."""


@pytest.mark.parametrize("command", [["kafka_mirrors"], ["twinlog", "mirrors"]], ids=" ".join)
def test_a_command_interrupted_before_creation_is_completed_by_a_repeat(
    pair: Pair, topic: str, command: list[str]
) -> None:
    """Goal: D12: Ctrl-C ends it with status 130 and the deleted topic; a repeat completes it."""
    begin, *words = command
    program = f"{_STOPS_BEFORE_CREATION}\nfrom twinlog.interfaces.cli import start; start.{begin}()"
    back = f"back.{topic}"
    arguments = (
        *("--bootstrap-server", pair.destination.bootstrap_servers),
        *("--add", "--topic", topic, "--mirror", back, "--rebuild"),
    )

    async def interrupted(old: Old) -> tuple[int | None, str, str]:
        process = await asyncio.create_subprocess_exec(
            # A background process ignores SIGINT, and its children inherit that.
            *("env", "--default-signal=INT", sys.executable, "-c", program, *words, *arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        assert (await process.stdout.readline()).strip() == b"deleted"

        async def gone() -> bool:
            return topic not in (await old.here.refresh([topic])).topics

        await until_async(gone, what=f"no {topic}")
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(120):
            output, errors = await process.communicate()
        return process.returncode, output.decode(), errors.decode()

    async def run() -> None:
        async with old_source(pair, back) as old:
            await old.diverge(topic, 17)
            status, output, errors = await interrupted(old)
            assert (status, output) == (130, ""), errors
            (line,) = errors.splitlines()
            assert line.startswith(f"Error: interrupted; deleted already: {topic}; repeat the same")
            again = (*commands.KAFKA_MIRRORS, *arguments)
            done = await asyncio.to_thread(commands.run, again, seconds=300)
            assert (done.status, done.errors) == (0, "")
            assert done.output == f"Added 1 topic(s) to mirror {back}: [{topic}]\n"
            assert old.ends(topic) == [0]

    asyncio.run(run())


def test_a_topic_whose_tail_cannot_be_saved_is_not_deleted(
    pair: Pair, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer without bytes does not prove that there is nothing to save (A1)."""
    ask = LogReader._ask

    async def empty(self: LogReader, at: int, size: int) -> object:
        found = await ask(self, at, size)
        saving = isinstance(found, Bytes) and self._isolation == READ_UNCOMMITTED
        return Nothing("responses without records", final=True) if saving else found

    async def run() -> None:
        async with old_source(pair, f"back.{topic}") as old:
            await old.diverge(topic, 17)
            with monkeypatch.context() as patched:
                patched.setattr(LogReader, "_ask", empty)
                with pytest.raises(Retriable, match="responses without records") as caught:
                    await add_topics(old.here, old.back, topic, rebuild=Rebuild(tmp_path))
            assert "nothing was deleted" in str(caught.value)
            assert old.ends(topic) == [117]

    asyncio.run(run())


@pytest.mark.parametrize("written", [0, 1])
def test_a_topic_that_grows_during_the_save_is_not_deleted(
    pair: Pair, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """The log may be that of any of the topic's partitions; partition 1 has no tail."""
    save = rebuild_module.save_tails

    async def run() -> None:
        async with old_source(pair, f"back.{topic}") as old:
            await old.diverge(topic, 17, 0)

            async def while_saving(*arguments: Any) -> object:
                librdkafka_tools.write(old.servers, topic, librdkafka_tools.simple(1, written))
                return await save(*arguments)

            with monkeypatch.context() as patched:
                patched.setattr(creation, "save_tails", while_saving)
                with pytest.raises(
                    UserError, match=f"{topic}-{written} has changed: its log end offset was "
                ):
                    await add_topics(old.here, old.back, topic, rebuild=Rebuild(tmp_path / "first"))
            assert sum(old.ends(topic, 2)) == 117 + 100 + 1
            rebuild = Rebuild(tmp_path / "second")
            if written:
                said = await old.refused(topic)
                assert f"{topic}-0 from offset 100 to 116; {topic}-1 from offset 100 to 100" in said
            assert await add_topics(old.here, old.back, topic, rebuild=rebuild) == [topic]
            saved = sorted(one.parent.name for one in tmp_path.glob("second/*/*.log"))
            assert saved == [f"{topic}-{index}" for index in range(written + 1)]
            assert old.ends(topic, 2) == [0, 0]

    asyncio.run(run())


def test_a_topic_that_grows_between_two_attempts_is_not_deleted(
    pair: Pair, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that reaches no broker is retried: records written in between are not saved."""
    call = Connection.call

    async def run() -> None:
        async with old_source(pair, f"back.{topic}") as old:
            await old.diverge(topic, 17)
            tried: list[Any] = []

            async def unreachable(self: Connection, request: Any, **settings: Any) -> Any:
                if isinstance(request, DeleteTopicsRequest) and not tried:
                    tried.append(request)
                    await asyncio.to_thread(old.write, topic, 1)
                    raise Retriable("the connection is lost")
                return await call(self, request, **settings)

            with monkeypatch.context() as patched:
                patched.setattr(Connection, "call", unreachable)
                with pytest.raises(
                    UserError, match=f"{topic}-0 has changed: its log end offset was "
                ) as told:
                    await add_topics(old.here, old.back, topic, rebuild=Rebuild(tmp_path / "first"))
            assert "may take effect" in str(told.value)
            assert len(tried) == 1
            assert old.ends(topic) == [118]
            rebuild = Rebuild(tmp_path / "second")
            assert await add_topics(old.here, old.back, topic, rebuild=rebuild) == [topic]
            assert old.ends(topic) == [0]

    asyncio.run(run())


def test_a_repeated_deletion_does_not_delete_a_recreated_topic(
    pair: Pair, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic of the same name that was created in between has another id."""
    call = Connection.call

    async def run() -> None:
        async with old_source(pair, f"back.{topic}") as old:
            await old.diverge(topic, 17)
            lost: list[Any] = []

            async def losing(self: Connection, request: Any, **settings: Any) -> Any:
                answer = await call(self, request, **settings)
                if isinstance(request, DeleteTopicsRequest) and not lost:
                    lost.append(request)
                    await until_async(gone)
                    await old.make_here(topic, 117)
                    raise Retriable("the connection is lost")
                return answer

            async def gone() -> bool:
                return topic not in (await old.here.refresh([topic])).topics

            ids = {topic: (await old.here.refresh([topic])).topics[topic].topic_id}
            with monkeypatch.context() as patched:
                patched.setattr(Connection, "call", losing)
                refusal = (await delete_topics(old.here, [topic], ids=ids))[topic]
            assert refusal is not None
            assert refusal.code == 100
            assert old.ends(topic) == [117]

    asyncio.run(run())


def test_a_record_that_is_missing_on_the_mirror_is_saved(
    pair: Pair, fresh_name: Callable[[str], str], topic: str, tmp_path: Path
) -> None:
    """Far before the last mirrored end, the old source may have the only copy."""

    async def run() -> None:
        async with old_source(pair, fresh_name("back")) as old:
            former = await old.make(topic, 100)
            old.write(topic, 1)  # at 100
            librdkafka_tools.write_same(old.servers, topic, 0, 101, 2100)
            librdkafka_tools.write_same(old.servers_there, topic, 0, 0, 100)
            await write_markers(old.there, topic, 1)
            librdkafka_tools.write_same(old.servers_there, topic, 0, 101, 2100)
            await old.fail_over(fresh_name("there"), topic, former, ended(2100))
            old.write(topic, 17)
            await add_topics(old.here, old.back, topic, rebuild=Rebuild(tmp_path))
            assert old.ends(topic) == [0]
            assert [path.name for path in tmp_path.rglob("*.log")] == [f"{100:020d}.log"]

    asyncio.run(run())


def test_a_topic_recreated_on_the_failover_cluster_is_refused(
    pair: Pair, fresh_name: Callable[[str], str], topic: str
) -> None:
    """The destination has another log now, although retention has left nothing to compare."""

    async def run() -> None:
        async with old_source(pair, fresh_name("back")) as old:
            former = await old.make(topic, 50)
            known = (await old.there.refresh([topic])).topics[topic].topic_id
            librdkafka_tools.write_same(old.servers_there, topic, 0, 0, 50)
            await old.fail_over(fresh_name("there"), topic, former, ended(50), known)
            await delete_records(old.here, {TopicPartition(topic, 0): 50})
            librdkafka_tools.delete_topic(old.servers_there, topic)

            async def gone() -> bool:
                return topic not in (await old.there.refresh([topic])).topics

            await until_async(gone)
            await make_topic(old.there, topic)
            librdkafka_tools.write(old.servers_there, topic, librdkafka_tools.simple(80))
            said = await old.refused(topic)
            assert said.startswith("TOPIC_ALREADY_EXISTS: "), said
            assert f"{topic} was recreated since it was failed over" in said

    asyncio.run(run())
