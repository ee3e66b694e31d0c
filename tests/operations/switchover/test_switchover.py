"""Whether a source is silent, and what prevents a switchover.

With brokers: tests/end_to_end/test_switchover.py.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from uuid import UUID

import pytest

from twinlog.kafka.errors import Retriable, UserError
from twinlog.kafka.types import LeaderEpoch, Offset, TopicPartition
from twinlog.mirror.placement import MirrorPartition
from twinlog.mirror.states import State
from twinlog.mirror.translation import SAME
from twinlog.operations.readiness.facts import GroupFacts, Skip
from twinlog.operations.readiness.reasons import WEIGHTS, Finding, Reason, Verdict
from twinlog.operations.readiness.verdict import Readiness
from twinlog.operations.switchover import observation, switchover
from twinlog.operations.switchover.denials import Outlook
from twinlog.operations.switchover.observation import Observation
from twinlog.operations.switchover.records import (
    DenialsStay,
    LeftBehind,
    Producers,
    ProducersNotStopped,
    Step,
    SwitchedOver,
    SwitchoverFailed,
)
from twinlog.operations.switchover.silence import Silence, SourceEnd
from twinlog.operations.switchover.switchover import (
    HARMLESS,
    PASSING,
    _Switchover,
    harmless,
    refuse_flow,
    standing_against,
)
from twinlog.store.config_records import Mirror, MirrorTopic, Wanted
from twinlog.store.state_records import LastMirrored

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)


def test_silence_is_counted_from_the_last_write() -> None:
    """Silence is counted from the last poll that has seen a log end offset move."""
    silence = Silence(5.0)
    logs = {ZERO: SourceEnd(10, 10), ONE: SourceEnd(20, 20)}
    assert silence.look(logs, 100.0) == "first check"
    assert silence.look(logs, 104.0) == "no writes for 4 s so far"
    moved = {**logs, ONE: SourceEnd(21, 21)}
    assert silence.look(moved, 106.0) == "written to: t-1"
    assert silence.look(moved, 110.9) == "no writes for 5 s so far"
    assert silence.look(moved, 111.0) == ""
    assert silence.ends == {ZERO: 10, ONE: 21}


def test_an_open_transaction_counts_as_a_write() -> None:
    """Nor are unreplicated records silence: the last stable offset is below the log end offset."""
    silence = Silence(5.0)
    logs = {ZERO: SourceEnd(10, 8)}
    silence.look(logs, 0.0)
    assert silence.look(logs, 60.0) == "with an open transaction: t-0"
    assert silence.open == [ZERO]
    # Its marker moves the log end offset, and the seconds start again.
    ended = {ZERO: SourceEnd(11, 11)}
    assert silence.look(ended, 61.0) == "written to: t-0"
    assert silence.open == []
    assert silence.look(ended, 66.0) == ""


@pytest.mark.parametrize("reason", Reason)
def test_each_finding_blocks_a_switchover_unless_harmless(reason: Reason) -> None:
    """Every reason prevents it, except those that waiting resolves and those without loss."""
    finding = Finding(reason, "")
    found = Readiness(mirror="m", verdict=finding.verdict, findings=(finding,), topics=())
    assert bool(standing_against(found)) is (reason not in PASSING)
    assert HARMLESS < PASSING
    assert harmless(found) == ([finding] if reason in HARMLESS else [])
    if WEIGHTS[reason] is Verdict.NOT_READY:
        assert standing_against(found)


@pytest.mark.parametrize("step", Step)
def test_errors_of_each_step_state_whether_anything_changed(step: Step) -> None:
    assert step.can_go_back is (step is not Step.FAILOVER)
    back = str(SwitchoverFailed(step, "why", gone_back=True))
    what = "nothing was changed" if step is Step.READINESS else "everything is as before"
    assert back.startswith(f"{step.name}: why; {what}")
    assert "the failover of the topics continues" in str(
        SwitchoverFailed(step, "why", gone_back=False)
    )


def test_remaining_denials_are_reported_with_the_command_to_remove() -> None:
    """The report has the command that removes the denials, and claims no complete undo."""
    error = DenialsStay(Step.SILENCE, "why")
    assert not error.gone_back
    assert "twinlog switchover --allow-producers" in str(error)
    assert "as before" not in str(error)


class Stored:
    """The control topics' content: mirror m's topics t and u, and a switchover of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.topics = {
            name: MirrorTopic(mirror="m", topic=name, topic_id=UUID(int=1), partitions=1)
            for name in ("t", "u")
        }
        self.stopped: set[TopicPartition] = set()
        self.ends = {ZERO: 5, TopicPartition("u", 0): 5}
        self.mirrored: dict[str, int] = {}
        """The last mirrored end of each topic's partition 0, as its owner has stored it."""
        self.source_ends: dict[TopicPartition, int] = {}
        """The source's log end offsets after the failover, if not `ends`."""
        self.refused: UserError | None = None
        self.groups: list[GroupFacts] | Exception = []
        for name in ("subject_of", "remove_topics"):
            monkeypatch.setattr(switchover, name, getattr(self, name))
        for name in ("list_offsets", "group_facts"):
            monkeypatch.setattr(observation, name, getattr(self, name))
        for module in (switchover, observation):
            monkeypatch.setattr(module, "MirrorStore", lambda _: self)
        monkeypatch.setattr(Observation, "judge", self.judge)
        self.begin()

    def begin(self) -> None:
        clusters: Any = SimpleNamespace()
        self.steps = _Switchover(
            *(clusters, clusters, self._subject(), None), timeout_s=0.1, tell=lambda _: None
        )

    def alter(self, name: str, **changes: Any) -> None:
        self.topics[name] = replace(self.topics[name], **changes)

    def fail_over(self) -> SwitchedOver:
        return asyncio.run(self.steps.fail_over(self.ends))

    def _subject(self) -> Any:
        topics = tuple(self.topics.values())
        return SimpleNamespace(
            mirror=SimpleNamespace(name="m"),
            topics=topics,
            names=[topic.topic for topic in topics],
            partitions=[
                TopicPartition(*partition[1:]) for t in topics for partition in t.mirror_partitions
            ],
            expression=".*",
            settings=SimpleNamespace(groups_include=()),
            translation=SAME,
        )

    async def group_facts(self, *_: Any, stable: bool, translation: Any) -> Any:
        assert stable
        assert translation is SAME
        if isinstance(self.groups, Exception):
            raise self.groups
        return {"t": tuple(self.groups)}, ()

    async def subject_of(self, *_: Any) -> Any:
        return self._subject()

    async def judge(self, _: Any) -> Readiness:
        return Readiness(mirror="m", verdict=Verdict.READY, findings=(), topics=())

    async def list_offsets(self, _: Any, partitions: Any, **_settings: Any) -> Any:
        ends = self.ends | (self.source_ends if self.removed else {})
        return {
            partition: SimpleNamespace(offset=ends.get(partition, 7)) for partition in partitions
        }

    async def remove_topics(self, *_: Any) -> None:
        if self.refused:
            raise self.refused
        self.alter("t", wanted=Wanted.STOPPED, partitions=2)
        self.alter("u", wanted=Wanted.STOPPED)

    @property
    def removed(self) -> bool:
        """Return whether the failover has begun."""
        return all(topic.wanted is Wanted.STOPPED for topic in self.topics.values())

    async def snapshot(self) -> Any:
        topics = list(self.topics.values())
        return SimpleNamespace(topics=topics, topics_of=lambda _: topics)

    async def states(self) -> Any:
        return SimpleNamespace(
            epochs={
                MirrorPartition("m", topic, 0): LastMirrored(LeaderEpoch(0), Offset(end))
                for topic, end in self.mirrored.items()
            },
            state=lambda one: State.STOPPED if one[1:] in self.stopped else State.MIRRORING,
        )


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> Stored:
    return Stored(monkeypatch)


