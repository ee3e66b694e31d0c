"""The process that applies DataFrame transforms for a lane: a Spark of its own, beside the lane.

    lane ──stdin──► requests ──► dataframe_worker.py ──► Spark, local[1]
         ◄─stdout── answers  ◄──

Lanes are tasks on executors, where no session is, and take all slots of the application: queries of
the driver would never get one, and records would have to pass through it. So each lane that has
such a flow starts a Spark application of its own, with the lane as its only client. More lanes
transform more. It works alike on one machine and in a cluster, opens no port, and no record leaves
the lane's host.

The process writes to no cluster: if it dies, is killed, or answers late, the records are asked for
again. It ends when its standard input does, so also when the lane is killed.

Several state partitions have transactions at the same time. Their micro-batches wait for each other
and are never put together: a query may count or group, and one transaction may be committed without
the other.

Requests and answers are pickled, with their length in front (8 bytes, big endian): both ends are
the same program. Rows are pickled apart, `_ROWS` at a time, as there may be a million of them: the
lane's other tasks run in between.

    length | request or answer without its rows | rows | rows | ...
"""

import asyncio
import io
import logging
import os
import pickle
import struct
import sys
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from twinlog.engines.dataframes import QueryFailed, QueryUnusable, ResultRows, SourceRow
from twinlog.engines.loop_steps import Steps
from twinlog.kafka.client.references import NOTHING, Grants
from twinlog.kafka.errors import Retriable
from twinlog.mirror.dataframe_transform import DataFrameTransform

log = logging.getLogger(__name__)

LENGTH: Final = struct.Struct(">Q")
ANSWER_S: Final = 300.0
"""How long an answer may take, the start of Spark included, and twice as long after each one that
was late: on a busy host, a Spark that is ended for being slow would never answer."""
LONGEST_S: Final = 1200.0
"""The longest time for an answer: the queries of the lane's other flows wait meanwhile."""
END_S: Final = 5.0
"""How long to wait until a killed process has ended."""
_ROWS: Final = 1024
_READ_AHEAD: Final = 4 * 1024 * 1024
_MODULE: Final = "twinlog.runtime.dataframe_worker"


@dataclass(frozen=True, slots=True)
class TransformRequest:
    """What the process is asked for."""

    transform: DataFrameTransform
    grants: Grants
    """What the transform's properties may read of this machine."""
    rows: Sequence[SourceRow] | None
    """None: the transform is only analysed, and there are no rows in the answer."""


@dataclass(frozen=True, slots=True)
class TransformFailure:
    """Why there is no result."""

    reason: str
    for_all: bool
    """Whether the transform cannot be applied to any record (`QueryUnusable`)."""
    name: str = ""
    only_here: bool = False
    """Both: see `QueryUnusable`."""


Answer = ResultRows | TransformFailure


def pickled(message: TransformRequest | Answer) -> Iterator[bytes]:
    """A request or an answer in the parts that are sent; each takes about a millisecond."""
    rows: Sequence[SourceRow] | Sequence[tuple[object, ...]] = ()
    head = message
    match message:
        case TransformRequest():
            rows = message.rows or ()
            head = replace(message, rows=None if message.rows is None else ())
        case ResultRows():
            rows, head = message.rows, message._replace(rows=())
    yield pickle.dumps(head, protocol=pickle.HIGHEST_PROTOCOL)
    for start in range(0, len(rows), _ROWS):
        some = list(rows[start : start + _ROWS])
        yield pickle.dumps(some, protocol=pickle.HIGHEST_PROTOCOL)


def unpickling(data: bytes) -> Generator[None, None, TransformRequest | Answer]:
    """Read what `pickled` has given, joined, in as many steps."""
    stream, rows = io.BytesIO(data), list[Any]()
    message = pickle.load(stream)  # noqa: S301 - of the lane, or its own child process
    while stream.tell() < len(data):
        yield
        rows += pickle.load(stream)  # noqa: S301 - the same
    match message:
        case TransformRequest() if message.rows is not None:
            return replace(message, rows=rows)
        case ResultRows():
            return message._replace(rows=rows)
        case TransformRequest() | TransformFailure():
            return message
        case _:
            raise AssertionError(f"not of this program: {type(message).__name__}")


