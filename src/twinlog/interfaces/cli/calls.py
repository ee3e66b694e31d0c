"""Calls of operations: each command connects to its destination, calls one method, and ends."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from twinlog.operations.mirror_admin import MirrorAdmin

R = TypeVar("R")


def call(properties: Mapping[str, str], operation: Callable[[MirrorAdmin], Awaitable[R]]) -> R:
    """Connect to the destination, and return what an operation returns.

    Args:
        properties: client properties of the destination.
        operation: calls a method of the connected administrator.

    Raises:
        UserError: a property is missing or malformed.
        TwinlogError: see the operation.
    """

    async def connected() -> R:
        async with MirrorAdmin(properties) as admin:
            return await operation(admin)

    return asyncio.run(connected())
