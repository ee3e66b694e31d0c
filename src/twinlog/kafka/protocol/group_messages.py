"""Messages about groups (KIP-848, KIP-932) that kafka-python 3.0 does not have.

They are classes of kafka-python's own kind, made from Kafka's schemas beside this module, and are
sent like all other messages.
"""

from kafka.protocol.api_message import ApiMessage

from twinlog.kafka.protocol import schemas


class DescribeShareGroupOffsetsRequest(ApiMessage, load_json=schemas):  # type: ignore[call-arg,misc]
    """API 90: the start offset of each partition that a group has."""


class DescribeShareGroupOffsetsResponse(ApiMessage, load_json=schemas):  # type: ignore[call-arg,misc]
    """Its answer."""


class AlterShareGroupOffsetsRequest(ApiMessage, load_json=schemas):  # type: ignore[call-arg,misc]
    """API 91: set start offsets of a group that has no members."""


class AlterShareGroupOffsetsResponse(ApiMessage, load_json=schemas):  # type: ignore[call-arg,misc]
    """Its answer."""


class ConsumerGroupDescribeRequest(ApiMessage, load_json=schemas):  # type: ignore[call-arg,misc]
    """API 69: the members of groups of the consumer protocol, and the assignment of each."""


class ConsumerGroupDescribeResponse(ApiMessage, load_json=schemas):  # type: ignore[call-arg,misc]
    """Its answer."""
