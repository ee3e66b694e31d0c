"""Twin of twinlog.mirror.replication_policy.

`tests/interfaces/test_mirror_maker_java.py` compares the same methods with Kafka's classes.
"""

import re
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.kafka.errors import UserError
from twinlog.mirror.replication_policy import (
    ENTRY_POINTS,
    DefaultReplicationPolicy,
    IdentityReplicationPolicy,
    ReplicationPolicy,
    all_sources,
    count_hops,
    has_properties_of_its_own,
    policy_named,
    policy_of,
    refused_policy,
)

DEFAULT = DefaultReplicationPolicy()
IDENTITY = IdentityReplicationPolicy(source_cluster_alias="us")
NAMES = st.text("ab._-", min_size=1, max_size=12)


class Suffixed(ReplicationPolicy):
    """A policy of a user: `orders@us`, with a period instead of the sign."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.tag = properties["suffix.tag"]

    def format_remote_topic(self, source_cluster_alias: str, topic: str) -> str:
        return f"{topic}.{self.tag}.{source_cluster_alias}"

    def topic_source(self, topic: str) -> str | None:
        return topic.rpartition(f".{self.tag}.")[2] if f".{self.tag}." in topic else None

    def upstream_topic(self, topic: str) -> str | None:
        return topic.rpartition(f".{self.tag}.")[0] or None


class Incomplete:
    """It lacks most methods."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.properties = properties

    def topic_source(self, topic: str) -> str | None:
        return topic


def not_built(_properties: Mapping[str, str]) -> ReplicationPolicy:
    """A factory with a defect."""
    raise KeyError("region")


def refused(_properties: Mapping[str, str]) -> ReplicationPolicy:
    """A factory that checks its properties."""
    raise UserError("region is missing")


def _registered(*targets: str) -> Callable[[], list[EntryPoint]]:
    names = [target.rpartition(":")[2] for target in targets]
    return lambda: [
        EntryPoint(name, f"{__name__}:{target}" if ":" not in target else target, ENTRY_POINTS)
        for name, target in zip(names, targets, strict=True)
    ]


@pytest.mark.parametrize(
    ("topic", "source", "upstream", "original"),
    [
        ("orders", None, None, "orders"),
        ("us.orders", "us", "orders", "orders"),
        ("eu.us.orders", "eu", "us.orders", "orders"),
        ("us..orders", "us", ".orders", "orders"),
        (".orders", "", "orders", "orders"),
        ("us.", None, None, "us."),
        ("us...", None, None, "us..."),
        ("us.orders.", "us", "orders.", "orders."),
        (".", None, None, "."),
        ("a-b_c", None, None, "a-b_c"),
    ],
)
def test_names_of_the_default_policy(
    topic: str, source: str | None, upstream: str | None, original: str
) -> None:
    assert DEFAULT.topic_source(topic) == source
    assert DEFAULT.upstream_topic(topic) == upstream
    assert DEFAULT.original_topic(topic) == original


@given(NAMES, NAMES, st.sampled_from([".", "_", "-", "__", ".."]))
def test_a_remote_topic_leads_back_to_its_topic(alias: str, topic: str, separator: str) -> None:
    """Goal: a name is taken apart into what it was made of, unless separators make it ambiguous."""
    policy = DefaultReplicationPolicy(separator=separator)
    remote = policy.format_remote_topic(alias, topic)
    source = policy.topic_source(remote)
    if separator not in f"{alias}{separator[:-1]}" and topic.strip(separator):
        assert (source, policy.upstream_topic(remote)) == (alias, topic)
    if source is not None:
        assert f"{source}{separator}{policy.upstream_topic(remote)}" == remote


@given(NAMES, st.sampled_from([".", "_", "-", "__", ".."]))
def test_the_source_equals_that_of_javas_split(topic: str, separator: str) -> None:
    """Goal: parts are counted as by Pattern.split, which drops empty ones at the end."""
    parts = re.split(re.escape(separator), topic)
    while parts and not parts[-1]:
        parts.pop()
    expected = parts[0] if len(parts) > 1 else None
    assert DefaultReplicationPolicy(separator=separator).topic_source(topic) == expected


