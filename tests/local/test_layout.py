"""Twin of twinlog.local.layout: nodes, roles and properties."""

from pathlib import Path

import javaproperties
import pytest

from twinlog.local import layout
from twinlog.local.errors import LocalError


def _properties(brokers: int, **overrides: str) -> dict[int, dict[str, str]]:
    ports = tuple(range(20000, 20000 + layout.port_count(brokers)))
    nodes = layout.plan_nodes(brokers, ports, Path("/x y"))
    return {
        node.node_id: javaproperties.loads(layout.render_properties(node, nodes, overrides))
        for node in nodes
    }


def test_one_broker_is_its_own_controller() -> None:
    """One process has both roles."""
    assert {node: text["process.roles"] for node, text in _properties(1).items()} == {
        1: "broker,controller"
    }


def test_three_brokers_have_a_separate_controller() -> None:
    """All three may then be killed while the controller lives."""
    properties = _properties(3)
    assert {node: text["process.roles"] for node, text in properties.items()} == {
        100: "controller",
        1: "broker",
        2: "broker",
        3: "broker",
    }
    assert {text["controller.quorum.voters"] for text in properties.values()} == {
        "100@127.0.0.1:20000"
    }


@pytest.mark.parametrize(("brokers", "replicas", "least"), [(1, 1, 1), (2, 2, 1), (3, 3, 2)])
def test_internal_topics_tolerate_one_lost_broker(brokers: int, replicas: int, least: int) -> None:
    """Transactions go on while one broker is down, if there are two or more."""
    for text in _properties(brokers).values():
        assert int(text["transaction.state.log.replication.factor"]) == replicas
        assert int(text["transaction.state.log.min.isr"]) == least
        assert int(text["offsets.topic.replication.factor"]) == replicas


def test_each_broker_has_each_listener_at_its_own_port() -> None:
    """Each broker has each listener at a port of its own, and the controller has none of them."""
    protocols = {"WORD": "SASL_PLAINTEXT", "TLS": "SSL"}
    ports = range(20000, 20000 + layout.port_count(2, 2))
    nodes = layout.plan_nodes(2, ports, Path("/x"), protocols)
    found = {
        node.node_id: javaproperties.loads(layout.render_properties(node, nodes, {}, protocols))
        for node in nodes
    }
    at = "://127.0.0.1:"
    assert {node: text["listeners"] for node, text in found.items()} == {
        100: f"CONTROLLER{at}20000",
        1: f"PLAINTEXT{at}20001,WORD{at}20003,TLS{at}20004",
        2: f"PLAINTEXT{at}20002,WORD{at}20005,TLS{at}20006",
    }
    protocol_map = found[1]["listener.security.protocol.map"]
    assert protocol_map == "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,WORD:SASL_PLAINTEXT,TLS:SSL"


def test_listeners_behind_proxies_advertise_the_proxy_port() -> None:
    """Their clients get the proxy's port; other clients and the voters get unchanged ports."""
    protocols = {"PROXIED": "PLAINTEXT", "TLS": "SSL"}
    ports = range(20000, 20000 + layout.port_count(2, 2, proxied=1))
    nodes = layout.plan_nodes(2, ports, Path("/x"), protocols, proxied=["PROXIED"])
    found = {
        node.node_id: javaproperties.loads(layout.render_properties(node, nodes, {}, protocols))
        for node in nodes
    }
    at = "://127.0.0.1:"
    assert found[1]["listeners"] == f"PLAINTEXT{at}20001,PROXIED{at}20003,TLS{at}20004"
    assert {node: text.get("advertised.listeners") for node, text in found.items()} == {
        100: None,
        1: f"PLAINTEXT{at}20001,PROXIED{at}20007,TLS{at}20004",
        2: f"PLAINTEXT{at}20002,PROXIED{at}20008,TLS{at}20006",
    }


def test_node_id_placeholders_in_properties_are_replaced() -> None:
    """Each node has its own value, for example as its rack."""
    found = _properties(2, **{"broker.rack": "rack-{node}"})
    assert {node: text["broker.rack"] for node, text in found.items()} == {
        100: "rack-100",
        1: "rack-1",
        2: "rack-2",
    }


def test_user_properties_override_defaults() -> None:
    """Command-line values replace the defaults, and special characters survive."""
    text = _properties(1, **{"auto.create.topics.enable": "true", "x": "a=b\\c:ü"})[1]
    assert text["auto.create.topics.enable"] == "true"
    assert text["x"] == "a=b\\c:ü"


@pytest.mark.parametrize("version", ["3.9.0", "3.9.1", "4.0.0", "4.3.1", "10.0.0"])
def test_supported_versions_are_accepted(version: str) -> None:
    """All versions that run without ZooKeeper with these properties are offered."""
    layout.check_version(version)


@pytest.mark.parametrize("version", ["3.8.1", "2.8.0", "4", "4.3", "latest", "4.3.1 ", "", "../x"])
def test_unsupported_versions_are_refused(version: str) -> None:
    """The message names the expected versions."""
    with pytest.raises(LocalError, match=r"4\.3\.1|3\.9\.0"):
        layout.check_version(version)


def test_three_separate_controllers_form_a_quorum() -> None:
    """All know each other as voters, and none is a broker."""
    ports = range(20000, 20000 + layout.port_count(3, controllers=3))
    nodes = layout.plan_nodes(3, ports, Path("/x"), controllers=3)
    assert [(node.node_id, node.roles) for node in nodes] == [
        *((number, "controller") for number in (100, 101, 102)),
        *((number, "broker") for number in (1, 2, 3)),
    ]
    used = [port for node in nodes for port in (node.port, node.controller_port) if port]
    assert used == list(ports)
    voters = {
        javaproperties.loads(layout.render_properties(node, nodes, {}))["controller.quorum.voters"]
        for node in nodes
    }
    assert voters == {"100@127.0.0.1:20000,101@127.0.0.1:20001,102@127.0.0.1:20002"}


@pytest.mark.parametrize(
    ("brokers", "controllers"), [(-1, 1), (0, 1), (4, 1), (3, 0), (3, 4), (1, 3)]
)
def test_unsupported_cluster_sizes_are_refused(brokers: int, controllers: int) -> None:
    """The message names the possible sizes."""
    with pytest.raises(LocalError, match=r"expected 1 to [13]$"):
        layout.check_size(brokers, controllers)