@pytest.mark.parametrize("change", [{"partitions": 2}, {"topic_id": UUID(int=2)}])
def test_a_topic_changed_since_the_start_is_not_failed_over(
    stored: Stored, change: dict[str, Any]
) -> None:
    """The switchover has not waited for its new partitions, nor checked its new log."""
    stored.alter("t", **change)
    with pytest.raises(SwitchoverFailed, match="since the switchover began: t") as caught:
        stored.fail_over()
    assert caught.value.gone_back


def test_a_principal_allowed_since_the_denials_blocks_the_failover(stored: Stored) -> None:
    """A new writer may write during the failover, so the failover is not begun."""
    known = Outlook(open_to=frozenset({"User:any"}))

    async def missing(before: Outlook) -> Outlook:
        assert before is known
        return Outlook(beyond="a deny ACL cannot exclude them: User:new")

    denials: Any = SimpleNamespace(missing=missing)
    step = stored.steps.producers
    step._denials, step._denied_acls, step._outlook = denials, frozenset(), known
    with pytest.raises(SwitchoverFailed, match="cannot exclude them: User:new") as caught:
        stored.fail_over()
    assert caught.value.gone_back
    assert stored.topics["t"].wanted is Wanted.MIRRORING


def test_the_failover_waits_for_partitions_added_after_the_last_check(stored: Stored) -> None:
    """The failover ends when the new partition is STOPPED, too; the records in it are named."""
    stored.stopped = {*stored.ends}
    with pytest.raises(SwitchoverFailed, match="not STOPPED yet: t-1"):
        stored.fail_over()
    stored.stopped.add(ONE)
    stored.alter("t", partitions=1)
    stored.begin()
    assert stored.fail_over().left_behind == (LeftBehind(ONE, 0, 7),)


