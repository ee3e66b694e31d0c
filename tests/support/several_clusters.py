"""Several clusters at once, small and by name, for topologies of more than two."""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from twinlog.local.cluster import LocalCluster
from twinlog.local.processes import SHORT_LIVED

_AT_ONCE: Final = 3
"""Clusters that start at the same time: more of them would keep each other waiting."""


@contextmanager
def several_clusters(
    folder: Path,
    names: Iterable[str],
    brokers: int = 1,
    config: Mapping[str, str] | None = None,
) -> Iterator[dict[str, LocalCluster]]:
    """Start a cluster of each name, each with so many brokers of this configuration."""

    def start(name: str) -> LocalCluster:
        return LocalCluster.start(
            brokers, heap="256m", directory=folder / name, jvm_flags=SHORT_LIVED, config=config
        )

    with ExitStack() as stack, ThreadPoolExecutor(_AT_ONCE) as pool:
        started = {name: pool.submit(start, name) for name in names}
        yield {name: stack.enter_context(one.result()) for name, one in started.items()}
