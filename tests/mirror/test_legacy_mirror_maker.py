"""Twin of legacy_mirror_maker.py: the flags of the former kafka-mirror-maker.sh as a flow."""

from dataclasses import replace
from typing import Any

import pytest

from twinlog.mirror.copied_topics import copied_topics
from twinlog.mirror.legacy_mirror_maker import (
    LegacyFlow,
    LegacyOptions,
    include_expression,
    legacy_flow,
)
from twinlog.mirror.mirror_maker_lines import LineVerdict
from twinlog.mirror.replication_policy import SAME_NAMES, policy_of

CONSUMER = {"bootstrap.servers": "a:9092", "group.id": "mm", "sasl.jaas.config": "hunter2"}
PRODUCER = {"bootstrap.servers": "b:9092", "linger.ms": "5"}
OPTIONS = LegacyOptions(include="orders,foo-.*")


def mapped(options: LegacyOptions = OPTIONS, **consumer: str) -> LegacyFlow:
    names = {name.replace("_", "."): value for name, value in consumer.items()}
    return legacy_flow(options, {**CONSUMER, **names}, PRODUCER)


def verdicts(result: LegacyFlow) -> dict[str, LineVerdict]:
    return {line.key: line.verdict for line in result.lines}


def test_the_flow_does_what_the_script_does() -> None:
    result = mapped()
    assert result.errors == ()
    flow = result.flow
    assert flow is not None
    assert flow.source_client == CONSUMER
    assert flow.target.producer == PRODUCER
    assert "group.id" not in flow.source.admin
    settings = flow.settings
    assert settings.enabled
    assert settings.selects_topic("foo-1")
    assert not settings.selects_topic("bar")
    assert settings.replication_policy_class == SAME_NAMES
    assert settings.replication_factor == -1
    assert settings.consumer_auto_offset_reset == "latest"
    assert settings.twinlog_takeover == "ignore"
    assert not settings.selects_group("any")
    assert not settings.emits_heartbeats
    assert not settings.emits_checkpoints
    assert not settings.emit_offset_syncs_enabled
    assert not settings.sync_topic_configs_enabled
    assert not settings.sync_topic_acls_enabled


@pytest.mark.parametrize(
    ("text", "expression"),
    [("a, b", "a|b"), ('"a.*"', "a.*"), (" 'x y' ", "xy"), ("a|b", "a|b")],
)
def test_the_expression_of_include(text: str, expression: str) -> None:
    """As Kafka's IncludeList reads it."""
    assert include_expression(text) == expression


@pytest.mark.parametrize("excluded", ["true", "false"])
def test_topics_keep_their_names_and_only_internal_ones_are_left_out(excluded: str) -> None:
    """As in the script: MirrorMaker 2's rules for names do not apply."""
    result = mapped(replace(OPTIONS, include=".*"), exclude_internal_topics=excluded)
    flow = result.flow
    assert flow is not None
    names = [
        *("orders", "app-heartbeats", "heartbeats", "target.x", "target.x-heartbeats", "mm.y"),
        *("__app", ".hidden", "mm2-x.internal", "team.checkpoints.internal"),
    ]
    internal = ["__consumer_offsets", "__transaction_state", "__mirror_config"]
    policy = policy_of(flow.policy_properties)
    assert copied_topics([*names, *internal], flow.settings, policy) == {n: n for n in names}
    key = "--consumer.config: exclude.internal.topics"
    assert verdicts(result).get(key) == (LineVerdict.DIFFERS if excluded == "false" else None)


def test_scripts_with_other_groups_are_other_flows() -> None:
    """Each has its own topics: one would replace the other's otherwise."""
    flows = [mapped(group_id=name).flow for name in ("mm", "mm-2", " ")]
    assert [None if flow is None else flow.source_alias for flow in flows] == [
        *("mm", "mm-2", "source")
    ]
    (error,) = mapped(group_id="a b").errors
    assert error.startswith("--consumer.config: group.id is 'a b': expected letters, digits")
    assert mapped(group_id="a" * 239).errors == ()
    (error,) = mapped(group_id="a" * 240).errors
    assert error.startswith(
        "--consumer.config: group.id: INVALID_MIRROR_NAME: the mirror name has 250 characters"
    )


def test_the_consumer_decides_where_the_flow_begins() -> None:
    flow = mapped(auto_offset_reset="earliest", isolation_level="read_committed").flow
    assert flow is not None
    assert flow.settings.consumer_auto_offset_reset == "earliest"
    assert flow.settings.consumer_isolation_level == "read_committed"


