"""A source that lists fewer ACLs than it has: no copy is removed on an incomplete answer."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from twinlog.kafka.acls import Acl, Operation, PatternType, Permission, ResourceType
from twinlog.kafka.errors import Retriable
from twinlog.kafka.requests import acls as acl_requests
from twinlog.mirror.settings import ACLS_EMPTY, parse_settings
from twinlog.sync.absent_acls import ABSENT_S, AbsentAcls, MirrorTexts
from twinlog.sync.acls import AclSync


def acl(name: str) -> Acl:
    kind, pattern = ResourceType.TOPIC, PatternType.LITERAL
    return Acl(kind, name, pattern, "User:alice", "*", Operation.READ, Permission.ALLOW)


ONE, OTHER = frozenset({acl("one")}), frozenset({acl("other")})
NONE: frozenset[Acl] = frozenset()


class Source:
    """A source whose brokers each list given ACLs; None: the broker has no authorizer."""

    def __init__(self, *brokers: frozenset[Acl] | None) -> None:
        self.brokers = brokers

    async def refresh(self, _topics: list[str]) -> Any:
        return SimpleNamespace(brokers=range(len(self.brokers)))


@pytest.fixture(autouse=True)
def _listing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def describe(source: Source, node: int) -> frozenset[Acl] | None:
        return source.brokers[node]

    monkeypatch.setattr(acl_requests, "describe_acls", describe)


class Looks:
    """Checks by a node of a source that does not list ONE."""

    def __init__(self, **settings: str) -> None:
        self.now = 0.0
        self._absent = AbsentAcls(MirrorTexts(), lambda: self.now)
        self._trusted = parse_settings(settings).acl_empty_source_trusted

    def gone(
        self, *brokers: frozenset[Acl] | None, absent: frozenset[Acl] = ONE, after: float = 0
    ) -> frozenset[Acl]:
        self.now += after
        source: Any = Source(*brokers)
        return asyncio.run(
            self._absent.gone(
                source,
                "m",
                absent,
                advice=f"set {ACLS_EMPTY}=true",
                empty_trusted=self._trusted,
            )
        )

    def waits(self) -> bool:
        return self._absent.waits("m")

    def forget(self) -> None:
        self._absent.forget(lambda mirror: mirror == "m")


def test_an_acl_is_absent_after_two_checks_and_on_every_broker() -> None:
    looks = Looks()
    assert looks.gone(OTHER, OTHER) == NONE, "the first look"
    assert looks.gone(OTHER, OTHER, after=ABSENT_S / 2) == NONE, "too early"
    assert looks.gone(OTHER, ONE | OTHER, after=ABSENT_S) == NONE, "a broker lists it"
    assert looks.gone(OTHER, OTHER, after=1) == ONE


def test_the_next_check_is_awaited_as_long_as_an_acl_is_absent() -> None:
    """Goal: the second check does not wait for an interval of a day."""
    looks = Looks()
    assert not looks.waits()
    looks.gone(OTHER)
    assert looks.waits()
    assert looks.gone(OTHER, after=ABSENT_S) == ONE
    assert looks.waits(), "whether it was removed is not known here"
    looks.gone(OTHER, absent=NONE)
    assert not looks.waits()


def test_an_acl_that_one_broker_lists_exists() -> None:
    """Otherwise an administrator's ACL would count as a copy, and be removed with the source's.

    No broker in the metadata is no answer.
    """

    def found(*brokers: frozenset[Acl] | None) -> frozenset[Acl] | None:
        cluster: Any = Source(*brokers)
        return asyncio.run(acl_requests.acls_of_any_broker(cluster))

    assert found(NONE, ONE, OTHER) == ONE | OTHER
    assert found(None, ONE) == ONE
    assert found(None, None) is None
    with pytest.raises(Retriable, match="names no broker"):
        found()


@pytest.mark.parametrize("brokers", [(NONE,), (OTHER, NONE), (OTHER, None), ()])
def test_a_broker_that_lists_nothing_proves_nothing(
    brokers: tuple[frozenset[Acl] | None, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """An empty list is no proof, however often it comes; it is logged once, with the setting."""
    looks = Looks()
    for _ in range(4):
        assert looks.gone(*brokers, after=ABSENT_S) == NONE
    (line,) = caplog.messages
    assert f"{ACLS_EMPTY}=true" in line
    assert "1 copied ACL(s) are kept" in line


def test_an_empty_source_may_be_trusted() -> None:
    """A setting trusts an empty list; a source without an authorizer is never trusted."""
    looks = Looks(**{ACLS_EMPTY: "true"})
    assert looks.gone(NONE) == NONE
    assert looks.gone(None, after=ABSENT_S) == NONE
    assert looks.gone(NONE, after=ABSENT_S) == ONE


def test_an_acl_that_is_listed_again_restarts_the_check() -> None:
    looks = Looks()
    assert looks.gone(OTHER) == NONE
    assert looks.gone(OTHER, absent=NONE, after=ABSENT_S) == NONE
    assert looks.gone(OTHER, after=ABSENT_S) == NONE
    assert looks.gone(OTHER, after=ABSENT_S) == ONE


def test_a_takeover_restarts_the_check() -> None:
    """Goal: the ACL may have been there while another node looked."""
    looks = Looks()
    assert looks.gone(OTHER) == NONE
    looks.forget()
    assert looks.gone(OTHER, after=ABSENT_S) == NONE
    assert looks.gone(OTHER, after=ABSENT_S) == ONE


def test_a_mirror_that_has_moved_away_and_back_restarts_the_check() -> None:
    """Goal: the sync of ACLs forgets, too; what it knows of other mirrors stays."""
    nothing: Any = None
    now = 0.0
    sync = AclSync(nothing, nothing, nothing, lambda: now)

    def gone(mirror: str) -> frozenset[Acl]:
        source: Any = Source(OTHER)
        return asyncio.run(sync._absent.gone(source, mirror, ONE, advice="trust it"))

    assert gone("m") == gone("o") == NONE
    sync.forget(lambda mirror: mirror == "m")
    now += ABSENT_S
    assert (gone("m"), gone("o")) == (NONE, ONE)
    now += ABSENT_S
    assert gone("m") == ONE


def test_listed_acls_are_not_kept_in_memory(caplog: pytest.LogCaptureFixture) -> None:
    """Goal: a source that lists other ACLs at each check does not fill a node's memory."""
    nothing: Any = None
    sync = AclSync(nothing, nothing, nothing)
    for number in range(10):
        denying = frozenset({acl(f"denied-{number}")})
        found: Any = SimpleNamespace(denying=denying, missed=NONE, withheld=NONE)
        for _ in range(2):
            sync._report("m", found)
    assert len(caplog.messages) == 10
    assert len(sync._texts.last) == 1
