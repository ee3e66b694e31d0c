"""The APIs that a destination's brokers must have, checked when a mirror is created or added to.

Managed services and old brokers lack some. Without one of these, no position can be read or no gap
filled, and every partition would be FAILED later for a reason that names none of this.
WriteTxnMarkers is not required: if it is missing or refused, empty transactions fill gaps.
"""

from typing import Final, NamedTuple

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import UserError


class Api(NamedTuple):
    """An API, the versions of it that twinlog supports, and what it is needed for."""

    key: int
    lowest: int
    highest: int
    name: str
    purpose: str


REQUIRED: Final = (
    Api(22, 0, 5, "InitProducerId", "take partitions over from another owner"),
    Api(24, 0, 3, "AddPartitionsToTxn", "fill gaps and stop mirrors"),
    Api(26, 0, 4, "EndTxn", "fill gaps and stop mirrors"),
    Api(61, 0, 0, "DescribeProducers", "read back a partition's position"),
)


async def check_apis(destination: KafkaCluster) -> None:
    """Refuse a destination that lacks a required API.

    Raises:
        UserError: UNSUPPORTED_VERSION, with the missing APIs.
        Retriable: no broker answers.
    """
    connection = await destination.any_connection()
    missing = []
    for api in REQUIRED:
        try:
            connection.negotiate(api.key, api.lowest, api.highest)
        except UserError:
            missing.append(f"{api.name} (API {api.key}) to {api.purpose}")
    if missing:
        raise UserError(
            f"UNSUPPORTED_VERSION: the destination's broker {connection.address} does not support "
            f"{', '.join(missing)}",
            hint="the destination must be Kafka 2.8 or newer, or a service with these APIs",
            code=ErrorCode.UNSUPPORTED_VERSION,
        )