def test_include_precedes_whitelist() -> None:
    result = mapped(LegacyOptions(include="a", whitelist="b"))
    assert result.flow is not None
    assert result.flow.settings.selects_topic("a")
    assert not result.flow.settings.selects_topic("b")
    assert verdicts(result)["--whitelist"] is LineVerdict.NO_EFFECT
    only = mapped(LegacyOptions(whitelist="b"))
    assert only.flow is not None
    assert only.flow.settings.selects_topic("b")


def test_each_flag_is_explained() -> None:
    result = mapped(
        replace(
            OPTIONS,
            num_streams=4,
            abort_on_send_failure="false",
            new_consumer=True,
            rebalance_listener="x.Y",
        )
    )
    assert verdicts(result) == {
        "--include": LineVerdict.USED,
        "--consumer.config": LineVerdict.DIFFERS,
        "--num.streams": LineVerdict.NOT_NEEDED,
        "--offset.commit.interval.ms": LineVerdict.NOT_NEEDED,
        "--abort.on.send.failure": LineVerdict.DIFFERS,
        "--new.consumer": LineVerdict.NO_EFFECT,
        "--consumer.rebalance.listener": LineVerdict.DIFFERS,
    }
    assert not any("hunter2" in line.text for line in result.lines)
    (source,) = [line.text for line in result.lines if line.key == "--consumer.config"]
    assert "only committed records are copied, whatever isolation.level is" in source


@pytest.mark.parametrize(
    ("options", "flag", "text"),
    [
        (
            {"rebalance_listener": "x.Y", "rebalance_listener_args": "a"},
            "--rebalance.listener.args",
            "the listener that it is for is not called",
        ),
        ({"rebalance_listener_args": "a"}, "--rebalance.listener.args", "the script reads it only"),
        (
            {"message_handler": "x.Y", "message_handler_args": "a"},
            "--message.handler.args",
            "it is for --message.handler: Java handlers cannot be run",
        ),
        ({"message_handler_args": "a"}, "--message.handler.args", "the script reads it only with"),
    ],
)
def test_arguments_of_classes_are_explained(options: dict[str, Any], flag: str, text: str) -> None:
    """Goal: no flag is passed over; without its class, the script ignores it, too."""
    result = mapped(LegacyOptions(include="a", **options))
    (line,) = [line for line in result.lines if line.key == flag]
    assert (line.verdict, line.value) == (LineVerdict.NO_EFFECT, "a")
    assert line.text.startswith(text)
    assert (result.flow is None) == ("message_handler" in options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (LegacyOptions(), "--include is missing: expected a regular expression of topics"),
        (LegacyOptions(include=" '' "), "--include is missing"),
        (LegacyOptions(include="("), "--include is '('"),
        (LegacyOptions(include="a", message_handler="x.Y"), "Java handlers cannot be run"),
        (LegacyOptions(include="a", num_streams=0), "--num.streams is 0: expected 1 or more"),
        (LegacyOptions(include="a", abort_on_send_failure="x"), "expected true or false"),
    ],
)
def test_a_flag_that_is_refused(options: LegacyOptions, message: str) -> None:
    result = mapped(options)
    assert result.flow is None
    assert message in result.errors[0]


@pytest.mark.parametrize(
    ("consumer", "message"),
    [
        ({}, "--consumer.config: bootstrap.servers is missing"),
        ({**CONSUMER, "auto.offset.reset": "x"}, "--consumer.config: auto.offset.reset is 'x'"),
        (
            {**CONSUMER, "auto.offset.reset": "none"},
            "--consumer.config: auto.offset.reset is 'none': expected earliest or latest, since",
        ),
        ({**CONSUMER, "interceptor.classes": "x.Y"}, "Java interceptors cannot be run"),
        ({**CONSUMER, "sasl.jaas.config": "${v:/p:k}"}, "sasl.jaas.config has ${v:/p:k}"),
        ({**CONSUMER, "config.providers": "v"}, "config.providers.v.class is ''"),
    ],
)
def test_a_file_that_is_refused(consumer: dict[str, str], message: str) -> None:
    result = legacy_flow(OPTIONS, consumer, PRODUCER)
    assert result.flow is None
    assert message in "; ".join(result.errors)


def test_references_get_the_names_of_twinlog() -> None:
    provider = "org.apache.kafka.common.config.provider.FileConfigProvider"
    consumer = {
        **CONSUMER,
        "config.providers": "v",
        "config.providers.v.class": provider,
        "sasl.jaas.config": "${v:/p:k}",
    }
    flow = legacy_flow(OPTIONS, consumer, PRODUCER).flow
    assert flow is not None
    assert flow.source_client["sasl.jaas.config"] == "${file:/p:k}"
