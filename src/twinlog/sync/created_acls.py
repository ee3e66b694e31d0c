"""ACLs that a mirror makes and removes, remembered so that it removes no other ACL.

    remember, in `__mirror_config`    make    remove    forget

Wherever this is interrupted, no ACL is removed that this mirror has not made (kafka/acls.py).
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

from twinlog.kafka.acls import Acl, AclChanges, Permission, limited, limiting
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.errors import Refusal
from twinlog.kafka.requests.acls import create_acls, delete_acls
from twinlog.store.config_records import ConfigChange, MadeAcl, MadeFor, Tombstone, key_of
from twinlog.store.mirrors import MirrorStore, unknown_mirror
from twinlog.store.snapshot import Snapshot
from twinlog.text import few

log = logging.getLogger(__name__)


async def carry_out(
    destination: KafkaCluster,
    store: MirrorStore,
    mirror: str,
    changes: AclChanges,
    made_for: MadeFor,
) -> int:
    """Remember, make, remove, forget; return how many ACLs could not be made or removed.

    Raises:
        MirrorRefused: the mirror does not exist any more; nothing was made.
        UserError: no right to write `__mirror_config`.
        Retriable: the destination is unreachable.
    """
    if changes.remember:
        await _remember(store, mirror, changes.remember, made_for)
    failures = await _make(destination, changes.make)
    leftovers = await _remove(destination, changes.remove)
    if forget := changes.forget - leftovers:
        await _forget(store, mirror, forget, made_for)
    return len(failures) + len(leftovers)


async def _make(destination: KafkaCluster, acls: Collection[Acl]) -> set[Acl]:
    """Make denials, then what they limit; return those that could not be made."""
    denials, grants = _split(acls)
    failures = await _done(denials, "created", lambda batch: create_acls(destination, batch))
    open_ones = limited(grants, failures)
    if open_ones:
        log.warning(
            "ACLs are not created, because the denials that limit them cannot be created: %s",
            few(sorted(open_ones), "; "),
        )
    grants -= open_ones
    return (
        failures | open_ones | await _done(grants, "created", lambda a: create_acls(destination, a))
    )


async def _remove(destination: KafkaCluster, acls: Collection[Acl]) -> set[Acl]:
    """Remove what denials limit, then the denials; return those that could not be removed."""
    denials, grants = _split(acls)
    leftovers = await _done(grants, "removed", lambda batch: delete_acls(destination, batch))
    needed = limiting(denials, leftovers)
    denials -= needed
    return (
        leftovers | needed | await _done(denials, "removed", lambda a: delete_acls(destination, a))
    )


def _split(acls: Collection[Acl]) -> tuple[set[Acl], set[Acl]]:
    denials = {acl for acl in acls if acl.permission is not Permission.ALLOW}
    return denials, set(acls) - denials


async def _done(
    acls: Collection[Acl],
    verb: str,
    action: Callable[[Iterable[Acl]], Awaitable[Mapping[Acl, Refusal | None]]],
) -> set[Acl]:
    """Apply an action to ACLs; return those for which it was refused."""
    if not acls:
        return set()
    answers = await action(acls)
    refusals = {acl: answer for acl, answer in answers.items() if answer is not None}
    if successes := answers.keys() - refusals.keys():
        log.info("ACLs %s: %s", verb, few(sorted(successes), "; "))
    if refusals:
        why, text = next(iter(refusals.values())), few(sorted(refusals), "; ")
        log.warning("ACLs cannot be %s (%s): %s", verb, why, text)
    return set(refusals)


async def _remember(
    store: MirrorStore, mirror: str, acls: Collection[Acl], made_for: MadeFor
) -> None:
    def decide(snapshot: Snapshot) -> list[ConfigChange]:
        if mirror not in snapshot.mirrors:
            raise unknown_mirror(mirror, snapshot)
        return [MadeAcl(mirror=mirror, acl=acl, made_for=made_for) for acl in acls]

    await store.change(decide)


async def _forget(
    store: MirrorStore, mirror: str, acls: Collection[Acl], made_for: MadeFor
) -> None:
    """Forget what is remembered for this reason; what is remembered for another reason stays."""

    def decide(snapshot: Snapshot) -> list[ConfigChange]:
        recorded = snapshot.made_acls(mirror, made_for) & frozenset(acls)
        return [
            Tombstone(key_of(MadeAcl(mirror=mirror, acl=acl, made_for=made_for)))
            for acl in recorded
        ]

    await store.change(decide)
