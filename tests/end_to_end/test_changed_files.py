"""`twinlog mirror-maker FILE` with a file that was changed since its flows were stored.

The rules are in tests/lifecycle/test_flow_selection.py. Also with one that names a cluster twice
(tests/lifecycle/test_sole_copies.py).
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import librdkafka_tools
import pytest
from mirror_maker_process import MirrorMakerProcess, mirror_maker
from remote_topics import values
from scraped import scrape
from waiting import SECONDS, until

from twinlog.local import commands
from twinlog.local.stage import Stage

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(1200)]

RATE = "mirror.replication.throttled.rate"
FILE = """\
clusters = A, B, C
A.bootstrap.servers = {source}
C.bootstrap.servers = {source}
B.bootstrap.servers = {target}
C->B.enabled = true
C->B.topics = other-{topic}
A->B.topics = {topics}
replication.factor = 1
heartbeats.topic.replication.factor = 1
heartbeats.replication.enabled = false
emit.heartbeats.enabled = false
emit.checkpoints.enabled = false
refresh.topics.interval.seconds = 1
"""
"""C is another name of A: the node of B has a flow while A->B is disabled."""
TWO_NAMES = """\
clusters = D, E, B
D.bootstrap.servers = {source}
E.bootstrap.servers = {source}
B.bootstrap.servers = {target}
D->B.enabled = true
E->B.enabled = true
D->B.topics = {topic}-d, {topic}-common
E->B.topics = {topic}-e, {topic}-common
replication.policy.class = IdentityReplicationPolicy
replication.factor = 1
emit.heartbeats.enabled = false
heartbeats.replication.enabled = false
emit.checkpoints.enabled = false
refresh.topics.interval.seconds = 1
"""
"""Two names of one cluster, which remote topics do not have."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Start two clusters."""
    with Stage(tmp_path_factory.mktemp("changed-files")) as stage:
        stage.start_source()
        stage.start_destination()
        yield stage


class Changed:
    """A source with three topics, and the files of one flow of two of them."""

    def __init__(self, stage: Stage, topic: str) -> None:
        self.stage, self.topic = stage, topic
        self.written: dict[str, list[str]] = {}
        for name in (f"kept-{topic}", f"left-{topic}", f"other-{topic}"):
            librdkafka_tools.make_topic(stage.source.bootstrap_servers, name)
            self.written[name] = []
            self.write(name)

    def write(self, name: str) -> None:
        """Write ten records."""
        count = len(self.written[name])
        new = [f"{number}" for number in range(count, count + 10)]
        records = [(0, None, value, None) for value in new]
        librdkafka_tools.write(self.stage.source.bootstrap_servers, name, records)
        self.written[name] += new

    def file(self, *names: str, more: str) -> str:
        """A file whose flow selects these topics."""
        return more + FILE.format(
            source=self.stage.source.bootstrap_servers,
            target=self.stage.destination.bootstrap_servers,
            topic=self.topic,
            topics=", ".join(names),
        )

    def await_copied(self, alias: str, name: str, count: int) -> None:
        """Wait until the remote topic has so many records, each once and in order."""
        until(
            lambda: values(self.stage.destination, f"{alias}.{name}"),
            SECONDS,
            f"{count} records of {alias}.{name}",
            good=lambda found: found == self.written[name][:count],
        )

    def await_stopped(self, name: str) -> None:
        """Wait until the topic's partition of the flow A->B is fenced."""

        def state() -> str:
            servers = self.stage.destination.bootstrap_servers
            arguments = ("flows", "describe", "--bootstrap-server", servers, "--flow", "A->B")
            done = librdkafka_tools.twinlog(*arguments, "--json")
            rows = json.loads(done.output)[0]["partitions"] if done.status == 0 else []
            return next((str(row["state"]) for row in rows if row["topic"] == name), "none")

        until(state, SECONDS, f"{name} STOPPED", good=lambda found: found == "STOPPED")


@pytest.mark.long
def test_a_flow_copies_what_its_present_file_selects(
    stage: Stage, topic: str, tmp_path: Path
) -> None:
    """Goal: as MirrorMaker 2; what is selected again goes on, and nothing is copied twice."""
    flow = Changed(stage, topic)
    kept, left, other = flow.written
    whole = flow.file(kept, left, more="A->B.enabled = true\n")
    with mirror_maker(tmp_path, whole, "--lanes", "1"):
        flow.await_copied("A", kept, 10)
        flow.await_copied("A", left, 10)

    flow.write(left)
    narrow = flow.file(kept, more="A->B.enabled = true\n")
    with mirror_maker(tmp_path, narrow, "--lanes", "1") as process:
        flow.await_stopped(left)
        flow.write(kept)
        flow.await_copied("A", kept, 20)
        assert f"A->B: {left} is not selected any more" in process.text()
    assert values(stage.destination, f"A.{left}") == flow.written[left][:10]

    disabled = flow.file(kept, left, more="A->B.enabled = false\n")
    with mirror_maker(tmp_path, disabled, "--lanes", "1") as process:
        flow.await_stopped(kept)
        flow.write(kept)
        flow.write(other)
        flow.await_copied("C", other, 20)
        assert "flow A-to-B is switched off" in process.text()
    assert values(stage.destination, f"A.{kept}") == flow.written[kept][:20]

    with mirror_maker(tmp_path, whole, "--lanes", "1") as process:
        flow.await_copied("A", kept, 30)
        flow.await_copied("A", left, 20)
        assert f"A->B: {left} is selected again" in process.text()

    for line, expected in (
        ("replication.policy.separator = _", f"{kept} would be copied to A_{kept}"),
        ("C->B.source.cluster.alias = A", f"{other} would be copied to A.{other}"),
    ):
        file = tmp_path / "refused.properties"
        file.write_text(f"{whole}{line}\n")
        done = commands.run(commands.TWINLOG, "mirror-maker", str(file))
        assert done.status == 1
        assert expected in done.errors
        assert "twinlog flows delete --flow" in done.errors


