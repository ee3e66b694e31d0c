"""Metrics for Prometheus: those of KIP-1279, as the JMX exporter names Kafka's beans, and more.

`kafka.server.mirror:type=MirrorFetcherManager,name=MaxLag` is `kafka_server_mirror_` and the rest
in lower case, joined by underscores; a meter (`...PerSec`) is a counter without that suffix.
Metrics that the KIP does not have begin with `twinlog_`, except those of states that its table
leaves out. docs/metrics.md describes each metric.

Each node reports all mirrors, from the control topics, so it is enough to scrape one node. Only
`deadthreadcount`, `twinlog_lanes` and the refresh errors are a node's own.
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from twinlog.kafka.errors import UserError
from twinlog.mirror.absence import Absence
from twinlog.mirror.settings import FLOW_KINDS, parse_settings
from twinlog.mirror.states import State
from twinlog.node.observation import Observed, ObservedPartition
from twinlog.store.config_records import Wanted
from twinlog.sync.compaction import topic_behind_ms
from twinlog.sync.flow_topics import RECREATED
from twinlog.sync.registry import METRICS
from twinlog.version import __version__

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_MANAGER: Final = "kafka_server_mirror_mirrorfetchermanager_"
_METADATA: Final = "kafka_server_mirror_mirrormetadatamanager_"
_PARTITION: Final = ("mirror", "topic", "partition")
_FETCHER: Final = ("lane", "mirror", "broker")
_LOST: Final = {"destination": "", "source": " before they were copied"}


class MirrorCollector(Collector):
    """All metrics of one moment."""

    def __init__(self, observed: Observed) -> None:
        self._observed = observed

    def collect(self) -> Iterator[Metric]:
        """Collect all metrics; called for each scrape."""
        partitions = list(self._observed.partitions())
        yield from self._lags(partitions)
        yield self._filled(partitions)
        yield from self._losses(partitions)
        yield from self._states(partitions)
        yield from self._fetchers()
        yield from self._throttles()
        yield from self._errors()
        yield self._not_mirrored()
        yield self._compaction()
        yield from self._lanes()

    def _lags(self, partitions: Collection[ObservedPartition]) -> Iterator[Metric]:
        lag = _gauge("kafka_server_fetcherlagmetrics_consumerlag", "Lag in records.", _PARTITION)
        age = _gauge(
            "twinlog_partition_lag_seconds",
            "Age of the oldest record that is not mirrored.",
            _PARTITION,
        )
        source = _gauge("twinlog_partition_source_offset", "End offset of the source.", _PARTITION)
        destination_end = _gauge(
            "twinlog_partition_destination_offset", "End offset of the destination.", _PARTITION
        )
        waits = _counter(
            "twinlog_partition_marker_wait_seconds",
            "Time for which an answer was awaited that a transaction marker needs.",
            _PARTITION,
        )
        for name, _, row in partitions:
            if row is None:
                continue
            labels = (name.mirror, name.topic, str(name.partition))
            if row.lag >= 0:
                lag.add_metric(labels, row.lag)
            if row.lag_ms is not None:
                age.add_metric(labels, row.lag_ms / 1000)
            if row.source_end >= 0:
                source.add_metric(labels, row.source_end)
            if row.destination_end >= 0:
                destination_end.add_metric(labels, row.destination_end)
            waits.add_metric(labels, row.gap_ms / 1000)
        yield from (lag, age, source, destination_end, waits)
        most = self._largest(partitions).items()
        yield _by_mirror(_MANAGER + "maxlag", "Largest lag in records.", most)

    def _filled(self, partitions: Iterable[ObservedPartition]) -> Metric:
        meaning = (
            "Offsets that were filled because they have no record for readers, since the current "
            "owner took over."
        )
        metric = _counter("twinlog_filled_offsets", meaning, (*_PARTITION, "reason"))
        for name, _, row in partitions:
            if row is None:
                continue
            for reason, count in zip(Absence, row.filled, strict=True):
                if count:
                    labels = (name.mirror, name.topic, str(name.partition), reason.name.lower())
                    metric.add_metric(labels, count)
        return metric

    def _losses(self, partitions: Collection[ObservedPartition]) -> Iterator[Metric]:
        mirrors = self._observed.snapshot.mirrors
        flows = {name for name, mirror in mirrors.items() if mirror.kind in FLOW_KINDS}
        for side, records in _LOST.items():
            times = _counter(
                f"twinlog_{side}_losses",
                f"Times that the {side} has lost records of a flow{records}, since the current "
                "owner took over.",
                _PARTITION,
            )
            offsets = _counter(
                f"twinlog_{side}_lost_offsets",
                f"Offsets that the {side} has lost with records of a flow{records}, as far as "
                "their number is known, since the current owner took over.",
                _PARTITION,
            )
            for name, _, row in partitions:
                if row is not None and name.mirror in flows:
                    labels = (name.mirror, name.topic, str(name.partition))
                    losses = row.losses if side == "destination" else row.source_losses
                    times.add_metric(labels, losses.times)
                    offsets.add_metric(labels, losses.offsets)
            yield from (times, offsets)
        recreated = _counter(
            "twinlog_source_topics_recreated",
            "Topics of the source that were deleted and recreated, and with which a flow goes on.",
            ["mirror"],
        )
        for mirror in sorted(flows):
            recreated.add_metric([mirror], self._observed.errors[mirror, RECREATED])
        yield recreated

    def _largest(self, partitions: Collection[ObservedPartition]) -> dict[str, int]:
        """The largest lag of each mirror: absent if unknown, 0 if the mirror has no partitions."""
        nonempty = {partition.name.mirror for partition in partitions}
        mirrors = self._observed.snapshot.mirrors
        most = {mirror: 0 for mirror in mirrors if mirror not in nonempty}
        for name, _, row in partitions:
            if row is not None and row.lag >= 0:
                most[name.mirror] = max(most.get(name.mirror, 0), row.lag)
        return most

    def _states(self, partitions: Iterable[ObservedPartition]) -> Iterator[Metric]:
        counts = Counter((partition.name.mirror, partition.state) for partition in partitions)
        mirrors = self._observed.snapshot.mirrors
        for state in State:
            name = f"{_METADATA}{state.name.lower()}partitionstate"
            values = [(mirror, counts[mirror, state]) for mirror in mirrors]
            yield _by_mirror(name, f"Partitions in state {state.name}.", values)
        failures = [(mirror, counts[mirror, State.FAILED]) for mirror in mirrors]
        yield _by_mirror(
            _MANAGER + "failedpartitionscount", "Partitions in state FAILED.", failures
        )

    def _fetchers(self) -> Iterator[Metric]:
        size = _counter(
            "kafka_server_fetcherstats_bytes", "Bytes fetched from the source.", _FETCHER
        )
        requests = _counter("kafka_server_fetcherstats_requests", "Fetch requests.", _FETCHER)
        errors = _counter("twinlog_fetch_errors", "Failed Fetch requests.", _FETCHER)
        rates: defaultdict[str, list[float]] = defaultdict(list)
        for lane, fetcher, rate in self._observed.fetching():
            labels = (lane, fetcher.mirror, str(fetcher.broker))
            size.add_metric(labels, fetcher.bytes)
            requests.add_metric(labels, fetcher.requests)
            errors.add_metric(labels, fetcher.errors)
            rates[fetcher.mirror].append(rate)
        yield from (size, requests, errors)
        slowest = [(mirror, min(mirror_rates)) for mirror, mirror_rates in rates.items()]
        yield _by_mirror(
            _MANAGER + "minfetchrate", "Requests per second of the slowest fetcher.", slowest
        )

    def _throttles(self) -> Iterator[Metric]:
        name = "kafka_server_mirrorreplication_byterate"
        rates = _gauge(name, "Throttled bytes per second.", ("lane", "mirror"))
        for lane, throttle, rate in self._observed.throttled():
            rates.add_metric((lane, throttle.mirror), rate)
        yield rates
        mirrors = self._observed.snapshot.mirrors
        limits = [(mirror, rate) for mirror in mirrors if (rate := self._limit(mirror))]
        yield _by_mirror(
            "twinlog_throttled_rate_limit",
            "Limit in bytes per second of throttled partitions for one node.",
            limits,
        )

    def _limit(self, mirror: str) -> int:
        """The rate limit of a throttled mirror, else 0."""
        try:
            throttle = parse_settings(self._observed.snapshot.mirrors[mirror].source).throttle
        except UserError:
            return 0
        return throttle.rate if throttle.limits else 0

    def _errors(self) -> Iterator[Metric]:
        for metric in METRICS:
            counter = _counter(_METADATA + metric.lower(), f"KIP-1279's {metric}.", ["mirror"])
            for mirror in self._observed.snapshot.mirrors:
                counter.add_metric([mirror], self._observed.errors[mirror, metric])
            yield counter

    def _compaction(self) -> Metric:
        snapshot = self._observed.snapshot
        now = time.time_ns() // 1_000_000
        name = "twinlog_topic_compaction_behind_seconds"
        meaning = "How long a compacted topic has been behind, if longer than delete.retention.ms."
        values = [
            ((topic.mirror, topic.topic), behind_ms / 1000)
            for topic in snapshot.topics
            if topic.wanted is not Wanted.STOPPED
            and (behind_ms := topic_behind_ms(snapshot, topic, now)) is not None
        ]
        return _by(name, meaning, ["mirror", "topic"], values)

    def _not_mirrored(self) -> Metric:
        snapshot = self._observed.snapshot
        counts = [(mirror, snapshot.not_mirrored(mirror).total) for mirror in snapshot.mirrors]
        meaning = "Source topics that match a mirror and are not mirrored."
        return _by_mirror("twinlog_topics_not_mirrored", meaning, counts)

    def _lanes(self) -> Iterator[Metric]:
        count, alive = len(self._observed.ours), len(self._observed.alive)
        yield GaugeMetricFamily("twinlog_lanes", "Lanes that this node started.", count)
        dead = "Lanes of this node without heartbeats."
        yield GaugeMetricFamily(_MANAGER + "deadthreadcount", dead, count - alive)
        silent = "Seconds since the destination last answered all requests of this node."
        yield GaugeMetricFamily("twinlog_observed_age_seconds", silent, self._observed.silent_s)
        yield _by("twinlog_build_info", "Version of this node.", ["version"], [((__version__,), 1)])


class _Collected(Collector):
    """Metrics that were collected before."""

    def __init__(self, metrics: Collection[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """The collected metrics."""
        return iter(self._metrics)


class Exposition:
    """All metrics as text (Prometheus' format 0.0.4), rendered outside the event loop.

    The observed values are read in the loop, which also changes them. A thread renders the text:
    with 10,000 partitions that takes seconds. One text is rendered at a time, and answers all
    scrapes meanwhile. It is rendered to its end even if the clients disconnect: a thread cannot be
    interrupted, and asyncio has few.
    """

    def __init__(self) -> None:
        self._rendering: asyncio.Task[bytes] | None = None

    async def text(self, observed: Observed) -> bytes:
        """The text of the current values, or the text that is being rendered."""
        if self._rendering is None or self._rendering.done():
            metrics = list(MirrorCollector(observed).collect())
            self._rendering = asyncio.create_task(asyncio.to_thread(_text, metrics))
        return await asyncio.shield(self._rendering)


def exposition(observed: Observed) -> bytes:
    """All metrics as text, rendered by the caller."""
    return _text(list(MirrorCollector(observed).collect()))


def _text(metrics: Collection[Metric]) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(metrics))
    return generate_latest(registry)


def _gauge(name: str, meaning: str, labels: Iterable[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, meaning, labels=list(labels))


def _counter(name: str, meaning: str, labels: Iterable[str]) -> CounterMetricFamily:
    return CounterMetricFamily(name, meaning, labels=list(labels))


def _by_mirror(name: str, meaning: str, values: Iterable[tuple[str, float]]) -> GaugeMetricFamily:
    return _by(name, meaning, ["mirror"], [((mirror,), value) for mirror, value in values])


def _by(
    name: str,
    meaning: str,
    labels: list[str],
    values: Iterable[tuple[tuple[str, ...], float]],
) -> GaugeMetricFamily:
    family = _gauge(name, meaning, labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family
