"""Messages about missing rights: which principal lacks which operation on what."""

import pickle

import pytest

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.configuration import Address, ClusterConfig
from twinlog.kafka.client.security import Kerberos, Sasl, Security, Tls
from twinlog.kafka.errors import Retriable, UserError, check


def test_the_principal_without_the_right_is_named() -> None:
    """The right is named, too; a message about anything else names no principal."""
    security = Security(sasl=Sasl(mechanism="PLAIN", username="alice"))
    config = ClusterConfig(bootstrap_servers=(Address("h", 1),), security=security)
    cluster = KafkaCluster(config, name="source")
    with pytest.raises(UserError) as denied, cluster.needing("DESCRIBE", "the group g"):
        check(30, "fetch the offsets of group g")
    assert str(denied.value) == (
        "cluster source: principal User:alice: cannot fetch the offsets of group g: "
        "GROUP_AUTHORIZATION_FAILED (30); grant this principal DESCRIBE on the group g"
    )
    assert pickle.loads(pickle.dumps(denied.value)).principal == "User:alice"
    with pytest.raises(Retriable) as other, cluster.needing("DESCRIBE", "the group g"):
        check(15, "fetch the offsets of group g")
    assert "alice" not in str(other.value)


@pytest.mark.parametrize(
    ("security", "principal"),
    [
        (Security(), "User:ANONYMOUS"),
        (Security(tls=Tls()), "User:ANONYMOUS"),
        (Security(tls=Tls(identity_file="f")), "of the client certificate"),
        (Security(sasl=Sasl(mechanism="OAUTHBEARER")), "of the OAUTHBEARER credentials"),
        (
            Security(sasl=Sasl(mechanism="GSSAPI", kerberos=Kerberos(principal="bob@REALM"))),
            "User:bob",
        ),
    ],
)
def test_the_principal_of_a_configuration(security: Security, principal: str) -> None:
    assert security.principal == principal
