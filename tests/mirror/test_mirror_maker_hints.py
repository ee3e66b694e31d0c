"""Twin of mirror_maker_hints.py; tests/mirror/test_mirror_maker_lines.py has whole lines."""

import pytest

from twinlog.mirror.flow_settings import SETTINGS
from twinlog.mirror.mirror_maker_hints import GUESS, LineHints, with_role_of_flow
from twinlog.mirror.mirror_maker_names import CLIENT_NAMES, CONNECT_NAMES, reason
from twinlog.mirror.mirror_maker_places import LinePlace

HINTS = LineHints(("A", "B"), ("A->B", "B->A"))


def hint(key: str) -> str:
    """The property that is named for an unknown one; empty: none."""
    prefix, dot, rest = key.partition(".")
    place = LinePlace(rest=key)
    if prefix in {"A", "B"}:
        place = LinePlace(prefix, "", f"{prefix}{dot}", rest)
    elif prefix == "A->B":
        place = LinePlace("A", "B", f"{prefix}{dot}", rest)
    text = HINTS.unknown(key, place)
    return text.partition(f": {GUESS} ")[2].removesuffix("?")


@pytest.mark.parametrize(
    ("key", "named"),
    [
        ("A->B.task.max", "A->B.tasks.max"),
        ("A->B.connector.tpye", "A->B.connector.type"),
        ("A->B.errors.tolerence", "A->B.errors.tolerance"),
        ("A->B.exactly.once", "A->B.exactly.once.support"),
        ("A->B.plugin.bla", "A->B.plugin.path"),
        ("A->B.transform", "A->B.transforms"),
        ("A->B.transfroms", "A->B.transforms"),
        ("A->B.transfroms.m.type", "A->B.transforms.m.type"),
        ("A->B.predicate", "A->B.predicates"),
        ("A->B.predicate.p.type", "A->B.predicates.p.type"),
        ("A->B.value.convertor", "A->B.value.converter"),
        ("A->B.value.convertor.schemas.enable", "A->B.value.converter.schemas.enable"),
        ("A->B.TOPICS", "A->B.topics"),
        ("A->B.ssl.protocl", "A->B.source.consumer.ssl.protocol, or A.ssl.protocol"),
        # Where MirrorMaker 2 reads the names of its worker.
        ("A->B.group.id.x", "B.group.id"),
        ("A->B.offset.storage.topik", "offset.storage.topic"),
        ("A->B.offset.storage.locaton", "offset.storage.topic"),
        ("A->B.offsets.storage.topik", "A->B.offsets.storage.topic"),
        ("B.group.ids", "B.group.id"),
        ("group.ids", "TARGET.group.id"),
        ("transfroms", "transforms"),
        ("errors.tolerence", "errors.tolerance"),
        ("listener", "listeners"),
        # Of a cluster, no transforms are read; nor without a prefix, but for their names.
        ("A.transfroms", ""),
        ("transfroms.m.type", ""),
        ("A->B.zzz", ""),
        ("zzz", ""),
    ],
)
def test_the_closest_property(key: str, named: str) -> None:
    assert hint(key) == named


@pytest.mark.parametrize("prefix", ["", "A->B.", "A."])
def test_a_misspelt_name_of_connect_is_no_other_ones(prefix: str) -> None:
    """Goal: no misspelt property counts as not needed, and each has a hint."""
    for name in CONNECT_NAMES - SETTINGS.keys():
        for wrong in (f"{name}x", f"{name[:-2]}{name[-1]}{name[-2]}"):
            if wrong not in CONNECT_NAMES and not wrong.endswith(name[-2:]):
                assert reason(wrong) is None, wrong
                assert hint(f"{prefix}{wrong}"), wrong


def test_a_cluster_that_is_not_there() -> None:
    text = HINTS.unknown("C.ssl.protocol", LinePlace(rest="C.ssl.protocol"))
    assert text == "'C' is not in clusters: expected A, B"
    assert HINTS.unknown_flow("A-B->B.topics").startswith("A-B->B is not a pair of different")
    assert HINTS.unknown_flow("A->A.topics").endswith(f": {GUESS} B->A.topics?")


def test_the_prefix_that_a_property_needs() -> None:
    assert HINTS.with_prefix("use.defaults.from") == "A->B.use.defaults.from"
    assert HINTS.with_prefix("consumer.auto.offset.reset") == "A.consumer.auto.offset.reset"
    assert HINTS.with_prefix("consumer.fetch.max.bytes") == "A.consumer.fetch.max.bytes"
    assert HINTS.with_prefix("source.consumer.client.id") == "A->B.source.consumer.client.id"
    assert HINTS.with_prefix("topics") == HINTS.with_prefix("consumer.x") == ""
    assert HINTS.with_prefix("admin.listeners") == ""


def test_a_client_property_of_a_flow() -> None:
    def written(name: str) -> str:
        return with_role_of_flow(LinePlace("A", "B", "A->B.", name))

    assert all(f"or A.{name}" in written(name) for name in CLIENT_NAMES)
    assert written("linger.ms") == "A->B.producer.override.linger.ms, or B.producer.linger.ms"
    assert written("bootstrap.controllers").endswith("or A.admin.bootstrap.controllers")
    assert written("client.id") == "A->B.source.consumer.client.id, or A.consumer.client.id"
