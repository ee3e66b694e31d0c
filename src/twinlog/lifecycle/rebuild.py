"""Rebuilds a topic whose log has diverged: deleted, recreated, mirrored from the beginning.

Stock brokers let no client truncate a log, so a rebuild is the only way if the destination holds
records that the source does not have. The operator has to allow it, and may have them saved first.

    creation is tried without effect -> tails saved -> all log ends unchanged -> deleted
                                                                -> created, written (creation.py)

A topic is deleted as a whole, so all of its partitions have to be as they were reported and saved:
records written to any of them meanwhile would be lost unseen. From the deletion on, every error
reports that the topic is deleted.
"""

import asyncio
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.metadata import Topic
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import TOPIC_GONE, Refusal, Retriable, TwinlogError, UserError
from twinlog.kafka.log.batch import batches
from twinlog.kafka.requests.partitions import DEBUGGING, list_offsets
from twinlog.kafka.requests.topics import delete_topics
from twinlog.kafka.types import TopicPartition
from twinlog.verify.log_reader import READ_UNCOMMITTED, BelowLogStart, LogReader, Nothing

_REPEAT: Final = (
    "repeat the same --add once the cause is fixed: it creates what is missing, and mirrors from "
    "the beginning what --describe does not show"
)


class DivergentTail(NamedTuple):
    """Offsets `[start, end)` at a partition's end that the other cluster lacks; may be empty."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def empty(self) -> bool:
        """Whether the other cluster has the whole partition."""
        return self.start == self.end


def _tell_nobody(progress: str) -> None:
    del progress


class Rebuild(NamedTuple):
    """The operator's permission to delete and recreate topics."""

    save_to: Path | None
    """Where the tails are written first; None: they are not saved."""
    tell: Callable[[str], None] = _tell_nobody
    """Receives the progress of the comparison."""


async def delete_diverged(destination: KafkaCluster, tails: Collection[DivergentTail]) -> None:
    """Delete topics that are as they were read; when this returns, they are gone.

    Args:
        destination: the cluster that holds them.
        tails: of all of their partitions.

    Raises:
        UserError: one of them was written to meanwhile, and nothing is deleted; or a deletion is
            refused.
        Retriable: the destination is unreachable. What is deleted stays deleted: retry.
    """
    names = sorted({tail.partition.topic for tail in tails})
    answers = await _deleted(destination, names, tails)
    refusals = {
        name: refusal
        for name, refusal in answers.items()
        if refusal is not None and refusal.code not in TOPIC_GONE
    }
    with deleted_before(answers.keys() - refusals.keys()):
        for name, refusal in refusals.items():
            raise refusal.error("delete the diverged topic", topic=name)

        async def check_deleted() -> None:
            existing = (await destination.refresh(names)).topics.keys() & set(names)
            if existing:
                raise Retriable(f"not deleted yet: {', '.join(sorted(existing))}")

        await destination.persist(check_deleted)


async def _deleted(
    destination: KafkaCluster, names: Collection[str], tails: Collection[DivergentTail]
) -> dict[str, Refusal | None]:
    """Delete topics, if unchanged before each attempt; return the result for each topic.

    An attempt may reach no broker, or get no answer, for as long as an operator waits: records
    written before the next one would be deleted with the rest.
    """
    sent = False

    async def attempt() -> dict[str, Refusal | None]:
        nonlocal sent
        topics = (await destination.refresh(names)).topics
        existing = {name: topics[name] for name in names if name in topics}
        if not sent and len(existing) < len(names):
            name = min(set(names) - existing.keys())
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION).error(
                "read the log end offset", topic=name
            )
        await _unchanged(destination, existing, tails)
        # Before the request: one of unknown outcome may still take effect.
        sent = True
        ids = {name: topic.topic_id for name, topic in existing.items()}
        return await delete_topics(destination, existing, ids=ids, once=True) if existing else {}

    try:
        return dict.fromkeys(names) | await destination.persist(attempt)
    except TwinlogError as error:
        if sent:
            error.hint = (
                f"the deletion of {', '.join(names)} was requested and may take effect; {_REPEAT}"
            )
        raise
    except asyncio.CancelledError as cancelled:
        if not sent:
            raise
        raise Interrupted(
            f"interrupted during the deletion of {', '.join(names)}, which may take effect",
            hint=_REPEAT,
        ) from cancelled


