"""What readiness reports of the syncs: their differences, and those that cannot be compared."""

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from sync_contexts import sync_context

from twinlog.kafka.acls import Acl, AclChanges, Operation, PatternType, Permission, ResourceType
from twinlog.kafka.errors import Refusal, Retriable
from twinlog.mirror.settings import ACLS, EXACT, TRANSLATED, parse_settings
from twinlog.operations.readiness import sync_survey
from twinlog.operations.readiness.facts import AclFacts
from twinlog.operations.readiness.reasons import Finding, Reason
from twinlog.operations.readiness.sync_survey import SyncFacts, compare_syncs, not_compared
from twinlog.store.config_records import MirrorTopic
from twinlog.sync.acls import AclDifference, AclSync, NoAuthorizer
from twinlog.sync.base import Remark, ReportedSync, Sync, SyncContext
from twinlog.sync.configs import ConfigDifference, ConfigSync, UnreadableConfigs

NOBODY: Any = None
TOPIC = MirrorTopic(mirror="m", topic="t", topic_id=UUID(int=1), partitions=1)
NONE: frozenset[Acl] = frozenset()
REFUSED = Refusal(29)


class Quotas(ReportedSync[list[Remark]]):
    """A sync that readiness does not know, with a given difference."""

    name = "quotas"
    metric = "QuotaSyncError"

    def __init__(self, *remarks: Remark, error: Exception | None = None, follow: bool = True):
        self._remarks = [*remarks]
        self._error = error
        self._follow = follow

    def concerns(self, settings: object, topics: object) -> bool:
        del settings
        return bool(topics)

    async def follows(self, destination: object) -> bool:
        del destination
        return self._follow

    async def compare(self, context: SyncContext) -> list[Remark]:
        del context
        if self._error is not None:
            raise self._error
        return self._remarks

    async def apply(self, context: SyncContext, difference: list[Remark]) -> int:
        raise AssertionError(f"readiness changes nothing: {context}, {difference}")

    def describe(self, difference: list[Remark]) -> Iterable[Remark]:
        return difference


class Slow(Quotas):
    """A sync that does not end."""

    async def compare(self, context: SyncContext) -> list[Remark]:
        await asyncio.Event().wait()
        return await super().compare(context)


def finding(monkeypatch: pytest.MonkeyPatch, sync: Sync[Any], difference: object) -> Sync[Any]:
    """Return the sync, whose comparison has this result."""

    async def compare(_self: object, _context: SyncContext) -> object:
        return difference

    monkeypatch.setattr(type(sync), "compare", compare)
    return sync


def registered(monkeypatch: pytest.MonkeyPatch, *syncs: Sync[Any]) -> None:
    monkeypatch.setattr(sync_survey, "create_syncs", lambda _host: syncs)


def compared(part_s: float | None = None, **more: Any) -> SyncFacts:
    more.setdefault("topics", [TOPIC])
    context = sync_context(NOBODY, NOBODY, NOBODY, **more)
    return asyncio.run(compare_syncs(context, part_s))


def test_remarks_of_any_registered_sync_are_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: what differs, and what could not be read, is a finding; neither of a topic is lost."""
    remarks = [
        Remark("one is to be set"),
        Remark("its own", "t"),
        Remark("refused", unreadable=True),
        Remark("of no topic that is surveyed", "u"),
    ]
    registered(monkeypatch, Quotas(*remarks))
    found = compared()
    assert found.findings == {
        None: (
            Finding(Reason.NOT_SYNCED, "one is to be set"),
            Finding(Reason.SYNC_UNREADABLE, "refused"),
            Finding(Reason.NOT_SYNCED, "of no topic that is surveyed"),
        ),
        "t": (Finding(Reason.NOT_SYNCED, "its own"),),
    }
    assert found.unknown == ()
    assert (found.acls, found.configurations("t")) == (AclFacts(), ())
    assert compared(topics=[]).findings == {}


def test_errors_and_timeouts_of_a_sync_are_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: an error, and no answer in time, are findings; the other syncs are compared."""
    good, bad = Quotas(Remark("differs")), Quotas(error=Retriable("no broker"))
    registered(monkeypatch, bad, Slow(), good)
    found = compared(0.05)
    assert [(one.reason, one.text) for one in found.unknown] == [
        (Reason.SYNC_UNREADABLE, "quotas: no broker"),
        (Reason.SYNC_UNREADABLE, "quotas: no response within 0.05 s"),
    ]
    assert found.findings == {None: (Finding(Reason.NOT_SYNCED, "differs"),)}


