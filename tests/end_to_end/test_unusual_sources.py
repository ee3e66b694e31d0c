"""Unusual but legal sources: no record is lost, and no claim is false.

Each test has its own source, with random sizes and rates: --scenario-seed repeats one,
--scenario-times=10 tries others. oracle.py, which does not know how a mirror works, finds losses.
"""

import json
import random
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import librdkafka_tools
import pytest
from oracle import Oracle
from unusual_sources import (
    LARGEST,
    MEGABYTE,
    TIERED_TOPIC,
    Chance,
    await_tiered,
    chance,
    compile_selector,
    empty_last_segment,
    set_quota,
    tiered,
    write_sizes,
)
from waiting import until

from twinlog.local.check import ConsumerView
from twinlog.local.cluster import DEFAULT_VERSION
from twinlog.local.stage import MIRROR, Stage

pytestmark = [pytest.mark.broker, pytest.mark.spark]

BROKERS = {"message.max.bytes": str(8 << 20), "replica.fetch.max.bytes": str(8 << 20)}
ARRIVAL_SECONDS = 300.0
REFUSAL_SECONDS = 60.0
"""The time limit for what may not be mirrored."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Repeat each test --scenario-times times."""
    if "index" in metafunc.fixturenames:
        times = metafunc.config.getoption("--scenario-times")
        metafunc.parametrize("index", range(times), ids=str)


@pytest.fixture
def by_chance(request: pytest.FixtureRequest, index: int) -> Chance:
    return chance(request.config, index)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path) as one:
        yield one


def mirrored(stage: Stage, topics: str, *lanes: str) -> None:
    """Create a mirror of these topics, and start its node."""
    stage.create_mirror(MIRROR, ["mirror.metadata.refresh.interval.ms=2000"])
    stage.add(topics)
    stage.start_node("node", *lanes)
    until(
        lambda: any(row["fresh"] for row in librdkafka_tools.all_described(stage)),
        what="a node that has started",
    )


def await_mirrored(stage: Stage, topics: Collection[str], seconds: float) -> Oracle | None:
    """Wait until a mirror has all of the topics, and compare what it claims meanwhile.

    None: it does not go on. Then no record is wrong, nothing is claimed, and the reason is
    reported.
    """
    oracle = Oracle(stage.source.bootstrap_servers, stage.destination.bootstrap_servers)
    deadline = time.monotonic() + seconds
    while True:
        before = oracle.ends(topics)
        found = {
            (row["topic"], row["partition"]): row for row in librdkafka_tools.all_described(stage)
        }
        claimed = {one: row["source_offset"] for one, row in found.items() if _none_lags(row)}
        oracle.claim("--describe", claimed)
        oracle.look(topics)
        assert not oracle.counts.problems, oracle.counts.problems
        left = [found.get(one) for one, end in before.items() if claimed.get(one, -1) < end]
        if not left:
            return oracle
        if time.monotonic() > deadline or any(row["state"] == "FAILED" for row in found.values()):
            sys.stdout.write(f"not mirrored: {json.dumps(left, indent=1)}\n")
            return None


def _none_lags(row: dict[str, Any]) -> bool:
    """Return whether the row claims a lag of 0 for its source offset, about a second old."""
    return row["state"] == "MIRRORING" and row["lag"] == 0


def ask_readiness(stage: Stage) -> dict[str, Any]:
    servers = ("--bootstrap-server", stage.destination.bootstrap_servers)
    answer = librdkafka_tools.twinlog("readiness", *servers, "--mirror", MIRROR, "--json")
    found: dict[str, Any] = json.loads(answer.output)
    return found


def prove(stage: Stage, topics: Collection[str]) -> Oracle:
    """Check that all records have arrived, and that `readiness` and `verify` report it."""
    oracle = await_mirrored(stage, topics, ARRIVAL_SECONDS)
    assert oracle is not None, "not mirrored"
    before = oracle.ends(topics)
    until(lambda: ask_readiness(stage)["lag"] == 0, what="a lag of 0")
    oracle.claim("readiness", before)
    verified = stage.verify()
    assert verified.status == 0, verified
    oracle.claim("verify", before)
    oracle.look_at_the_end(topics)
    assert not oracle.counts.problems, oracle.counts.problems
    assert oracle.counts.records > 0
    return oracle


