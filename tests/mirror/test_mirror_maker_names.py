"""Twin of mirror_maker_names.py; test_mirror_maker_java.py compares the names with Java's."""

import pytest

from twinlog.mirror.flow_settings import SETTINGS
from twinlog.mirror.mirror_maker_names import (
    CLIENT_NAMES,
    CLIENT_REASONS,
    DRAFT_NAMES,
    REASONS,
    ROLE_NAMES,
    is_client_property,
    reason,
    role_of,
)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("key.converter", "bytes"),
        ("key.converter.schemas.enable", "bytes"),
        ("offset.storage.topic", "control topics"),
        ("dedicated.mode.enable.internal.rest", "REST"),
        ("transaction.boundary.interval.ms", "exactly-once"),
        ("errors.tolerance", "FAILED"),
        ("name", "connectors"),
        ("value.converter.x", "bytes"),
        ("offset.flush.interval.ms", "twinlog.source.offsets.interval.seconds"),
        ("status.storage.min.insync.replicas", "control topics"),
        ("admin.listeners.https.ssl.protocol", "REST"),
        ("topic.creation.mine.include", "remote topics"),
        ("plugin.path", "worker"),
    ],
)
def test_properties_of_connect_have_a_reason(name: str, word: str) -> None:
    text = reason(name)
    assert text is not None
    assert word in text


def test_other_names_have_no_reason() -> None:
    assert reason("topics") is None
    assert reason("names") is None
    for name in ("task.max", "plugin.bla", "errors.x", "topic.creation.enabel", "key.converters"):
        assert reason(name) is None, name


def test_tables_do_not_overlap() -> None:
    """Goal: each name has one meaning."""
    assert not set(DRAFT_NAMES) & set(SETTINGS)
    assert not set(CLIENT_NAMES) & set(SETTINGS)
    assert not set(REASONS) & {*SETTINGS, *CLIENT_NAMES}
    assert set(CLIENT_REASONS) <= ROLE_NAMES["consumer"] | ROLE_NAMES["producer"]
    assert {DRAFT_NAMES[name] for name in DRAFT_NAMES} - {""} <= set(SETTINGS)


def test_roles() -> None:
    assert role_of("consumer.fetch.max.bytes") == "consumer"
    assert role_of("ssl.protocol") is None
    assert is_client_property("producer", "batch.size")
    assert is_client_property("admin", "ssl.protocol")
    assert not is_client_property("consumer", "batch.size")
