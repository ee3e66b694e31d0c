"""The former MirrorMaker (`kafka-mirror-maker.sh`, removed in Kafka 4.0) as a flow.

It was a consumer group of the source and a producer for the target, in one process. Its flags and
two properties files become one flow that does what the script did and no more:

| the script of 3.9 | the flow |
| --- | --- |
| `--include`: `,` means or; spaces and surrounding quotes do not count | `topics` |
| topics keep their names; brokers' internal ones are left out | `SameNamesPolicy` |
| instances with one `group.id` share the topics, others have their own | the source's alias |
| begins at `auto.offset.reset`, which is `latest` by default | the same |
| copies no configurations, ACLs, groups; writes no heartbeats | all off |
| topics are created by the target's `auto.create.topics.enable` | `replication.factor` -1 |

What cannot be the same is reported: a record's partition, the position of the group, records of
aborted and open transactions, and the copies of brokers' internal topics that
`exclude.internal.topics=false` asks for.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from twinlog.kafka.errors import UserError
from twinlog.mirror.config_providers import parse_providers, rewrite
from twinlog.mirror.flow import unsupported_offset_reset
from twinlog.mirror.flow_settings import (
    CONSUMER,
    ISOLATION,
    OFFSET_RESET,
    TAKEOVER,
    FlowSettings,
)
from twinlog.mirror.flow_settings_parser import parse_flow_settings
from twinlog.mirror.mirror_maker_file import ClusterClients, Flow
from twinlog.mirror.mirror_maker_lines import FileLine, LineVerdict
from twinlog.mirror.mirror_maker_names import BOOTSTRAP, CLIENT_NAMES, INTERCEPTORS
from twinlog.mirror.mirror_names import wrong_flow_name
from twinlog.mirror.replication_policy import POLICY_CLASS, SAME_NAMES

SOURCE: Final = "source"
"""The source's alias without a `group.id`."""
TARGET: Final = "target"
EXCLUDE_INTERNAL: Final = "exclude.internal.topics"
GROUP: Final = "group.id"
READ_NAMES: Final = frozenset({EXCLUDE_INTERNAL, OFFSET_RESET, ISOLATION, GROUP})
"""Properties of the consumer that are settings of the flow, or are explained."""
_ALIAS: Final = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)
_OFF: Final = (
    "sync.topic.configs.enabled",
    "sync.topic.acls.enabled",
    "sync.group.offsets.enabled",
    "emit.heartbeats.enabled",
    "emit.checkpoints.enabled",
    "emit.offset-syncs.enabled",
    "heartbeats.replication.enabled",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacyOptions:
    """The script's flags, with its defaults; file names are not part of them."""

    include: str | None = None
    whitelist: str | None = None
    """The former name of `include`, which takes precedence."""
    num_streams: int = 1
    offset_commit_interval_ms: int = 60_000
    abort_on_send_failure: str = "true"
    rebalance_listener: str | None = None
    rebalance_listener_args: str | None = None
    message_handler: str | None = None
    message_handler_args: str | None = None
    new_consumer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacyFlow:
    """What the flags mean."""

    flow: Flow | None
    """None: there are errors."""
    lines: tuple[FileLine, ...]
    """Each flag that was given, explained; their number is 0."""
    errors: tuple[str, ...]


def legacy_flow(
    options: LegacyOptions, consumer: Mapping[str, str], producer: Mapping[str, str]
) -> LegacyFlow:
    """The flow that the script's flags ask for.

    Args:
        options: the flags.
        consumer: the properties of `--consumer.config`: of the source.
        producer: the properties of `--producer.config`: of the target.
    """
    errors = list(_flag_errors(options))
    source = _rewritten("--consumer.config", consumer, errors)
    target = _rewritten("--producer.config", producer, errors)
    alias = source.get(GROUP, "").strip() or SOURCE
    if not _ALIAS.fullmatch(alias):
        errors.append(
            f"--consumer.config: {GROUP} is {alias!r}: expected letters, digits, '.', '_' or '-', "
            "as it names the flow"
        )
    elif trouble := wrong_flow_name(alias, TARGET):
        errors.append(f"--consumer.config: {GROUP}: {trouble}")
    settings = _settings(options, source, alias, errors)
    flow = None
    if settings is not None and not errors:
        flow = Flow(
            source_alias=alias,
            target_alias=TARGET,
            source=_clients(source, consumer=source),
            target=_clients(target, producer=target),
            settings=settings[0],
            values=settings[1],
            policy_properties={POLICY_CLASS: SAME_NAMES},
        )
    return LegacyFlow(flow=flow, lines=tuple(_lines(options, consumer)), errors=tuple(errors))


def include_expression(text: str) -> str:
    """The expression of `--include` (Kafka's `TopicFilter.IncludeList`)."""
    return text.strip().replace(",", "|").replace(" ", "").strip("\"'")


def _settings(
    options: LegacyOptions, consumer: Mapping[str, str], alias: str, errors: list[str]
) -> tuple[FlowSettings, dict[str, str]] | None:
    include = options.whitelist if options.include is None else options.include
    values = {
        "enabled": "true",
        "topics": include_expression(include or ""),
        "topics.exclude": "",
        "groups": "",
        POLICY_CLASS: SAME_NAMES,
        "replication.factor": "-1",
        TAKEOVER: "ignore",  # the script's positions are those of its group, and not Connect's
        CONSUMER + OFFSET_RESET: consumer.get(OFFSET_RESET, "latest"),
        CONSUMER + ISOLATION: consumer.get(ISOLATION, "read_uncommitted"),
        **dict.fromkeys(_OFF, "false"),
    }
    parsed = parse_flow_settings(values, alias, TARGET)
    if isinstance(parsed, FlowSettings):
        if expectation := unsupported_offset_reset(parsed):
            text = values[CONSUMER + OFFSET_RESET]
            errors.append(f"--consumer.config: {OFFSET_RESET} is {text!r}: expected {expectation}")
        return parsed, values
    for bad in parsed:
        name = f"--consumer.config: {bad.name.removeprefix(CONSUMER)}"
        name = "--include" if bad.name == "topics" else name
        errors.append(f"{name} is {values[bad.name]!r}: expected {bad.expectation}")
    return None


def _flag_errors(options: LegacyOptions) -> Iterable[str]:
    include = options.whitelist if options.include is None else options.include
    if include is None or not include_expression(include):
        yield "--include is missing: expected a regular expression of topics"
    if options.message_handler is not None:
        yield (
            f"--message.handler is {options.message_handler!r}: Java handlers cannot be run, and "
            "without it other records would be mirrored"
        )
    if options.num_streams < 1:
        yield f"--num.streams is {options.num_streams}: expected 1 or more"
    if options.abort_on_send_failure.strip().lower() not in {"true", "false"}:
        value = options.abort_on_send_failure
        yield f"--abort.on.send.failure is {value!r}: expected true or false"


def _rewritten(flag: str, properties: Mapping[str, str], errors: list[str]) -> dict[str, str]:
    """A file's properties with twinlog's references; errors are collected."""
    result = {}
    try:
        providers = parse_providers(properties)
    except UserError as error:
        errors.append(f"{flag}: {error.message}")
        return {}
    for name, value in properties.items():
        try:
            result[name] = rewrite(value, providers)
        except UserError as error:
            errors.append(f"{flag}: {name} has {error.message}")
    if BOOTSTRAP not in properties:
        errors.append(f"{flag}: {BOOTSTRAP} is missing: expected HOST:PORT,HOST:PORT,...")
    if properties.get(INTERCEPTORS, "").strip():
        errors.append(
            f"{flag}: {INTERCEPTORS} is {properties[INTERCEPTORS].strip()!r}: Java interceptors "
            "cannot be run, and may change records; remove it if it only monitors"
        )
    return result


def _clients(
    properties: Mapping[str, str],
    consumer: Mapping[str, str] | None = None,
    producer: Mapping[str, str] | None = None,
) -> ClusterClients:
    connection = {name: value for name, value in properties.items() if name in CLIENT_NAMES}
    return ClusterClients(
        consumer=connection if consumer is None else consumer,
        producer=connection if producer is None else producer,
        admin=connection,
    )


def _lines(options: LegacyOptions, consumer: Mapping[str, str]) -> Iterable[FileLine]:
    used, differs, unneeded = LineVerdict.USED, LineVerdict.DIFFERS, LineVerdict.NOT_NEEDED
    include, whitelist = options.include, options.whitelist
    if include is not None:
        yield _line("--include", include, used, "topics that are mirrored, under the same names")
    if whitelist is not None and include is None:
        yield _line("--whitelist", whitelist, used, "the former name of --include")
    elif whitelist is not None:
        yield _line("--whitelist", whitelist, LineVerdict.NO_EFFECT, "--include has precedence")
    yield _line(
        "--consumer.config",
        consumer.get(BOOTSTRAP, "").strip(),
        differs,
        "the source; the flow begins at auto.offset.reset, not at the offsets of the group "
        f"{consumer.get('group.id', '').strip()!r}, and keeps each record's partition, which the "
        "script let the producer choose; only committed records are copied, whatever "
        "isolation.level is",
    )
    if consumer.get(EXCLUDE_INTERNAL, "true").strip().lower() == "false":
        text = "the topics in which brokers keep their own state are never copied"
        yield _line(f"--consumer.config: {EXCLUDE_INTERNAL}", "false", differs, text)
    streams = "twinlog distributes partitions over lanes by their load"
    yield _line("--num.streams", str(options.num_streams), unneeded, streams)
    commits = "twinlog records positions with the data, and commits no offsets on the source"
    interval = str(options.offset_commit_interval_ms)
    yield _line("--offset.commit.interval.ms", interval, unneeded, commits)
    abort = options.abort_on_send_failure
    skips = "true" not in abort.lower()
    yield _line(
        "--abort.on.send.failure",
        abort,
        differs if skips else used,
        "twinlog skips no record: a partition that cannot go on is FAILED, others go on",
    )
    if options.new_consumer:
        yield _line("--new.consumer", None, LineVerdict.NO_EFFECT, "the script ignores it, too")
    if options.rebalance_listener is not None:
        text = "a flow has no consumer group, so nothing rebalances; the class is not called"
        name = options.rebalance_listener
        yield _line("--consumer.rebalance.listener", name, differs, text)
    if options.rebalance_listener_args is not None:
        text = "the listener that it is for is not called"
        if options.rebalance_listener is None:
            text = "the script reads it only with --consumer.rebalance.listener"
        yield _line(
            "--rebalance.listener.args",
            options.rebalance_listener_args,
            LineVerdict.NO_EFFECT,
            text,
        )
    if options.message_handler is not None:
        text = "Java handlers cannot be run"
        yield _line("--message.handler", options.message_handler, LineVerdict.ERROR, text)
    if options.message_handler_args is not None:
        text = "it is for --message.handler: Java handlers cannot be run"
        if options.message_handler is None:
            text = "the script reads it only with --message.handler"
        yield _line(
            "--message.handler.args", options.message_handler_args, LineVerdict.NO_EFFECT, text
        )


def _line(flag: str, value: str | None, verdict: LineVerdict, text: str) -> FileLine:
    return FileLine(number=0, key=flag, value=value, verdict=verdict, text=text)
