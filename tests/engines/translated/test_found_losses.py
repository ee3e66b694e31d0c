"""Twin of twinlog.engines.translated.found_losses."""

import asyncio

from twinlog.engines.settings import LaneSettings
from twinlog.engines.translated.found_losses import FoundLosses, ShorterLogs
from twinlog.kafka.types import Offset, TopicPartition
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.record_losses import RecordLoss

A, B = MirrorPartition("flow", "a", 0), MirrorPartition("flow", "b", 0)
LOG = TopicPartition("x.a", 0)


def _loss(start: int | None, end: int) -> RecordLoss:
    return RecordLoss(LOG, None if start is None else Offset(start), Offset(end))


def test_a_loss_counts_once_also_if_the_log_grows_meanwhile() -> None:
    """Goal: a partition that stays FAILED is located for ever, and loses nothing more."""
    losses = FoundLosses()
    losses.note(A, _loss(3, 8))
    losses.note(A, _loss(5, 8))
    losses.note(A, _loss(None, 8))
    losses.note(B, _loss(3, 8))
    assert losses.take(A, located=False) == [_loss(3, 8)]
    losses.note(A, _loss(3, 8))
    assert losses.take(A, located=False) == []
    losses.note(A, _loss(3, 9))
    assert losses.take(A, located=False) == [_loss(3, 9)]
    assert losses.take(B, located=False) == [_loss(3, 8)]


def test_what_is_found_after_a_location_is_another_loss() -> None:
    losses = FoundLosses()
    losses.note(A, _loss(3, 8))
    assert losses.take(A, located=True) == [_loss(3, 8)]
    losses.note(A, _loss(3, 8))
    assert losses.take(A, located=False) == [_loss(3, 8)]


def test_a_partition_that_is_started_again_counts_anew() -> None:
    """Goal: after a pause it is FAILED with a loss that its new counts do not have."""
    losses = FoundLosses()
    losses.note(A, _loss(3, 8))
    assert losses.take(A, located=False) == [_loss(3, 8)]
    losses.forget(A)
    losses.note(A, _loss(3, 8))
    assert losses.take(A, located=False) == [_loss(3, 8)]


def test_a_stored_loss_counts_only_if_a_former_owner_has_found_it() -> None:
    losses, stored = FoundLosses(), RecordLoss(LOG, None, None)
    losses.note(A, _loss(3, 8))
    losses.note_former(A, stored)
    losses.note_former(B, stored)
    assert losses.take(A, located=False) == [_loss(3, 8)]
    assert losses.take(B, located=False) == [stored]
    other = stored._replace(log=TopicPartition("another", 0))
    losses.note_former(A, other)
    assert losses.take(A, located=False) == [other], "of another log nothing was found"


def test_partitions_that_share_a_log_are_shorter_each_by_itself() -> None:
    """Goal: of two that are copied to one log, one ended lower, and is complete."""

    async def body() -> None:
        losses = FoundLosses()
        logs = ShorterLogs(LaneSettings(lease_s=0.05), losses)
        now = asyncio.get_running_loop().time()
        shorter = {LOG: _loss(3, 8)}
        while not (found := losses.take(A, located=False)):
            assert asyncio.get_running_loop().time() < now + 60
            assert logs.waiting({LOG: A}, shorter, ()).keys() == {LOG}
            assert not logs.waiting({LOG: B}, {}, ())
            await asyncio.sleep(0.01)
        assert found == [_loss(3, 8)]
        assert not losses.take(B, located=False)
        assert not logs.waiting({LOG: A}, {}, ())
        assert logs.waiting({LOG: A}, shorter, {LOG})[LOG].endswith("may be cut off")

    asyncio.run(body())
