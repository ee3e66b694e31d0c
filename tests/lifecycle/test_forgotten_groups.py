"""Whose group of positions is deleted with a flow, without brokers.

That all is deleted that a flow has recorded is in test_flow_forgetting.py.
"""

import asyncio
from collections.abc import Mapping
from typing import cast

import pytest

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Retriable, TwinlogError, UserError
from twinlog.kafka.groups.offsets import Committed, Group
from twinlog.kafka.types import TopicPartition
from twinlog.lifecycle import flow_forgetting
from twinlog.lifecycle.flow_forgetting import forget_flow
from twinlog.mirror.flow import flow_properties
from twinlog.store.config_records import Mirror
from twinlog.store.topic_writer import Entry

GROUP = "twinlog.flow.a-to-b"
ENTRY = Entry("__mirror_offsets", 0, b"plan", None)
DENIED = UserError("no right to delete it", code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
NO_ANSWER = Retriable("no answer")


class Target:
    """A target with the flow's group, or without it; `may_describe`: else an error."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.offsets: dict[TopicPartition, Committed] = {}
        self.groups: set[str] = set()
        self.refusal: TwinlogError | None = None
        self.undescribed: TwinlogError | None = None
        self.deleted: list[str] = []
        for name in ("delete_group", "committed_offsets", "list_groups", "forgetting_entries"):
            patch.setattr(flow_forgetting, name, getattr(self, name))

    async def delete_group(self, _: object, group: str) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.deleted.append(group)

    async def committed_offsets(self, _: object, group: str) -> Mapping[TopicPartition, Committed]:
        assert group == GROUP
        if self.undescribed is not None:
            raise self.undescribed
        return self.offsets

    async def list_groups(self, _: object) -> Mapping[str, Group]:
        return {name: Group(name, "Empty", "classic") for name in self.groups}

    async def forgetting_entries(self, _: object, mirror: str) -> list[Entry]:
        assert mirror == "a-to-b"
        return [ENTRY]

    def forget(self, transactions: str) -> list[str]:
        """The lines that are told of a flow whose other records are deleted."""
        values = {"enabled": "true", "transaction.producer": transactions}
        source = flow_properties(values, "a", "b")
        mirror = Mirror(name="a-to-b", source=source, source_cluster_id="source")
        lines: list[str] = []
        cluster = cast("KafkaCluster", None)
        assert asyncio.run(forget_flow(cluster, mirror, lines.append)) == [ENTRY]
        return lines


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Target:
    return Target(monkeypatch)


@pytest.mark.parametrize("transactions", ["true", "false"])
def test_the_group_is_deleted_whatever_kind_the_flow_is_of(
    target: Target, transactions: str
) -> None:
    """Goal: positions of a former flow of its name in transactions do not count again."""
    assert target.forget(transactions) == []
    assert target.deleted == [GROUP]


@pytest.mark.parametrize("refusal", [DENIED, NO_ANSWER])
def test_a_flow_in_transactions_is_not_deleted_without_its_group(
    target: Target, refusal: TwinlogError
) -> None:
    target.refusal = refusal
    target.undescribed = DENIED
    with pytest.raises(type(refusal)):
        target.forget("true")


def test_a_flow_without_transactions_needs_no_right_to_a_group_that_does_not_exist(
    target: Target,
) -> None:
    """Goal: it can be deleted as before, and no line alarms anybody."""
    target.refusal = DENIED
    target.groups = {"another"}
    assert target.forget("false") == []


def test_a_group_that_exists_is_not_left_behind(target: Target) -> None:
    """Goal: its positions, also those of topics that may not be described, are not forgotten."""
    target.refusal = DENIED
    target.groups = {GROUP}
    with pytest.raises(UserError, match="no right"):
        target.forget("false")
    target.groups = set()
    target.offsets = {TopicPartition("a.t", 0): Committed(5)}
    with pytest.raises(UserError, match="no right"):
        target.forget("false")


@pytest.mark.parametrize("undescribed", [DENIED, NO_ANSWER])
def test_a_group_of_which_nothing_is_known_is_named(
    target: Target, undescribed: TwinlogError
) -> None:
    """Goal: the flow can be deleted as before, and nothing is said to be forgotten that is not."""
    target.refusal = DENIED
    target.undescribed = undescribed
    [line] = target.forget("false")
    assert line.startswith(f"group {GROUP} was not deleted, and it is not known whether it exists")
    assert "no right to delete it" in line
    assert "\n" not in line
