"""Several source topics, of two flows, are copied to one remote topic, while parts are killed.

    orders        transactions, some aborted   flow a ─┐
    clicks        plain batches, all codecs    flow a ─┼─► common, by a policy of the user
    other-clicks  plain batches                flow c ─┘

Each remote partition has the records of up to three source partitions in an order that only the
broker knows, so it is the place for which the map is easiest to get wrong. Each record tells by its
header which writer wrote it; a writer has one topic.
"""

import bisect
import itertools
import json
import os
import random
import sys
import threading
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import kills
import librdkafka_tools
import pytest
from common_name import COMMON, POLICY, TOPICS, install
from flow_kinds import Copied, Placed
from flow_ordeal import LEVELS, FlowOrdeal, check_numbers, difference, placed_records_of
from waiting import SECONDS, until

from twinlog.local.check import Partition
from twinlog.local.cluster import LocalCluster
from twinlog.local.stage import Stage
from twinlog.local.writers import CODECS, PlainWriter, Totals

pytestmark = [
    pytest.mark.last,
    pytest.mark.long,
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.timeout(1200),
]

RATE = 300.0
OTHERS = "other-clicks"
SAMPLE = 800
"""How many offsets of a partition are translated, beside the first and the last ones."""


class OtherClicks:
    """The load of the other flow's topic, from a thread: a writer for each partition."""

    topics: Mapping[str, int] = {OTHERS: len(CODECS)}

    def __init__(self, source: LocalCluster, seed: str) -> None:
        servers = source.bootstrap_servers
        librdkafka_tools.make_topic(servers, OTHERS, len(CODECS))
        self._totals = Totals()
        self._writers = [
            PlainWriter(servers, f"{OTHERS}-{seed}-{codec}", self._totals, compression_type=codec)
            for codec in CODECS
        ]
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)

    def start(self) -> None:
        """Begin to write.

        The first batch of a producer has to be acknowledged before the next one is sent: a broker
        takes any sequence number from a producer that it does not know. So if it refused the first
        batch of a partition that is being created, it could take the second one before it.
        """
        self._round()
        self._flush()
        self._thread.start()

    def stop(self) -> Totals:
        """End, and return what was written."""
        self._ending.set()
        self._thread.join()
        self._flush()
        assert not self._totals.failures, self._totals.failures
        return self._totals

    def _write(self) -> None:
        while not self._ending.wait(len(CODECS) / RATE * 2):
            self._round()

    def _round(self) -> None:
        for index, writer in enumerate(self._writers):
            writer.write(OTHERS, index, None, uuid.uuid4().hex)

    def _flush(self) -> None:
        for writer in self._writers:
            assert writer.flush(SECONDS) == 0


def create(stage: Stage, alias: str, *topics: str) -> None:
    """Create a flow of the source to the common topic."""
    settings = {
        "replication.factor": "1",
        "refresh.topics.interval.seconds": "1",
        "emit.heartbeats.enabled": "false",
        "emit.checkpoints.enabled": "false",
        "replication.policy.class": POLICY,
        TOPICS: f"orders,clicks,{OTHERS}",
    }
    control = stage.directory / "command.properties"
    control.write_text("mirror.topic.num.partitions=5\n")
    created = librdkafka_tools.twinlog(
        *("flows", "create", "--bootstrap-server", stage.destination.bootstrap_servers),
        *("--command-config", str(control), "--source", alias, "--target", "b"),
        *("--source-bootstrap-server", stage.source.bootstrap_servers),
        *("--topics", ", ".join(topics)),
        *(part for item in settings.items() for part in ("--config", "=".join(item))),
    )
    assert created.status == 0, created


def translated(
    stage: Stage, flow: str, partition: Partition, offsets: Sequence[int], *more: str
) -> list[dict[str, Any]]:
    """Translate offsets by command."""
    topic, index = partition
    found = librdkafka_tools.twinlog(
        *("flows", "translate", "--bootstrap-server", stage.destination.bootstrap_servers),
        *("--flow", flow, "--topic", topic, "--partition", str(index), *more, "--json"),
        *(part for offset in offsets for part in ("--offset", str(offset))),
    )
    assert found.status in {0, 3}, found
    result: list[dict[str, Any]] = json.loads(found.output)["offsets"]
    return result


def flow_of(topic: str) -> str:
    return "c-to-b" if topic == OTHERS else "a-to-b"


def writer_of(record: Copied) -> str:
    found = dict(cast("list[tuple[str, bytes]]", record[3]))["writer"]
    return found.decode()


