"""A process with one lane, for tests that kill it: `python -m flow_lane NODE SERVERS [NAME=VALUE]`.

The properties are settings of a lane.
"""

import asyncio
import logging
import sys
from dataclasses import replace

from twinlog.runtime.lane import Lane, LaneConfig
from twinlog.runtime.lane_options import parse_lane_settings


def main(node: str, servers: str, *properties: str) -> None:
    """Run until killed."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    settings = parse_lane_settings(dict(each.split("=", 1) for each in properties))
    config = LaneConfig(
        node=node,
        index=0,
        lanes=1,
        destination={"bootstrap.servers": servers, "mirror.dataframes.enable": "true"},
        settings=replace(settings, lease_s=2.0),
        group_id="twinlog",
        session_timeout_s=6.0,
    )
    asyncio.run(Lane(config).run())


if __name__ == "__main__":
    main(*sys.argv[1:])
