"""A process with one lane, for tests that kill it: `python -m flow_lane NODE SERVERS`."""

import asyncio
import logging
import sys

from twinlog.engines.settings import LaneSettings
from twinlog.runtime.lane import Lane, LaneConfig


def main(node: str, servers: str) -> None:
    """Run until killed."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    config = LaneConfig(
        node=node,
        index=0,
        lanes=1,
        destination={"bootstrap.servers": servers, "mirror.dataframes.enable": "true"},
        settings=LaneSettings(lease_s=2.0),
        group_id="twinlog",
        session_timeout_s=6.0,
    )
    asyncio.run(Lane(config).run())


if __name__ == "__main__":
    main(*sys.argv[1:])