def prove_or_refused(stage: Stage, topics: Collection[str], *reasons: str) -> None:
    """Check that all has arrived; or that the lag stays, and the reason is named."""
    if await_mirrored(stage, topics, REFUSAL_SECONDS) is not None:
        prove(stage, topics)
        return

    def decided() -> dict[str, Any] | None:
        found = ask_readiness(stage)
        named = json.dumps([found, librdkafka_tools.all_described(stage)])
        is_decided = found["readiness"] == "READY" or any(reason in named for reason in reasons)
        return found if is_decided else None

    found = until(decided, ARRIVAL_SECONDS, "all is mirrored, or the reason is named")
    if found["readiness"] == "READY":  # it has arrived in the meantime
        prove(stage, topics)
        return
    assert found["lag"] != 0
    assert stage.verify().status != 0, "the same, although something is not there"


@pytest.mark.long
def test_large_records_of_a_source_with_a_quota_are_mirrored(
    stage: Stage, by_chance: Chance
) -> None:
    """A throttled client gets answers without partitions, and large batches one at a time.

    Six partitions of small records, ten of large ones, one lane (issue: "Lost records").
    """
    choose = by_chance.random
    # Default: 11 windows of a second, so a client is throttled after 10 s of its rate.
    source = stage.start_source(config={**BROKERS, "quota.window.num": "2"})
    stage.start_destination()
    servers = source.bootstrap_servers
    librdkafka_tools.make_topic(servers, "small", 6)
    librdkafka_tools.make_topic(servers, "large", 10, LARGEST)
    small = [(choose.randrange(6), choose.randrange(400)) for _ in range(6000)]
    write_sizes(servers, "small", small, by_chance.seed, linger_ms="20")
    large = [(at % 10, choose.randrange(1_100_000, 1_900_000)) for at in range(30)]
    write_sizes(servers, "large", large, by_chance.seed)
    set_quota(source, {"consumer_byte_rate": choose.uniform(2, 4) * MEGABYTE})
    mirrored(stage, "small|large", "--lanes", "1")
    oracle = prove(stage, ["small", "large"])
    assert oracle.counts.records >= len(small) + len(large)


SLOW = {"remote.fetch.max.wait.ms": "1"}
WINDOW = {"remote.log.manager.fetch.quota.window.num": "2"}


@pytest.mark.parametrize(
    "kind", ["slow", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("plain", "quota"))]
)
def test_a_source_with_tiered_storage_is_mirrored(
    stage: Stage, by_chance: Chance, tmp_path: Path, kind: str
) -> None:
    """Most of the log is in remote storage, whose reads may be slow, or limited by a quota."""
    choose = by_chance.random
    rate = choose.randrange(1_000_000, 3_000_000)
    quota = {"remote.log.manager.fetch.max.bytes.per.second": str(rate), **WINDOW}
    more = {"plain": {}, "slow": SLOW, "quota": quota}[kind]
    config = {**BROKERS, **tiered(tmp_path / "remote", DEFAULT_VERSION), **more}
    source = stage.start_source(config=config)
    stage.start_destination()
    servers = source.bootstrap_servers
    librdkafka_tools.make_topic(servers, "tiered", 2, TIERED_TOPIC)
    librdkafka_tools.make_topic(servers, "local", 2)
    sizes = [(choose.randrange(2), choose.randrange(1000, 15_000)) for _ in range(1600)]
    write_sizes(servers, "tiered", sizes, by_chance.seed, batch_size="50000")
    write_sizes(servers, "local", sizes[:200], by_chance.seed)
    await_tiered(source, "tiered")
    mirrored(stage, "tiered|local", "--lanes", "1")
    prove_or_refused(stage, ["tiered", "local"], "remote storage")


