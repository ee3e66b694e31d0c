"""For an engine without a lane, whose partitions nobody else owns."""


async def owned_for_good() -> None:
    """Confirm the ownership at once (`LaneContext.confirm_ownership`)."""