class DataFrameProcess:
    """The process of one lane, which is started when it is first needed (`DataFrames`).

    Args:
        grants: what properties of flows may read of this machine.
    """

    def __init__(self, grants: Grants = NOTHING) -> None:
        self._grants = grants
        self._memory_mib = 0  # the most that was asked for; what runs has it
        self._process: asyncio.subprocess.Process | None = None
        self._patience_s = ANSWER_S
        self._waiting: deque[tuple[TransformRequest, asyncio.Future[ResultRows]]] = deque()
        self._serving: asyncio.Task[None] | None = None

    async def run(self, transform: DataFrameTransform, rows: Sequence[SourceRow]) -> ResultRows:
        """Transform a micro-batch (`DataFrames.run`).

        Raises:
            QueryUnusable: the transform cannot be applied to any record.
            QueryFailed: it has failed for these.
            Retriable: the process has ended, or takes too long.
        """
        return await self._answer(TransformRequest(transform, self._grants, rows))

    async def analyse(self, transform: DataFrameTransform) -> None:
        """Have Spark analyse a transform as before its first micro-batch; no query is executed.

        Its static tables are read, and a Python function is called with an empty DataFrame.

        Raises:
            QueryUnusable: the transform cannot be applied to any record.
            Retriable: the process has ended, or takes too long.
        """
        await self._answer(TransformRequest(transform, self._grants, None))

    async def _answer(self, request: TransformRequest) -> ResultRows:
        answer: asyncio.Future[ResultRows] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, answer))
        if self._serving is None or self._serving.done():
            self._serving = asyncio.create_task(self._serve())
        return await answer

    async def close(self) -> None:
        """End the process, and all requests."""
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.gather(self._serving, return_exceptions=True)
        while self._waiting:
            self._waiting.popleft()[1].cancel()
        await self._end()

    async def _serve(self) -> None:
        """Answer all that wait, one after another."""
        while self._waiting:
            request, answer = self._waiting.popleft()
            if answer.done():
                continue
            try:
                async with asyncio.timeout(self._patience_s):
                    result = await self._ask(request)
            except TimeoutError:
                await self._end()
                reason = f"Spark has not answered within {self._patience_s:g} s"
                self._patience_s = min(2 * self._patience_s, LONGEST_S)
                _give(answer, Retriable(reason))
            except Exception as error:  # whatever it is, no request waits for ever
                await self._end()
                if not isinstance(error, OSError | EOFError):
                    log.exception("the process of the lane's DataFrames cannot be used")
                reason = f"the process that runs Spark has ended ({type(error).__name__})"
                _give(answer, Retriable(reason))
            except asyncio.CancelledError:
                answer.cancel()
                raise
            else:
                self._patience_s = ANSWER_S
                _give(answer, result)

    async def _ask(self, request: TransformRequest) -> Answer:
        if request.transform.memory_mib > self._memory_mib:
            # A JVM does not grow. What waits is answered by the next one.
            self._memory_mib = request.transform.memory_mib
            await self._end()
        process = self._process
        if process is None or process.returncode is not None:
            process = self._process = await _started(self._memory_mib)
        assert process.stdin is not None
        assert process.stdout is not None
        steps, parts = Steps(), list[bytes]()
        for part in pickled(request):
            parts.append(part)
            await steps.pause()
        process.stdin.writelines((LENGTH.pack(sum(map(len, parts))), *parts))
        await process.stdin.drain()
        (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
        answer = await steps.finish(unpickling(await process.stdout.readexactly(length)))
        assert not isinstance(answer, TransformRequest)
        return answer

    async def _end(self) -> None:
        """End the process: a late answer would be taken for that to the next request.

        It has nothing to finish, and its JVM ends with it.
        """
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        with suppress(ProcessLookupError):
            process.kill()
        with suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await process.wait()


async def _started(memory_mib: int) -> asyncio.subprocess.Process:
    """Start the process, with a JVM of this size; its messages go to the lane's standard error."""
    # Executors may have this package, and a flow's function, on a path of their own.
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        # How long the JVM may stall before what stalls counts as an error of the records.
        "SPARK_AUTH_SOCKET_TIMEOUT": f"{ANSWER_S:.0f}",
    }
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        _MODULE,
        str(memory_mib),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment,
        limit=_READ_AHEAD,
    )


def _give(answer: asyncio.Future[ResultRows], result: Answer | Exception) -> None:
    """End a request, unless who has asked does not wait any more."""
    if answer.done():
        return
    if isinstance(result, TransformFailure):
        answer.set_exception(_failure(result))
    elif isinstance(result, Exception):
        answer.set_exception(result)
    else:
        answer.set_result(result)


def _failure(failure: TransformFailure) -> Exception:
    if failure.for_all:
        return QueryUnusable(failure.reason, name=failure.name, only_here=failure.only_here)
    return QueryFailed(failure.reason)
