"""The clusters that the suite runs on."""

from collections.abc import Iterator

import pytest

from contract.bench import BenchRunner
from contract.kafka_bench import run_on_kafka
from contract.model_bench import HASTY, run_on_model
from twinlog.local.cluster import LocalCluster
from twinlog.local.processes import SHORT_LIVED

_REAL = {"4.3.1": "kafka", "3.9.1": "kafka_391"}
_VERSIONS = [
    pytest.param("4.3.1", marks=[pytest.mark.broker]),
    pytest.param("3.9.1", marks=[pytest.mark.broker, pytest.mark.long]),
]


@pytest.fixture(params=["model", *_VERSIONS])
def bench_runner(request: pytest.FixtureRequest) -> BenchRunner:
    """Run behaviours on one broker: the model's, or a real one of either version."""
    if request.param == "model":
        return run_on_model
    return _on_real(request.getfixturevalue(_REAL[request.param]))


_HASTY = {
    "producer.id.expiration.ms": str(int(HASTY.producer_id_expiration * 1000)),
    "producer.id.expiration.check.interval.ms": str(int(HASTY.producer_id_expiration_check * 1000)),
    "transactional.id.expiration.ms": str(int(HASTY.transactional_id_expiration * 1000)),
    "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
}


@pytest.fixture(scope="module", params=_VERSIONS)
def hasty_kafka(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster]:
    """Start one broker with the expirations of `HASTY`; tests may kill and restart it."""
    with LocalCluster.start(
        1,
        version=request.param,
        config=_HASTY,
        directory=tmp_path_factory.mktemp(f"hasty-{request.param}"),
        jvm_flags=SHORT_LIVED,
    ) as cluster:
        yield cluster


@pytest.fixture(scope="module", params=_VERSIONS)
def own_trio(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster]:
    """Start three brokers; tests move, stop and kill leaders."""
    with LocalCluster.start(
        3,
        version=request.param,
        directory=tmp_path_factory.mktemp(f"own-trio-{request.param}"),
        jvm_flags=SHORT_LIVED,
    ) as cluster:
        yield cluster


def _on_real(cluster: LocalCluster) -> BenchRunner:
    return lambda behaviour: run_on_kafka(cluster, behaviour)