class Aggregation:
    """What the source has, and what the common topic has of it, once all is copied."""

    def __init__(self, flow: FlowOrdeal, other: OtherClicks) -> None:
        self.stage, self._random = flow.stage, flow.random
        flow.stage.stop_load()
        written = {**flow.stage.written, **other.stop().numbers}
        self._topics = {writer: topic for topic, _, writer in written}
        assert len(self._topics) == len({(topic, writer) for topic, _, writer in written})
        servers = flow.stage.source.bootstrap_servers
        self.sources: dict[Partition, Placed] = {}
        for partition in flow.partitions:
            placed = placed_records_of(servers, *partition, "read_committed")
            check_numbers(partition, [record for _, record in placed], written)
            self.sources[partition] = placed
        self.remotes: dict[Partition, Placed] = {}
        """The records in the common topic of each partition of the source."""

    def prove_each_once(self) -> None:
        """Each record of each source partition is there once, in order, and no other record."""
        servers = self.stage.destination.bootstrap_servers
        for index in range(len(CODECS)):
            feeding = [partition for partition in self.sources if partition[1] == index]
            assert len(feeding) == (3 if index < 4 else 2)
            total = sum(len(self.sources[partition]) for partition in feeding)
            until(
                lambda index=index: len(placed_records_of(servers, COMMON, index, LEVELS[0])),
                SECONDS,
                f"{total} records in {COMMON}-{index}",
                good=lambda found, total=total: found >= total,
                pause=1.0,
            )
            for level in LEVELS:
                placed = placed_records_of(servers, COMMON, index, level)
                assert len(placed) == total, (index, level)
                for partition in feeding:
                    topic, _ = partition
                    own = [one for one in placed if self._topics[writer_of(one[1])] == topic]
                    wanted = [record for _, record in self.sources[partition]]
                    found = [record for _, record in own]
                    assert found == wanted, f"{partition} {level}: {difference(wanted, found)}"
                    self.remotes[partition] = own
            changes = sum(
                self._topics[writer_of(one)] != self._topics[writer_of(other)]
                for (_, one), (_, other) in itertools.pairwise(placed)
            )
            assert changes > 2, "the records of the sources are not mixed: nothing is shown"

    def prove_translation(self) -> None:
        """Offsets of source partitions are translated to the copies, and back.

        Each offset of a command costs little, and each command about a second of a core, so this
        is done for some partitions: a random one, and the one that `orders` does not have.
        """
        chosen = {self._random.randrange(4), 4}
        with ThreadPoolExecutor(3) as pool:
            for done in [
                *(
                    pool.submit(self._check_to_target, one)
                    for one in self.sources
                    if one[1] in chosen
                ),
                *(pool.submit(self._check_to_source, index) for index in chosen),
            ]:
                done.result()

    def _sample(self, end: int) -> list[int]:
        """Some offsets below `end`, and `end`."""
        chosen = {*range(30), *range(end - 30, end + 1)}
        chosen |= {self._random.randrange(end) for _ in range(SAMPLE)}
        return sorted(offset for offset in chosen if 0 <= offset <= end)

    def _check_to_target(self, partition: Partition) -> None:
        source, remote = self.sources[partition], self.remotes[partition]
        here, there = [at for at, _ in source], [at for at, _ in remote]
        offsets = self._sample(here[-1] + 1)
        found = until(
            lambda: translated(self.stage, flow_of(partition[0]), partition, offsets),
            SECONDS,
            f"all offsets of {partition}",
            good=lambda answers: all(one["known"] for one in answers),
            pause=1.0,
        )
        for offset, one in zip(offsets, found, strict=True):
            assert (one["source"]["offset"], one["target"]["topic"]) == (offset, COMMON)
            place, number = one["target"]["offset"], bisect.bisect_left(here, offset)
            if number < len(here) and here[number] == offset:
                assert (one["answer"], place) == ("RECORD", there[number]), one
            else:
                # A group that goes on here reads each record that is left, and none before them.
                assert one["answer"] in {"NEXT", "END"}, one
                assert bisect.bisect_left(there, place) == number, one

    def _check_to_source(self, index: int) -> None:
        """Each place is the copy of one record; of other partitions it leads to what follows."""
        feeding = {one: placed for one, placed in self.remotes.items() if one[1] == index}
        places = sorted(at for placed in feeding.values() for at, _ in placed)
        offsets = sorted(self._random.sample(places, min(SAMPLE // 8, len(places))))
        for flow in ("a-to-b", "c-to-b"):
            own = {one: placed for one, placed in feeding.items() if flow_of(one[0]) == flow}
            if not own:
                continue
            found = until(
                lambda flow=flow: translated(
                    self.stage, flow, (COMMON, index), offsets, "--to-source"
                ),
                SECONDS,
                f"all places of {COMMON}-{index}",
                pause=1.0,
            )
            assert len(found) == len(offsets) * len(own)
            for one in found:
                partition = one["source"]["topic"], one["source"]["partition"]
                there = [at for at, _ in own[partition]]
                here = [at for at, _ in self.sources[partition]]
                place = one["target"]["offset"]
                number = bisect.bisect_left(there, place)
                is_copy = number < len(there) and there[number] == place
                assert (one["answer"] == "RECORD") == is_copy, one
                if not one["known"]:
                    assert number in {0, len(there)}, one
                elif is_copy:
                    assert one["source"]["offset"] == here[number], one
                else:
                    assert bisect.bisect_left(here, one["source"]["offset"]) == number, one


def test_each_record_of_several_topics_is_once_in_their_common_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: exactly once, in order, and exactly translated, though a lane, a node and a broker die.

    Issue 19: several source partitions may feed one remote topic, so a batch's location is what the
    broker's answer says; exactly once all the same.
    """
    install(tmp_path / "policy")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "policy"), prepend=os.pathsep)
    seed = str(random.SystemRandom().randrange(1 << 32))
    sys.stdout.write(f"seed {seed}\n")
    with Stage(tmp_path / "stage") as stage:
        with ThreadPoolExecutor(2) as pool:
            for started in (pool.submit(stage.start_source), pool.submit(stage.start_destination)):
                started.result()
        stage.start_load(RATE, 600)
        other = OtherClicks(stage.source, seed)
        flow = FlowOrdeal(stage, seed, other=other)
        flow.remotes = [(COMMON, index) for index in range(len(CODECS))]
        other.start()
        create(stage, "a", "orders", "clicks")
        create(stage, "c", OTHERS)
        stage.start_node("node", "--lanes", "2")
        flow.await_all()
        victim = cast("Any", flow)
        kills.kill_lane(victim, "node")
        kills.kill_only_broker(victim, stage.destination)
        kills.kill_driver(victim, "node", "--lanes", "2")
        found = Aggregation(flow, other)
        flow.say("the load has ended")
        try:
            found.prove_each_once()
            flow.say("each record is there once")
            found.prove_translation()
        except AssertionError as error:
            error.add_note(flow.circumstances())
            raise
        flow.say("offsets are translated exactly")