@pytest.mark.long
def test_a_throttle_outlasts_a_start(
    stage: Stage, topic: str, tmp_path: Path, metrics_address: str
) -> None:
    """Goal: what `--alter` has set stays, and is reported; a file that sets it has precedence."""
    flow = Changed(stage, topic)
    kept = f"kept-{topic}"
    file = flow.file(kept, more="A->B.enabled = true\n")
    folders = (tmp_path / f"start-{number}" for number in range(3))

    @contextmanager
    def started(more: str = "") -> Iterator[MirrorMakerProcess]:
        """A start that copies what is written."""
        folder = next(folders)
        folder.mkdir()
        arguments = ("--lanes", "1", "--metrics-address", metrics_address)
        with mirror_maker(folder, file + more, *arguments) as process:
            flow.write(kept)
            flow.await_copied("A", kept, len(flow.written[kept]))
            yield process

    def alter(rate: int) -> None:
        properties = tmp_path / "throttle.properties"
        properties.write_text(f"{RATE}={rate}\n")
        arguments = ("--alter", "--mirror", "A-to-B", "--mirror-config", str(properties))
        done = stage.mirrors(*arguments)
        assert done.status == 0, done

    def await_limit(rate: int | None) -> None:
        until(
            lambda: scrape(metrics_address).value("twinlog_throttled_rate_limit", mirror="A-to-B"),
            SECONDS,
            f"a limit of {rate}",
            good=lambda limit: limit == rate,
        )

    with started() as process:
        alter(2_000_000)
        await_limit(2_000_000)
        assert f"keeps {RATE}" not in process.text()
    with started() as process:
        await_limit(2_000_000)
        assert f"A->B: keeps {RATE}=2000000, which kafka-mirrors --alter" in process.text()
    with started(f"A->B.{RATE} = 3000000\n") as process:
        process.check()
        await_limit(3_000_000)
        assert f"keeps {RATE}" not in process.text()
        alter((1 << 63) - 1)
        await_limit(None)


@pytest.mark.long
def test_a_topic_that_two_flows_select_later_is_copied_by_one(
    stage: Stage, topic: str, tmp_path: Path
) -> None:
    """Goal: when both flows start, the topic does not exist, so neither start is refused."""
    source, target = stage.source.bootstrap_servers, stage.destination.bootstrap_servers
    own, common = [f"{topic}-d", f"{topic}-e"], f"{topic}-common"
    written: dict[str, list[str]] = {}

    def write(name: str) -> None:
        start = len(written.setdefault(name, []))
        new = [f"{number}" for number in range(start, start + 10)]
        librdkafka_tools.write(source, name, [(0, None, value, None) for value in new])
        written[name] += new

    def await_copied(name: str) -> None:
        until(
            lambda: values(stage.destination, name),
            SECONDS,
            f"the records of {name}, each once",
            good=lambda found: found == written[name],
        )

    for name in own:
        librdkafka_tools.make_topic(source, name)
        write(name)
    file = TWO_NAMES.format(source=source, target=target, topic=topic)
    refusal = re.compile(
        rf"flow (\S+): {common} is not copied: flow (\S+) copies {common} of the same cluster"
    )
    with mirror_maker(tmp_path, file, "--lanes", "1") as process:
        for name in own:
            await_copied(name)
        librdkafka_tools.make_topic(source, common)
        write(common)
        until(lambda: refusal.search(process.text()), SECONDS, "a flow that refuses the topic")
        await_copied(common)
        for name in (*own, common):
            write(name)
        for name in (*own, common):
            await_copied(name)
        refusals = refusal.findall(process.text())
        assert {*refusals[0]} == {"D-to-B", "E-to-B"}, process.log()
        assert len(refusals) == 1, "it is logged once"
        assert values(stage.destination, common) == written[common]

    write(common)
    with mirror_maker(tmp_path, file, "--lanes", "1"):
        await_copied(common)
    done = librdkafka_tools.twinlog(
        *("readiness", "--bootstrap-server", target, "--mirror", refusals[0][0])
    )
    assert f"not added: {refusals[0][1]} copies it to the same remote topic" in done.output