@pytest.mark.parametrize(
    ("enabled", "syncs", "checkpoints"),
    [
        (True, "mm2-offset-syncs__us__internal", "us__checkpoints__internal"),
        (False, "mm2-offset-syncs.us.internal", "us.checkpoints.internal"),
    ],
)
def test_internal_topics_have_the_separator_if_enabled(
    enabled: bool, syncs: str, checkpoints: str
) -> None:
    policy = DefaultReplicationPolicy(separator="__", internal_topic_separator_enabled=enabled)
    assert (policy.offset_syncs_topic("us"), policy.checkpoints_topic("us")) == (syncs, checkpoints)
    assert policy.is_checkpoints_topic(checkpoints)
    assert policy.is_mm2_internal_topic(syncs)
    assert policy.heartbeats_topic() == "heartbeats"
    other = DefaultReplicationPolicy(separator="__", internal_topic_separator_enabled=not enabled)
    assert not other.is_checkpoints_topic(checkpoints)
    assert not other.is_mm2_internal_topic(syncs)


@pytest.mark.parametrize(
    ("topic", "mm2", "internal"),
    [
        ("mm2-offset-syncs.us.internal", True, True),
        ("mm2-configs.us.internal", True, True),
        ("us.checkpoints.internal", True, True),
        ("__consumer_offsets", False, True),
        (".hidden", False, True),
        ("app.internal", False, False),
        ("app-internal", False, False),
        ("mm2-configs-us-internal", False, False),
        ("us.mm2-offset-syncs.eu.internal", False, False),
    ],
)
def test_internal_topics(topic: str, mm2: bool, internal: bool) -> None:
    """Goal: only MirrorMaker's and Kafka's own topics are internal, as since KIP-1074."""
    for policy in (DEFAULT, IDENTITY, Suffixed({"suffix.tag": "of"})):
        assert policy.is_mm2_internal_topic(topic) == mm2
        assert policy.is_internal_topic(topic) == internal


def test_heartbeats_are_found_at_any_distance() -> None:
    for policy in (DEFAULT, IDENTITY):
        assert policy.is_heartbeats_topic("heartbeats")
        assert policy.is_heartbeats_topic("eu.us.heartbeats")
        assert not policy.is_heartbeats_topic("us.app-heartbeats")
        assert not policy.is_heartbeats_topic("orders")


def test_the_identity_policy_renames_heartbeats_only() -> None:
    assert IDENTITY.format_remote_topic("us", "orders") == "orders"
    assert IDENTITY.format_remote_topic("us", "heartbeats") == "us.heartbeats"
    assert (IDENTITY.topic_source("orders"), IDENTITY.upstream_topic("orders")) == ("us", "orders")
    assert IDENTITY.topic_source("heartbeats") is None
    assert IDENTITY.upstream_topic("eu.us.heartbeats") == "us.heartbeats"
    assert IdentityReplicationPolicy().topic_source("orders") is None
    assert IDENTITY.checkpoints_topic("us") == "us.checkpoints.internal"


def test_hops_are_counted_along_the_name() -> None:
    assert count_hops(DEFAULT, "c.b.a.heartbeats", "c") == 1
    assert count_hops(DEFAULT, "c.b.a.heartbeats", "a") == 3
    assert count_hops(DEFAULT, "heartbeats", "a") is None
    assert count_hops(DEFAULT, "c.heartbeats", "heartbeats") is None
    assert all_sources(DEFAULT, "c.b.a.heartbeats") == {"a", "b", "c"}


def test_a_policy_that_cannot_prevent_cycles_ends() -> None:
    """Goal: the identity policy names the same source for ever; it is counted once."""
    assert count_hops(IDENTITY, "orders", "us") == 1
    assert count_hops(IDENTITY, "orders", "eu") is None
    assert all_sources(IDENTITY, "orders") == {"us"}


