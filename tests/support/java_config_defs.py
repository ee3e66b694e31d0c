"""MirrorMaker 2's own classes in a Java process: the oracle for what its properties mean.

Its definitions are in fields and methods that are not public; reflection reaches them, since the
jars are no Java modules.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import javaproperties
import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway, get_field, launch_gateway
from py4j.protocol import Py4JJavaError
from py4j_errors import errors_of_py4j

from twinlog.java import find_java
from twinlog.kafka.requests.topics import ConfigEntry
from twinlog.local.artifacts import kafka_jars, mirror_maker_jars

VERSION: Final = "4.3.1"
LEGACY_VERSION: Final = "3.9.1"
"""The last line of versions that had the former MirrorMaker."""
_PACKAGE: Final = "org.apache.kafka.connect.mirror."
_RESPONSE: Final = "org.apache.kafka.common.requests.DescribeConfigsResponse"
CONNECTORS: Final = ("Source", "Checkpoint", "Heartbeat")
CLIENT_METHODS: Final = {
    (side, role): f"{side}{role.title()}Config"
    for side in ("source", "target")
    for role in ("consumer", "producer", "admin")
}
_NO_SCAN: Final = {"plugin.discovery": "service_load"}
"""Else MirrorMaker 2 searches all jars for plugins, which takes seconds."""
_ADDED: Final = ("client.id", "enable.auto.commit")
"""What MirrorMaker 2 sets in clients itself."""


class JavaMirrorMaker:
    """MirrorMaker 2's configuration classes."""

    def __init__(self, gateway: JavaGateway) -> None:
        self._gateway = gateway
        self._class = gateway.jvm.java.lang.Class

    def client_names(self) -> set[str]:
        """The connection properties of all clients."""
        return set(self._static("MirrorClientConfig", "CLIENT_CONFIG_DEF").names())

    def role_names(self, role: str) -> set[str]:
        """The properties of Kafka's clients of a role."""
        name = "AdminClient" if role == "admin" else role.title()
        loaded = self._class.forName(f"org.apache.kafka.clients.{role}.{name}Config")
        return set(loaded.getMethod("configNames", self._array("Class")).invoke(None, None))

    def defaults(self, connector: str) -> dict[str, object]:
        """The settings of a connector with their defaults; None: it has none, or null."""
        definition = self._static(f"Mirror{connector}Config", "CONNECTOR_CONFIG_DEF")
        keys = definition.configKeys()
        return {name: self._default(keys[name]) for name in keys}

    def topic_config_defaults(self) -> dict[str, object]:
        """The settings of the filter of topic configurations."""
        keys = self._static(
            "DefaultConfigPropertyFilter$ConfigPropertyFilterConfig", "DEF"
        ).configKeys()
        return {name: self._default(keys[name]) for name in keys}

    def connect_names(self) -> set[str]:
        """The properties of Connect's workers and connectors."""
        runtime = f"{_PACKAGE.removesuffix('mirror.')}runtime."
        crypto = self._class.forName(f"{runtime}distributed.Crypto")
        system = crypto.getField("SYSTEM").get(None)
        worker = self._class.forName(f"{runtime}distributed.DistributedConfig").getDeclaredMethod(
            "config", self._array("Class", crypto)
        )
        worker.setAccessible(True)
        names = set(worker.invoke(None, self._array("Object", system)).names())
        for kind in ("Source", "Sink"):
            definition = self._class.forName(f"{runtime}{kind}ConnectorConfig").getDeclaredMethod(
                "configDef", self._array("Class")
            )
            names |= set(definition.invoke(None, None).names())
        return names

    def topic_config_names(self) -> set[str]:
        """The configurations of topics."""
        fields = self._class.forName("org.apache.kafka.common.config.TopicConfig").getFields()
        return {str(f.get(None)) for f in fields if f.getName().endswith("_CONFIG")}

    def driver_names(self) -> set[str]:
        """The properties that the whole file has, without prefix."""
        method = self._class.forName(f"{_PACKAGE}MirrorMakerConfig").getDeclaredMethod(
            "config", self._array("Class")
        )
        method.setAccessible(True)
        return set(method.invoke(None, None).names())

    def pairs(self, properties: Mapping[str, str]) -> set[tuple[str, str]]:
        """The flows that a file has."""
        pairs = self._file(properties).clusterPairs()
        return {(pair.source(), pair.target()) for pair in pairs}

    def connector(self, properties: Mapping[str, str], source: str, target: str) -> dict[str, str]:
        """The properties of a flow's connectors."""
        connector = self._class.forName(f"{_PACKAGE}MirrorSourceConnector")
        return dict(
            self._file(properties).connectorBaseConfig(self._pair(source, target), connector)
        )

    def worker(self, properties: Mapping[str, str], source: str, target: str) -> dict[str, str]:
        """The properties of a flow's Connect worker."""
        return dict(self._file(properties).workerConfig(self._pair(source, target)))

    def clients(self, connector: Mapping[str, str]) -> dict[tuple[str, str], dict[str, str]]:
        """The properties of a flow's clients, by side and role.

        Args:
            connector: what `connector` returns.
        """
        config = getattr(self._gateway.jvm, f"{_PACKAGE}MirrorSourceConfig")(self._map(connector))
        base = self._class.forName(f"{_PACKAGE}MirrorConnectorConfig")
        string = self._class.forName("java.lang.String")
        results = {}
        for key, name in CLIENT_METHODS.items():
            method = base.getDeclaredMethod(name, self._array("Class", string))
            method.setAccessible(True)
            result = dict(method.invoke(config, self._array("Object", "role")))
            results[key] = {k: v for k, v in result.items() if k not in _ADDED}
        return results

    def remote_topic(self, policy: str, properties: Mapping[str, str], topic: str) -> str:
        """The name of a source's topic on the target."""
        instance = getattr(self._gateway.jvm, policy)()
        instance.configure(self._map(properties))
        return str(instance.formatRemoteTopic(properties["source.cluster.alias"], topic))

    def schedules(self, seconds: int) -> bool:
        """Whether its scheduler accepts an interval."""
        jvm, loaded = self._gateway.jvm, self._class.forName(f"{_PACKAGE}Scheduler")
        text, duration = (
            self._class.forName(f"java.{n}") for n in ("lang.String", "time.Duration")
        )
        constructor = loaded.getDeclaredConstructor(self._array("Class", text, duration))
        constructor.setAccessible(True)
        of_seconds = jvm.java.time.Duration.ofSeconds
        scheduler = constructor.newInstance(self._array("Object", "test", of_seconds(60)))
        try:
            self._call(scheduler, "scheduleRepeatingDelayed", None, of_seconds(seconds), "nothing")
        except Py4JJavaError as error:
            if "IllegalArgumentException" not in str(error):
                raise
            return False
        finally:
            self._call(scheduler, "close")
        return True

    def heartbeats(self, seconds: int, polls: int) -> int:
        """The heartbeats of a task with an interval, in so many polls, which wait for it."""
        properties = {
            "name": "heartbeats",
            "connector.class": f"{_PACKAGE}MirrorHeartbeatConnector",
            "source.cluster.alias": "A",
            "target.cluster.alias": "B",
            "emit.heartbeats.interval.seconds": str(seconds),
        }
        task = getattr(self._gateway.jvm, f"{_PACKAGE}MirrorHeartbeatTask")()
        task.start(self._map(properties))
        return sum(len(task.poll()) for _ in range(polls))

    def config_sources(self) -> list[int]:
        """The numbers of a configuration's sources in answers of brokers."""
        sources = getattr(self._gateway.jvm, f"{_RESPONSE}$ConfigSource").values()
        return [source.id() for source in sources]

    def remote_configs(
        self, settings: Mapping[str, str], entries: Mapping[str, ConfigEntry]
    ) -> tuple[dict[str, str], dict[str, str | None]]:
        """What MirrorMaker 2 does with a topic's configurations on the source.

        Its own methods are called, in the order of `createNewTopics` and of `syncTopicConfigs`.

        Args:
            settings: of the flow.
            entries: the source's answer about the topic.

        Returns:
            The configurations with which it creates the remote topic, and the changes of an
            existing one; None unsets a configuration.
        """
        jvm = self._gateway.jvm
        config_filter = getattr(jvm, f"{_PACKAGE}DefaultConfigPropertyFilter")()
        config_filter.configure(self._map(settings))
        connector = getattr(jvm, f"{_PACKAGE}MirrorSourceConnector")()
        self._set(connector, "configPropertyFilter", config_filter)
        config = jvm.org.apache.kafka.clients.admin.Config(
            [self._entry(name, entry) for name, entry in entries.items()]
        )
        created = self._call(connector, "targetConfig", config, False)
        created = self._call(connector, "configToMap", created)
        # An Admin that stores what it is given, and then fails.
        stored = jvm.java.util.concurrent.atomic.AtomicReference()
        admin = self._class.forName("org.apache.kafka.clients.admin.Admin")
        handler = jvm.java.beans.EventHandler.create(admin, stored, "set", "")
        self._set(connector, "targetAdminClient", handler)
        kept = self._call(connector, "targetConfig", config, True)
        singleton = jvm.java.util.Collections.singletonMap
        with pytest.raises(Py4JJavaError):
            self._call(connector, "incrementalAlterConfigs", singleton("t", kept))
        ((resource, operations),) = dict(stored.get()).items()
        assert resource.name() == "t"
        altered: dict[str, str | None] = {}
        for operation in operations:
            entry, kind = operation.configEntry(), operation.opType().name()
            assert kind in {"SET", "DELETE"}
            altered[entry.name()] = entry.value() if kind == "SET" else None
        return dict(created), altered

    def fullmatch(self, expressions: list[str], name: str) -> bool:
        """Whether a list of expressions matches a name, as MirrorMaker 2's filters do."""
        pattern = self._gateway.jvm.java.util.regex.Pattern.compile("|".join(expressions))
        return bool(pattern.matcher(name).matches())

    def lines(self, data: bytes) -> dict[str, str]:
        """The properties of a file's bytes."""
        properties = self._gateway.jvm.java.util.Properties()
        properties.load(self._gateway.jvm.java.io.ByteArrayInputStream(data))
        return dict(properties)

    def _entry(self, name: str, entry: ConfigEntry) -> Any:
        """An entry as Kafka's client makes it of a broker's answer."""
        sources = getattr(self._gateway.jvm, f"{_RESPONSE}$ConfigSource")
        source = sources.forId(entry.source).source()
        admin = self._gateway.jvm.org.apache.kafka.clients.admin
        flags = (entry.sensitive, entry.read_only)
        kind = getattr(admin, "ConfigEntry$ConfigType").STRING
        return admin.ConfigEntry(name, entry.value, source, *flags, [], kind, None)

    def _set(self, target: Any, name: str, value: object) -> None:
        """Set a field that is not public."""
        field = target.getClass().getDeclaredField(name)
        field.setAccessible(True)
        field.set(target, value)

    def _call(self, target: Any, name: str, *arguments: object) -> Any:
        """Call a method that is not public, and has no other of its name and count of arguments."""
        (method,) = [
            method
            for method in target.getClass().getDeclaredMethods()
            if method.getName() == name and method.getParameterCount() == len(arguments)
        ]
        method.setAccessible(True)
        return method.invoke(target, self._array("Object", *arguments))

    def _file(self, properties: Mapping[str, str]) -> Any:
        return getattr(self._gateway.jvm, f"{_PACKAGE}MirrorMakerConfig")(
            self._map({**properties, **_NO_SCAN})
        )

    def _pair(self, source: str, target: str) -> Any:
        return getattr(self._gateway.jvm, f"{_PACKAGE}SourceAndTarget")(source, target)

    def _map(self, properties: Mapping[str, str]) -> Any:
        # As text: a call for each entry would take most of the time.
        loaded = self._gateway.jvm.java.util.Properties()
        loaded.load(self._gateway.jvm.java.io.StringReader(javaproperties.dumps(properties)))
        return self._gateway.jvm.java.util.HashMap(loaded)

    def _array(self, kind: str, *items: object) -> Any:
        array = self._gateway.new_array(getattr(self._gateway.jvm.java.lang, kind), len(items))
        for index, item in enumerate(items):
            array[index] = item
        return array

    def _static(self, class_name: str, field: str) -> Any:
        found = self._class.forName(f"{_PACKAGE}{class_name}").getDeclaredField(field)
        found.setAccessible(True)
        return found.get(None)

    def _default(self, key: Any) -> object:
        if not key.hasDefault():
            return None
        value = get_field(key, "defaultValue")
        if value is None or isinstance(value, bool | int | float | str):
            return value
        name = value.getClass().getName()
        return value.getName() if name == "java.lang.Class" else list(value)


@contextmanager
def java_mirror_maker() -> Iterator[JavaMirrorMaker]:
    """MirrorMaker 2's classes in a Java process that ends with the context."""
    with _java(mirror_maker_jars(VERSION)) as gateway:
        yield JavaMirrorMaker(gateway)


@contextmanager
def java_include_list() -> Iterator[Callable[[str], str]]:
    """From a value of the former script's `--include` to its expression, in 3.9's own class."""
    with _java(kafka_jars(LEGACY_VERSION)) as gateway:
        yield lambda text: str(
            getattr(gateway.jvm, "org.apache.kafka.server.util.TopicFilter$IncludeList")(text)
        )


@contextmanager
def _java(jars: Path) -> Iterator[JavaGateway]:
    port = launch_gateway(
        classpath=f"{jars}/*",
        java_path=str(find_java().executable),
        javaopts=["-Xmx128m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"],
        die_on_exit=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
    try:
        with errors_of_py4j():
            yield gateway
    finally:
        gateway.shutdown()