@pytest.mark.parametrize(("topics", "follow"), [([TOPIC], True), ([TOPIC], False), ([], True)])
def test_syncs_not_compared_with_a_dead_source_are_findings(
    monkeypatch: pytest.MonkeyPatch, topics: list[MirrorTopic], follow: bool
) -> None:
    """Goal: what is not compared is a finding, unless the destination cannot have it."""
    registered(monkeypatch, Quotas(follow=follow))
    subject: Any = SimpleNamespace(
        topics=topics, settings=parse_settings({}), mirror=SimpleNamespace(kind=EXACT)
    )
    text = "quotas: not compared, because the source does not respond"
    expected = (Finding(Reason.SYNC_UNREADABLE, text),) if topics and follow else ()
    assert asyncio.run(not_compared(NOBODY, subject)) == expected
    subject.mirror.kind = TRANSLATED
    assert asyncio.run(not_compared(NOBODY, subject)) == (), "it does not serve flows"


def test_unreadable_configurations_are_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a topic whose configurations cannot be read is a finding, never one without any."""
    different = ConfigDifference({"retention.ms": "5"}, {"cleanup.policy": "compact"}, ())
    found = {
        "t": different,
        "u": UnreadableConfigs("source", REFUSED),
        "v": ConfigDifference({}, {}, ()),
    }
    registered(monkeypatch, finding(monkeypatch, ConfigSync(), found))
    topics = [MirrorTopic(mirror="m", topic=t, topic_id=UUID(int=1), partitions=1) for t in found]
    facts = compared(topics=topics)
    why = f"its configurations cannot be read on the source: {REFUSED}"
    assert facts.findings == {
        "t": (
            Finding(
                Reason.CONFIGURATION, "different from the source: cleanup.policy, retention.ms"
            ),
        ),
        "u": (Finding(Reason.CONFIGURATION_UNREADABLE, why),),
    }
    assert facts.configurations("t") == ("cleanup.policy", "retention.ms")
    assert facts.configurations("u") == facts.configurations("v") == ()


def acl(name: str) -> Acl:
    kind, pattern = ResourceType.TOPIC, PatternType.LITERAL
    return Acl(kind, name, pattern, "User:a", "*", Operation.READ, Permission.ALLOW)


def test_acl_changes_and_uncopied_acls_are_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: what is to be done, and what is not copied, with the names beside the findings."""
    make, (z, d, m, w) = [acl(name) for name in "abcdefg"], [acl(name) for name in "zdmw"]
    changes = AclChanges(remember=NONE, make=frozenset(make), remove=frozenset({z}), forget=NONE)
    difference = AclDifference(
        changes,
        ours=NONE,
        absent=NONE,
        denying=frozenset({d}),
        missed=frozenset({m}),
        withheld=frozenset({w}),
        stopping=NONE,
    )
    registered(monkeypatch, finding(monkeypatch, AclSync(NOBODY, NOBODY, NOBODY), difference))
    facts = compared(settings=parse_settings({ACLS: "*"}))
    assert [finding.reason for finding in facts.findings[None]] == [Reason.ACL] * 5
    assert [finding.text for finding in facts.findings[None]] == [
        f"7 ACL(s) are not created yet: {', '.join(map(str, make[:5]))} and 2 more",
        f"1 ACL(s) are not removed yet: {z}",
        (
            "1 denial(s) of the source are not copied, because they would stop nodes or cover "
            f"control topics: {d}"
        ),
        (
            "1 ACL(s) of the source that applications may need are not copied, because they reach "
            f"beyond the mirror's topics and groups: {m}"
        ),
        (
            "1 ACL(s) of the source are not copied or not updated, because a denial that limits "
            f"them on the source is not copied: {w}"
        ),
    ]
    assert facts.acls == AclFacts(
        to_make=tuple(map(str, make)),
        to_remove=(str(z),),
        denying=(str(d),),
        missed=(str(m),),
        withheld=(str(w),),
    )


def test_acls_give_no_findings_without_an_authorizer_or_a_rule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: without an authorizer, or without a rule, nothing is to be done."""
    sync = AclSync(NOBODY, NOBODY, NOBODY)
    registered(monkeypatch, finding(monkeypatch, sync, NoAuthorizer("source")))
    for settings in ({ACLS: "*"}, {ACLS: ""}):
        facts = compared(settings=parse_settings(settings))
        assert (facts.findings, facts.unknown, facts.acls) == ({}, (), AclFacts())