@pytest.mark.parametrize("package", ["", "org.apache.kafka.connect.mirror."])
def test_kafkas_policies_by_name(package: str) -> None:
    properties = {
        "replication.policy.separator": "_",
        "replication.policy.internal.topic.separator.enabled": "False",
        "source.cluster.alias": "us",
        "offset.lag.max": "100",
    }
    separators = {"separator": "_", "internal_topic_separator_enabled": False}
    assert policy_named(
        f"{package}DefaultReplicationPolicy", properties
    ) == DefaultReplicationPolicy(separator="_", internal_topic_separator_enabled=False)
    for name in ("IdentityReplicationPolicy", "LegacyReplicationPolicy"):
        named = {**properties, "replication.policy.class": f"{package}{name}"}
        identity = policy_of(named)
        assert isinstance(identity, IdentityReplicationPolicy)
        assert vars(identity) == {**separators, "source_cluster_alias": "us"}
        assert not has_properties_of_its_own(named)
    assert policy_of({}) == DEFAULT


def test_a_name_without_a_policy_is_refused_before_anything_is_loaded() -> None:
    gone = _registered("no_such_module:Policy")
    assert refused_policy("Policy", gone) is None
    assert refused_policy("org.apache.kafka.connect.mirror.DefaultReplicationPolicy") is None
    assert refused_policy("Mine", gone) == (
        "which 0 installed packages register: expected one of DefaultReplicationPolicy, "
        "IdentityReplicationPolicy, Policy"
    )


def test_a_policy_of_an_installed_package() -> None:
    """Goal: an entry point's class gets the properties, and inherits what it does not define."""
    policy = policy_named("Suffixed", {"suffix.tag": "of"}, _registered("Suffixed"))
    assert policy.format_remote_topic("us", "orders") == "orders.of.us"
    assert policy.original_topic("orders.of.us.of.eu") == "orders"
    assert policy.checkpoints_topic("us") == "us.checkpoints.internal"
    assert policy.offset_syncs_topic("us") == "mm2-offset-syncs.us.internal"
    assert policy.is_heartbeats_topic("heartbeats.of.us")
    assert count_hops(policy, "heartbeats.of.us.of.eu", "us") == 2


def test_a_package_registers_its_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the group and the names are those that Python's packages have on disk."""
    metadata = tmp_path / "acme_policies-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: acme-policies\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(
        f"[{ENTRY_POINTS}]\ncom.acme.Named = acme_policies:Named\n"
    )
    (tmp_path / "acme_policies").with_suffix(".py").write_text(
        "from twinlog import DefaultReplicationPolicy\n"
        "def Named(properties):\n"
        "    return DefaultReplicationPolicy(separator=properties['acme.separator'])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    properties = {"replication.policy.class": "com.acme.Named", "acme.separator": "-"}
    assert policy_of(properties) == DefaultReplicationPolicy(separator="-")


@pytest.mark.parametrize(
    ("name", "registered", "reason"),
    [
        ("com.acme.Policy", (), r"is 'com.acme.Policy', which 0 installed packages register"),
        ("com.acme.Policy", (), r"expected one of DefaultReplicationPolicy, Identity.*; install"),
        ("Suffixed", ("Suffixed", "Suffixed"), "which 2 installed packages register"),
        ("Suffixed", ("Suffixed",), r"cannot load .*:Suffixed: KeyError: 'suffix.tag'"),
        ("Incomplete", ("Incomplete",), r"has no method format_remote_topic, upstream_topic"),
        ("not_built", ("not_built",), r"KeyError: 'region'; correct the package"),
        ("refused", ("refused",), "^region is missing$"),
        ("gone", ("gone",), "cannot load .*: AttributeError"),
        ("Policy", ("no_such_module:Policy",), "cannot load .*: ModuleNotFoundError"),
    ],
)
def test_a_policy_that_cannot_be_used_is_named(
    name: str, registered: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(UserError) as caught:
        policy_named(name, {}, _registered(*registered))
    assert re.search(reason, str(caught.value))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("separator", ["", "::", " ", "é", "./"])
def test_a_separator_that_no_topic_may_contain_is_refused(separator: str) -> None:
    with pytest.raises(UserError, match=r"^replication.policy.separator is .*: expected letters"):
        policy_of({"replication.policy.separator": separator})


def test_a_malformed_switch_is_refused() -> None:
    name = "replication.policy.internal.topic.separator.enabled"
    with pytest.raises(UserError, match=f"^{name} is 'yes': expected true or false$"):
        policy_of({name: "yes"})
