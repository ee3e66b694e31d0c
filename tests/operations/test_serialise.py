"""Twin of operations/serialise.py: the forms of results, and what has none."""

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

import pytest

from twinlog.mirror.states import State
from twinlog.operations.describe import (
    MirrorDescription,
    PartitionDescription,
    TopicDescription,
)
from twinlog.operations.results import (
    AlterMirrorResult,
    ChangedTopics,
    CreateMirrorResult,
    DeleteMirrorResult,
    DescribeMirrorsResult,
    ListMirrorsResult,
    MirrorListing,
)
from twinlog.operations.serialise import json_data
from twinlog.store.config_records import NotMirrored, Wanted


class Colour(enum.IntEnum):
    """An enum whose values are numbers."""

    RED = 7


class Place(NamedTuple):
    """A named tuple."""

    name: str
    colour: Colour


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    """A dataclass with a secret."""

    places: tuple[Place, ...]
    secrets: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    """A dataclass with a form of its own."""

    inner: Inner
    names: frozenset[str]
    numbers: Mapping[str, int | None]

    def as_json(self) -> Mapping[str, object]:
        return {"in": self.inner, "names": self.names, **self.numbers}


def test_nested_results_are_serialised() -> None:
    """Goal: a result needs code of its own only where its JSON has other names."""
    inner = Inner(places=(Place("a", Colour.RED),), secrets={"password": "x"})
    outer = Outer(inner=inner, names=frozenset({"z", "b"}), numbers={"one": 1, "none": None})
    assert json_data([outer, True, 1.5]) == [
        {
            "in": {"places": [{"name": "a", "colour": "RED"}]},
            "names": ["b", "z"],
            "one": 1,
            "none": None,
        },
        True,
        1.5,
    ]


def test_a_topic_id_is_serialised_as_by_kafka() -> None:
    assert json_data(UUID(int=1)) == "AAAAAAAAAAAAAAAAAAAAAQ"


@pytest.mark.parametrize(
    "value", [object(), b"bytes", {1: "one"}, Outer, [{"a": object()}], {"a"}.pop]
)
def test_values_without_a_json_form_are_refused(value: object) -> None:
    """Goal: no object is printed as a text that no program understands."""
    with pytest.raises(TypeError):
        json_data(value)


NOT_MIRRORED = NotMirrored(mirror="m", topics=(("late", "why"),), total=1)
PARTITIONS = (
    PartitionDescription(
        partition=0,
        state=State.FAILED,
        reason="why",
        source_offset=9,
        source_last_stable_offset=8,
        destination_offset=5,
        mirrored_offset=5,
        lag=4,
        lag_ms=77,
        source_time_ms=1000,
        last_mirrored_epoch=3,
        last_mirrored_end=-1,
        records=6,
        bytes=99,
        filled=(1, 2, 3, 4, 5),
        lane="l",
        node="n",
        status_time_ms=2000,
        fresh=True,
    ),
)
TOPIC = TopicDescription(
    topic="t",
    destination_topic="x",
    source_topic_id=UUID(int=1),
    wanted=Wanted.PAUSED,
    partitions=PARTITIONS,
)
MIRROR = MirrorDescription(
    mirror="m",
    source_bootstrap="h:1",
    source_cluster_id="id",
    topic_patterns=("a.*",),
    replication_factor=None,
    topics=(TOPIC,),
    not_mirrored=NOT_MIRRORED,
)
LISTING = MirrorListing(
    mirror="m",
    topics=2,
    source_cluster_id="id",
    source_bootstrap="h:1",
    config={"a": "b"},
    not_mirrored=NOT_MIRRORED,
)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (
            CreateMirrorResult(mirror="m", source_cluster_id="id"),
            '{"created": "m", "cluster_id": "id"}',
        ),
        (ChangedTopics("m", "added", ("a", "b")), '{"mirror": "m", "added": ["a", "b"]}'),
        (
            AlterMirrorResult(mirror="m", properties=("a", "b")),
            '{"altered": "m", "set": ["a", "b"]}',
        ),
        (
            DeleteMirrorResult(mirror="m", copied_acls=("acl",)),
            '{"deleted": "m", "copied_acls": ["acl"]}',
        ),
        (
            ListMirrorsResult(mirrors=(LISTING,), unreadable=("x",)),
            (
                '[{"mirror": "m", "topics": 2, "cluster_id": "id", "bootstrap_servers": "h:1", '
                '"config": {"a": "b"}, "not_mirrored": {"late": "why"}}]'
            ),
        ),
        (
            DescribeMirrorsResult(mirrors=(MIRROR,), unreadable=("x",)),
            (
                '[{"mirror": "m", "topic": "t", "partition": 0, "source_offset": 9, '
                '"source_last_stable_offset": 8, "destination_offset": 5, "lag": 4, "lag_ms": 77, '
                '"state": "FAILED", "reason": "why", "wanted": "PAUSED", "last_mirrored_epoch": 3, '
                '"last_mirrored_end": -1, "source_topic_id": "AAAAAAAAAAAAAAAAAAAAAQ", '
                '"records": 6, "bytes": 99, "filled_offsets": {"marker": 1, "aborted": 2, '
                '"compacted": 3, "log_start": 4, "unexplained": 5}, "lane": "l", "node": "n", '
                '"status_time_ms": 2000, "fresh": true, "source_time_ms": 1000, '
                '"destination_losses": 0, "destination_lost_offsets": 0, '
                '"destination_last_loss": null, "source_losses": 0, '
                '"source_lost_offsets": 0, "source_last_loss": null}]'
            ),
        ),
    ],
)
def test_the_json_form_is_stable(result: object, text: str) -> None:
    """Goal: names, order and form of the JSON stay as they are."""
    assert json.dumps(json_data(result)) == text


def test_changed_topics_compare_equal_to_a_tuple_of_names() -> None:
    """Goal: a program that uses the names alone sees a tuple."""
    changed = ChangedTopics("m", "paused", ["b", "a"])
    assert (changed, len(changed), str(changed)) == (("b", "a"), 2, "('b', 'a')")
