"""Readiness as a user asks for it."""

from collections.abc import Mapping

from twinlog.operations.mirror_admin import MirrorAdmin
from twinlog.operations.readiness.verdict import Readiness


async def find_readiness(properties: Mapping[str, str], mirror: str, topics: str) -> Readiness:
    """Connect to the destination with these properties, and return the readiness of topics."""
    async with MirrorAdmin(properties) as admin:
        return await admin.readiness(mirror, topics)