@pytest.mark.long
@pytest.mark.parametrize(
    "selector", [pytest.param("rack aware", marks=pytest.mark.long), "a follower"]
)
def test_a_source_with_a_replica_selector_is_mirrored(
    stage: Stage, by_chance: Chance, tmp_path: Path, selector: str
) -> None:
    """A leader may answer without bytes, and name a replica in the client's rack instead."""
    choose = by_chance.random
    aware = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
    classpath = []
    if selector == "a follower":
        aware = "FollowerSelector"
        classpath = [str(compile_selector(tmp_path, DEFAULT_VERSION))]
    racks = {"broker.rack": "rack-{node}", "replica.selector.class": aware}
    source = stage.start_source(2, config={**BROKERS, **racks}, classpath=classpath)
    stage.start_destination()
    servers = source.bootstrap_servers
    librdkafka_tools.make_topic(servers, "plain", 6)
    sizes = [(choose.randrange(6), choose.randrange(2000)) for _ in range(5000)]
    write_sizes(servers, "plain", sizes, by_chance.seed)
    mirrored(stage, "plain", "--lanes", "1")
    prove_or_refused(stage, ["plain"], "redirects fetches to broker")


@pytest.mark.long
def test_records_of_all_sizes_are_mirrored(stage: Stage, by_chance: Chance) -> None:
    """Records of 0 B to 5 MB, many in a batch or one that exceeds the fetch size.

    The source is written to while it is mirrored.
    """
    choose = by_chance.random
    source = stage.start_source(config=BROKERS)
    stage.start_destination()
    servers = source.bootstrap_servers
    librdkafka_tools.make_topic(servers, "sizes", 6, LARGEST)
    mirrored(stage, "sizes", "--lanes", "2")
    for _ in range(6):
        sizes = [(choose.randrange(6), _any_size(choose)) for _ in range(choose.randrange(5, 60))]
        write_sizes(
            *(servers, "sizes", sizes, by_chance.seed),
            compression_type=choose.choice(("none", "zstd")),
            batch_size=str(choose.choice((1, 16_384, 1_000_000, 5_000_000))),
            linger_ms="50",
        )
    prove(stage, ["sizes"])


def _any_size(choose: random.Random) -> int:
    """Draw mostly small sizes, sometimes megabytes, and the limits at which behaviour changes."""
    edges = (0, 1, (1 << 20) - 100, 1 << 20, 5_000_000)
    upper = choose.choice((10, 1000, 1000, 100_000, 5_000_000))
    return choose.choice((*edges, *[choose.randrange(upper)] * 20))


@pytest.mark.long
def test_a_log_whose_end_was_compacted_is_mirrored_or_reported(
    stage: Stage, by_chance: Chance
) -> None:
    """Compaction has removed the last records, and no bytes can prove it (issue, point 1).

    The destination ends where the source does, or the lag stays and its reason is named.
    """
    choose = by_chance.random
    source = stage.start_source(config=BROKERS)
    stage.start_destination()
    servers = source.bootstrap_servers
    compacted = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.001",
        "segment.ms": "1000",
        "delete.retention.ms": "0",
    }
    librdkafka_tools.make_topic(servers, "compacted", 1, compacted)
    live, dead = choose.randrange(1, 50), choose.randrange(1, 50)
    keys = [f"live{at}" for at in range(live)] + [f"dead{at}" for at in range(dead)]
    gone = [f"dead{at}" for at in range(dead)]
    for records in ([(0, key, "v", None) for key in keys], [(0, key, None, None) for key in gone]):
        # Without a producer id: the cleaner keeps an empty last batch of a known producer id.
        librdkafka_tools.write(servers, "compacted", records, enable_idempotence=False)
        time.sleep(1.5)  # a segment's age
    librdkafka_tools.write(servers, "compacted", [(0, "last", "v", None)], enable_idempotence=False)
    end, one = live + 2 * dead, ("compacted", 0)
    await_compacted(servers, one, end, live + dead)
    source.shut_down(1)
    empty_last_segment(source, "compacted")
    source.start_broker(1)
    await_compacted(servers, one, end, live)
    assert ConsumerView(servers).ends([one])[one] == end
    mirrored(stage, "compacted", "--lanes", "1")
    prove_or_refused(stage, ["compacted"], "cleanup.policy")


def await_compacted(servers: str, one: tuple[str, int], end: int, count: int) -> None:
    """Wait until `count` records are left below an offset."""
    log = ConsumerView(servers)
    until(
        lambda: len(log.read({one: (0, end)}, time.monotonic() + 120)[one]),
        what=f"{count} records",
        good=lambda left: left == count,
    )
