"""MirrorMaker 2's own classes, called from Python: the oracle of what claims to be compatible.

A JVM of its own runs Kafka's jars, and py4j, which comes with PySpark, calls them. So no compiler
is needed, only the Java that runs the brokers. Methods that are private to Kafka's package are
called by reflection: `recordKey` and `recordValue`, which encode records.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j_errors import errors_of_py4j

from twinlog.java import find_java
from twinlog.local.artifacts import mirror_maker_jars
from twinlog.local.cluster import DEFAULT_VERSION

PACKAGE: Final = "org.apache.kafka.connect.mirror"


class MirrorMakerJava:
    """A JVM with Kafka's clients and MirrorMaker 2."""

    def __init__(self, gateway: JavaGateway) -> None:
        self._gateway = gateway
        self.jvm: Any = gateway.jvm

    def __getitem__(self, name: str) -> Any:
        """A public class, whose call constructs one; without a package it is MirrorMaker's."""
        found = self.jvm
        for part in (name if "." in name else f"{PACKAGE}.{name}").split("."):
            found = getattr(found, part)
        return found

    def properties(self, values: Mapping[str, str]) -> Any:
        """A Java map."""
        result = self.jvm.java.util.HashMap()
        for key, value in values.items():
            result.put(key, value)
        return result

    def partition(self, topic: str, index: int) -> Any:
        """Kafka's TopicPartition."""
        return self.jvm.org.apache.kafka.common.TopicPartition(topic, index)

    def seconds(self, number: int) -> Any:
        """A duration."""
        return self.jvm.java.time.Duration.ofSeconds(number)

    def encoded(self, record: Any) -> tuple[bytes, bytes]:
        """Key and value, as MirrorMaker 2 writes the record."""
        key, value = (self._invoke(record, name) for name in ("recordKey", "recordValue"))
        return bytes(key), bytes(value)

    def consumed(self, key: bytes, value: bytes) -> Any:
        """A consumer's record, for the static methods `deserializeRecord`."""
        return self["org.apache.kafka.clients.consumer.ConsumerRecord"]("t", 0, 0, key, value)

    def produce(self, servers: str, topic: str, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """Write keys and values with Kafka's producer."""
        clients = "org.apache.kafka.clients.producer"
        serializer = "org.apache.kafka.common.serialization.ByteArraySerializer"
        settings = {"bootstrap.servers": servers, "key.serializer": serializer}
        producer = self[f"{clients}.KafkaProducer"](
            self.properties({**settings, "value.serializer": serializer})
        )
        try:
            for key, value in pairs:
                producer.send(self[f"{clients}.ProducerRecord"](topic, key, value)).get()
        finally:
            producer.close()

    def formatted(self, formatter: str, key: bytes, value: bytes) -> str:
        """What a formatter of kafka-console-consumer prints of a record."""
        target = self.jvm.java.io.ByteArrayOutputStream()
        output = self.jvm.java.io.PrintStream(target, True, "UTF-8")
        self[f"{PACKAGE}.formatters.{formatter}"]().writeTo(self.consumed(key, value), output)
        return str(target.toString("UTF-8")).removesuffix("\n")

    def source_connector(self, source: str, target: str, policy: Any) -> Any:
        """MirrorMaker 2's connector of a flow, which selects topics; it is not started."""
        names = ("SourceAndTarget", "ReplicationPolicy", "TopicFilter", "ConfigPropertyFilter")
        types = self._array(self.jvm.Class, [self._class(name) for name in names])
        constructor = self._class("MirrorSourceConnector").getDeclaredConstructor(types)
        constructor.setAccessible(True)
        filters = self["DefaultTopicFilter"](), self["DefaultConfigPropertyFilter"]()
        arguments = [self["SourceAndTarget"](source, target), policy, *filters]
        return constructor.newInstance(self._array(self.jvm.Object, arguments))

    def is_cycle(self, connector: Any, topic: str) -> bool:
        """Whether a connector leaves a topic out as it came from the target."""
        return bool(self._invoke(connector, "isCycle", topic))

    def _invoke(self, target: Any, name: str, *texts: str) -> Any:
        types = self._array(
            self.jvm.Class, [self.jvm.Class.forName("java.lang.String")] * len(texts)
        )
        method = target.getClass().getDeclaredMethod(name, types)
        method.setAccessible(True)
        return method.invoke(target, self._array(self.jvm.Object, texts))

    def _class(self, name: str) -> Any:
        return self.jvm.Class.forName(f"{PACKAGE}.{name}")

    def _array(self, kind: Any, items: Sequence[Any]) -> Any:
        array = self._gateway.new_array(kind, len(items))
        for index, item in enumerate(items):
            array[index] = item
        return array


@contextmanager
def mirror_maker_java(folder: Path, version: str = DEFAULT_VERSION) -> Iterator[MirrorMakerJava]:
    """Start a JVM, and end it.

    Args:
        folder: for its log.
        version: of Kafka.
    """
    (py4j_jar,) = Path(pyspark.__file__).parent.glob("jars/py4j-*.jar")
    with (folder / "mirror-maker-java.log").open("w") as log:
        port, token, process = launch_gateway(
            jarpath=str(py4j_jar),
            classpath=f"{mirror_maker_jars(version)}/*",
            javaopts=["-Xmx256m", "-XX:TieredStopAtLevel=1"],
            java_path=str(find_java().executable),
            die_on_exit=True,
            redirect_stdout=log,
            redirect_stderr=log,
            enable_auth=True,
            return_proc=True,
        )
        parameters = GatewayParameters(port=port, auth_token=token, auto_convert=True)
        gateway = JavaGateway(gateway_parameters=parameters, java_process=process)
        try:
            with errors_of_py4j():
                yield MirrorMakerJava(gateway)
        finally:
            gateway.shutdown()
            process.stdin.close()  # with die_on_exit, this is what ends it
            process.wait(timeout=120)