async def _unchanged(
    destination: KafkaCluster, topics: Mapping[str, Topic], tails: Collection[DivergentTail]
) -> None:
    """Require that the log ends are unchanged; see `delete_diverged`."""
    ends = {tail.partition: tail.end for tail in tails if tail.partition.topic in topics}
    partitions = ends.keys() | {
        TopicPartition(name, index) for name, topic in topics.items() for index in topic.partitions
    }
    log_ends = await list_offsets(destination, partitions, replica_id=DEBUGGING)
    for partition, log_end in sorted(log_ends.items()):
        if isinstance(log_end, Refusal):
            raise log_end.error("read the log end offset", topic=partition.topic)
        # A partition without a tail was created since, and has to be empty.
        if log_end.offset != ends.get(partition, 0):
            raise UserError(
                f"{partition} has changed: its log end offset was {ends.get(partition, 0)}, now "
                f"it is {log_end.offset}",
                hint="nothing was deleted; stop the topic's producers first",
            )


class Interrupted(TwinlogError):
    """Ctrl-C after a step that cannot be undone; the hint says how to complete it."""

    exit_status = 130


@contextmanager
def deleted_before(names: Collection[str]) -> Iterator[None]:
    """Add to each error or interruption inside that these topics are deleted, and what to do."""
    note = f"deleted already: {', '.join(sorted(names))}; {_REPEAT}"
    try:
        yield
    except TwinlogError as error:
        if names:
            error.hint = f"{error.hint}; {note}" if error.hint else note
        raise
    except asyncio.CancelledError as cancelled:
        if names:
            raise Interrupted("interrupted", hint=note) from cancelled
        raise


async def save_tails(
    destination: KafkaCluster, tails: Collection[DivergentTail], directory: Path
) -> list[Path]:
    """Write each tail that is not empty to `DIRECTORY/TOPIC-PARTITION/START.log`; return the files.

    The files are log segments: they hold the batches as they are in the log, including aborted
    transactions and markers, and `kafka-dump-log --files` reads them. When this returns, the files
    and their directory entries are on disk.

    Raises:
        UserError: a file exists, or cannot be written.
        Retriable: an offset of a tail could not be read.
    """
    await destination.refresh({tail.partition.topic for tail in tails})
    return [await _save(destination, tail, directory) for tail in tails if not tail.empty]


async def _save(destination: KafkaCluster, tail: DivergentTail, directory: Path) -> Path:
    path = directory / str(tail.partition) / f"{tail.start:020d}.log"
    reader = LogReader(destination, tail.partition, isolation=READ_UNCOMMITTED)
    try:
        folders = _make_folders(path.parent)
        with path.open("xb") as file:
            at = tail.start
            while at < tail.end:
                stretch, at = await _read(reader, tail, at)
                file.write(stretch)
            file.flush()
            os.fsync(file.fileno())
        for folder in folders:
            _sync_folder(folder)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    return path


def _make_folders(folder: Path) -> list[Path]:
    """Create a folder with its parents; return the folders whose entries change."""
    folders = [folder]
    while not folder.exists():
        folder = folder.parent
        folders.append(folder)
    folders[0].mkdir(parents=True, exist_ok=True)
    return folders


def _sync_folder(folder: Path) -> None:
    """Put a folder's entries on disk: fsync of a file does not (fsync(2))."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


async def _read(reader: LogReader, tail: DivergentTail, at: int) -> tuple[bytes, int]:
    """Whole batches of the tail from `at` on, and the offset after them.

    Raises:
        Retriable: they could not be read. An answer without bytes does not prove that the log is
            empty there, so nothing may be deleted.
    """
    answer = await reader.chunk(at)
    if isinstance(answer, BelowLogStart):  # retention has deleted them already
        return b"", min(answer.start, tail.end)
    if isinstance(answer, Nothing):
        raise Retriable(
            f"cannot read the records to save from offset {at}: {answer.reason}",
            hint="nothing was deleted; --rebuild without --save-tail deletes them without saving",
            topic=tail.partition.topic,
            partition=tail.partition.partition,
        )
    complete = list(batches(answer.records))
    return bytes(answer.records[: complete[-1].end]), complete[-1].next_offset