@pytest.mark.parametrize(
    ("mirrored", "start"),
    [
        (6, 6),  # the mirror still ran when the late records came
        (4, 4),  # a foreign record is stored where mirroring ended
        (-1, 5),  # the last mirrored end is unknown: what the steps have seen was mirrored
        (None, 5),
    ],
)
def test_unmirrored_records_start_at_the_last_mirrored_end(
    stored: Stored, mirrored: int | None, start: int
) -> None:
    """Goal: D1: it begins where the mirror's own records end, not where the source was silent."""
    stored.stopped = {*stored.ends, ONE}
    stored.source_ends = {ZERO: 8, ONE: 0}
    stored.mirrored = {"u": 5} | ({} if mirrored is None else {"t": mirrored})
    assert stored.fail_over().left_behind == (LeftBehind(ZERO, start, 8),)


def test_late_records_that_were_mirrored_are_not_reported(stored: Stored) -> None:
    """Goal: D1: the last mirrored end counts them, although they came after the last poll."""
    stored.stopped = {*stored.ends, ONE}
    stored.source_ends = {ZERO: 8, ONE: 0}
    stored.mirrored = {"t": 8, "u": 5}
    assert stored.fail_over().left_behind == ()


def test_unmirrored_records_of_an_unreachable_source_are_unknown(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: D1: with a source that became unreachable, the records left behind are unknown."""
    stored.stopped = {*stored.ends, ONE}
    asked = stored.list_offsets

    async def gone(*arguments: Any, **settings: Any) -> Any:
        if stored.removed:
            raise Retriable("the source does not answer")
        return await asked(*arguments, **settings)

    monkeypatch.setattr(observation, "list_offsets", gone)
    assert stored.fail_over().left_behind is None


def test_error_of_a_refused_removal_names_topics_already_removed(stored: Stored) -> None:
    """A topic that another command has removed does not mean that the others are removed."""
    stored.refused = UserError("no right")
    with pytest.raises(SwitchoverFailed, match="no right") as caught:
        stored.fail_over()
    assert caught.value.gone_back
    stored.alter("u", wanted=Wanted.STOPPED)
    with pytest.raises(DenialsStay, match="no right; topics that are already removed: u"):
        stored.fail_over()
    stored.alter("t", wanted=Wanted.STOPPED)
    stored.stopped = {*stored.ends}
    assert stored.fail_over().topics == ("t", "u")


@pytest.mark.parametrize(
    "error", [SwitchoverFailed(Step.SILENCE, "why", gone_back=True), asyncio.CancelledError()]
)
def test_denials_stay_if_another_command_has_failed_over(
    stored: Stored, error: BaseException
) -> None:
    """Otherwise producers would write to the old source again, and no mirror would copy that."""
    taken: list[str] = []

    async def take_back() -> frozenset[str]:
        taken.append("all")
        return frozenset()

    async def made() -> frozenset[str]:
        return frozenset()

    denials: Any = SimpleNamespace(take_back=take_back, made=made)
    stored.steps.producers._denials, stored.steps.producers._denied_acls = denials, frozenset()
    stored.alter("u", wanted=Wanted.STOPPED)
    with pytest.raises(
        DenialsStay, match=r"stay denied; another .* has removed topics from the mirror: u"
    ) as caught:
        asyncio.run(stored.steps.producers.go_back(error))
    assert "--allow-producers" not in str(caught.value)
    assert not taken
    stored.alter("u", wanted=Wanted.MIRRORING)
    stored.steps.producers._denied_acls = frozenset()
    asyncio.run(stored.steps.producers.go_back(error))
    assert taken == ["all"]


@pytest.mark.parametrize(("step", "gone_back"), [(Step.GROUPS, True), (Step.FAILOVER, False)])
@pytest.mark.parametrize("error", [UserError("no right"), AssertionError()])
def test_every_error_states_whether_the_failover_has_started(
    stored: Stored, step: Step, gone_back: bool, error: Exception
) -> None:
    """Goal: an error that no step expected is no `nothing was changed` once topics are removed."""
    stored.steps._course.step = step
    ended = stored.steps.ended(error)
    assert isinstance(ended, SwitchoverFailed)
    assert (ended.step, ended.gone_back) == (step, gone_back)
    assert (str(error) or "AssertionError") in ended.message
    assert stored.steps.ended(ended) is ended
    cancelled = asyncio.CancelledError()
    assert stored.steps.ended(cancelled) is cancelled


class Denied:
    """Denials that a switchover has made, and what is done with them."""

    def __init__(self, standing: frozenset[str]) -> None:
        self.standing = standing
        self.refused: UserError | None = None
        self.on_take_back = lambda: None
        self.on_missing = lambda: None

    async def take_back(self) -> frozenset[str]:
        taken, self.standing = self.standing, frozenset()
        self.on_take_back()
        return taken

    async def made(self) -> frozenset[str]:
        return frozenset()

    async def missing(self, _: Outlook) -> Outlook:
        return Outlook()

    async def strayed(self) -> frozenset[str]:
        self.on_missing()
        return frozenset()

    async def deny(self, denials: frozenset[str]) -> None:
        if self.refused:
            raise self.refused
        self.standing |= denials


def with_denials(stored: Stored) -> Denied:
    denials = Denied(frozenset({"one"}))
    stored.steps.producers._denials = cast(Any, denials)
    stored.steps.producers._denied_acls = cast(Any, denials.standing)
    return denials


@pytest.mark.parametrize("refused", [None, UserError("no right")])
def test_denials_are_restored_if_another_command_fails_over(
    stored: Stored, refused: UserError | None
) -> None:
    """The removal follows the check for a failover, so the removed denials are created again."""
    denials = with_denials(stored)
    denials.refused = refused
    denials.on_take_back = lambda: stored.alter("u", wanted=Wanted.STOPPED)
    error = SwitchoverFailed(Step.SILENCE, "why", gone_back=True)
    with pytest.raises(
        DenialsStay, match=r"another .* has removed topics from the mirror: u"
    ) as caught:
        asyncio.run(stored.steps.producers.go_back(error))
    assert denials.standing == (frozenset() if refused else {"one"})
    denied_again = "write for a moment, and are denied"
    said = "could not be denied WRITE again: no right" if refused else denied_again
    assert said in str(caught.value)


@pytest.mark.parametrize("refused", [None, UserError("no right")])
def test_denials_removed_after_the_last_check_are_restored(
    stored: Stored, refused: UserError | None
) -> None:
    """Another switchover that created them has removed them, without knowing of this failover."""
    denials = with_denials(stored)
    denials.refused = refused
    denials.on_missing = lambda: setattr(denials, "standing", frozenset())
    stored.stopped = {*stored.ends, ONE}
    found = stored.fail_over()
    assert denials.standing == (frozenset() if refused else {"one"})
    assert found.not_denied == ("no right" if refused else "")


@pytest.mark.parametrize(
    ("groups", "behind"),
    [
        ([GroupFacts(group="g"), GroupFacts(group="h", due=1, followed=False)], ""),
        ([GroupFacts(group="g", due=1)], "offsets differ from the source: g"),
        ([GroupFacts(group="g", skips=(Skip(ZERO, 3, 5, follows=True),))], "from the source: g"),
        (
            UserError("no right"),
            "unknown whether all groups' offsets equal those on the source: no right",
        ),
    ],
)
def test_groups_that_commit_after_the_last_check_are_named(
    stored: Stored, groups: list[GroupFacts] | Exception, behind: str
) -> None:
    """They are named: on the destination they would read records again, or skip some."""
    stored.stopped = {*stored.ends, ONE}
    stored.groups = groups
    found = stored.fail_over().groups_behind
    assert found.endswith(behind)
    assert bool(found) is bool(behind)


def test_each_ignored_finding_is_reported_once(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is reported once, also where it appears between the first check and the last one."""
    texts = ["begins later"]
    told: list[tuple[Step, str]] = []

    async def judge(_self: Any, _: Any) -> Readiness:
        findings = tuple(Finding(Reason.BEGINS_LATER, text) for text in texts)
        return Readiness(mirror="m", verdict=Verdict.WARNING, findings=findings, topics=())

    monkeypatch.setattr(Observation, "judge", judge)
    stored.steps._course._tell = lambda one: told.append((one.step, one.text))
    stored.stopped = {*stored.ends, ONE}
    asyncio.run(stored.steps.ready())
    texts.append("more of it")
    stored.fail_over()
    assert [(step, text) for step, text in told if text.startswith("passed over")] == [
        (Step.READINESS, "passed over: begins later"),
        (Step.GROUPS, "passed over: more of it"),
    ]


def test_a_topic_created_meanwhile_blocks_the_failover(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failover would end its pattern; a topic that was already reported is passed over."""

    async def judge(_self: Any, _: Any) -> Readiness:
        finding = Finding(Reason.NOT_MIRRORED, "not mirrored: v")
        return Readiness(
            mirror="m",
            verdict=finding.verdict,
            findings=(finding,),
            topics=(),
            not_mirrored={"v": "why"},
        )

    monkeypatch.setattr(Observation, "judge", judge)
    stored.stopped = {*stored.ends, ONE}
    with pytest.raises(SwitchoverFailed, match=r"the source has new topics .*: v") as caught:
        stored.fail_over()
    assert caught.value.gone_back
    asyncio.run(stored.steps.ready())
    assert stored.fail_over().topics == ("t", "u")


class Asked:
    """An operator, and what the source's ACLs say at each look."""

    def __init__(self, *outlooks: Outlook, answers: bool = True) -> None:
        self.questions: list[str] = []
        self._outlooks = list(outlooks)
        self._answers = answers

    async def outlook(self) -> Outlook:
        return self._outlooks.pop(0) if len(self._outlooks) > 1 else self._outlooks[0]

    async def ask(self, topics: Sequence[str], why: str) -> bool:
        assert list(topics) == ["t", "u"]
        self.questions.append(why)
        return self._answers

    async def deny(self, _: object) -> None: ...

    async def made(self) -> frozenset[Any]:
        raise AssertionError("nothing was denied, so nothing is looked for")


def _ask_operator(stored: Stored, operator: Asked) -> None:
    stored.steps.producers._denials = operator  # type: ignore[assignment]
    asyncio.run(stored.steps.producers.deny(Producers(ask=operator.ask)))


def test_a_switchover_continues_after_the_answer_of_the_operator(stored: Stored) -> None:
    """The switchover goes on where it is."""
    operator = Asked(Outlook(beyond="User:a"))
    _ask_operator(stored, operator)
    assert operator.questions == ["User:a"]


def test_the_operator_is_asked_again_if_the_principals_have_changed(stored: Stored) -> None:
    """Goal: the operator confirms what holds now, however long the answer took."""
    first, second = Outlook(beyond="User:a"), Outlook(beyond="User:a, User:new")
    operator = Asked(first, second)
    _ask_operator(stored, operator)
    assert operator.questions == ["User:a", "User:a, User:new"]


def test_nothing_changes_if_producers_are_not_stopped(stored: Stored) -> None:
    """Nothing was changed, and there is nothing to undo."""
    operator = Asked(Outlook(beyond="User:a"), answers=False)
    with pytest.raises(ProducersNotStopped, match="they are not stopped") as caught:
        _ask_operator(stored, operator)
    asyncio.run(stored.steps.producers.go_back(caught.value))
    with pytest.raises(ProducersNotStopped, match="User:a"):
        asyncio.run(stored.steps.producers.deny(Producers()))


def test_the_last_check_uses_the_topic_expression_of_the_operator(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a topic that was added to the mirror since the beginning is named, not left behind."""
    asked: list[object] = []

    async def subject_of(_: Any, _mirror: str, topics: object) -> Any:
        asked.append(topics)
        found = stored._subject()
        found.names.append("v")
        return found

    monkeypatch.setattr(switchover, "subject_of", subject_of)
    with pytest.raises(SwitchoverFailed, match="since the switchover began: v;") as caught:
        stored.fail_over()
    assert caught.value.gone_back
    assert asked == [".*"]


class NamedAcl(NamedTuple):
    """As much of an ACL as a report names."""

    principal: str


@pytest.mark.parametrize("before", [Step.GROUPS, Step.FAILOVER, None])
def test_a_closed_output_pipe_ends_a_switchover_without_denials(
    stored: Stored, before: Step | None
) -> None:
    """Goal: a closed pipe ends the switchover and keeps no denial; later reports are dropped."""
    denials = with_denials(stored)
    denied = NamedAcl("User:one")
    denials.standing = frozenset({cast(Any, denied)})
    stored.steps.producers._denied_acls = cast(Any, denials.standing)
    course = stored.steps._course
    course.denied = True

    def tell(_: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    course._tell = tell
    error: BaseException = BrokenPipeError(32, "Broken pipe")
    if before:
        with pytest.raises(SwitchoverFailed, match="cannot be reported") as caught:
            course.begin(before)
        error = caught.value
        assert caught.value.gone_back
    asyncio.run(stored.steps.producers.go_back(error))
    assert denials.standing == frozenset()


def test_a_flow_is_refused_in_one_line_that_says_what_to_do() -> None:
    """Goal: remote topics are not fenced, so there is nothing to switch over."""
    flow = Mirror(name="a-to-b", source={"mirror.kind": "translated"}, source_cluster_id="c")
    with pytest.raises(UserError, match="a-to-b is a flow, and a flow is not switched over") as why:
        refuse_flow(flow)
    assert "twinlog flows translate" in str(why.value)
    assert "\n" not in str(why.value)
    refuse_flow(Mirror(name="m", source={}, source_cluster_id="c"))
