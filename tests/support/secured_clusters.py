"""Brokers with an authorizer, and a listener for each kind of authentication.

    PLAINTEXT  ANONYMOUS, a super user: for inter-broker traffic and the tests' own reads
    TLS        TLS without a client certificate
    MUTUAL     TLS with a client certificate; `CN=name` is User:name
    WORD       SASL_PLAINTEXT, every mechanism below
    BOTH       SASL_SSL, every mechanism below

SASL sessions end after 3 s (KIP-368); a client that lives longer has to reauthenticate.
"""

import asyncio
import base64
import hashlib
import json
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.admin import AlterUserScramCredentialsRequest
from waiting import SECONDS, until_async

from twinlog.kafka.acls import Acl
from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.configuration import parse_config
from twinlog.kafka.errors import Retriable, UserError
from twinlog.kafka.requests.acls import create_acls, delete_acls, describe_acls
from twinlog.local.cluster import LocalCluster
from twinlog.local.processes import SHORT_LIVED

MODULE = "org.apache.kafka.common.security.{}LoginModule required"
PLAIN, SCRAM = MODULE.format("plain.Plain"), MODULE.format("scram.Scram")
OAUTH = MODULE.format("oauthbearer.OAuthBearer")
LISTENERS = {"TLS": "SSL", "MUTUAL": "SSL", "WORD": "SASL_PLAINTEXT", "BOTH": "SASL_SSL"}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
SCRAM_NUMBERS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
"""The mechanism numbers of the protocol."""
SESSION_MS = 3000
STALL_S = 0.3
"""A client renews a session when some more than that is left of it."""
PASSWORDS = {
    "alice": "a,=secret",
    "mirror": "mirror-secret",
    "twinlog": "twinlog-secret",
    "operator": "operator-secret",
    "switchover": "switchover-secret",
}
"""The PLAIN passwords of the pair that tests share; each test has its own SCRAM users."""


def openssl(directory: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)


def make_authority(home: Path, name: str) -> None:
    """Create `name.key`, `name.pem`."""
    new = ("req", "-newkey", "rsa:2048", "-nodes")
    openssl(
        home, *new, "-x509", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem"
    )


def make_store(home: Path, name: str, authority: str = "ca") -> Path:
    """Create a key and a certificate for 127.0.0.1, by an authority; in one file, and in two."""
    key, request, certificate = f"{name}.key", f"{name}.csr", f"{name}.crt"
    (home / "names").write_text("subjectAltName=IP:127.0.0.1")
    new = ("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}")
    openssl(home, *new, "-keyout", key, "-out", request)
    sign = ("x509", "-req", "-CA", f"{authority}.pem", "-CAkey", f"{authority}.key", "-days", "2")
    openssl(
        home, *sign, "-CAcreateserial", "-extfile", "names", "-in", request, "-out", certificate
    )
    store = home / f"{name}.store"
    store.write_text((home / key).read_text() + (home / certificate).read_text())
    return store


def token(name: str, seconds: float = 3600) -> str:
    """Return an unsecured token (RFC 7515, alg none), which brokers without a key accept."""
    now = time.time()
    claims = {"sub": name, "iat": now, "exp": now + seconds}
    parts = [json.dumps(part).encode() for part in ({"alg": "none"}, claims)]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts) + "."


class Secured:
    """A cluster of this kind. `home` holds the certificates: ca, broker, client, mirror."""

    def __init__(self, home: Path, local: LocalCluster) -> None:
        self.home, self.local = home, local

    def servers(self, listener: str) -> str:
        return self.local.listener(listener)

    def properties(self, listener: str, properties: Mapping[str, str]) -> dict[str, str]:
        protocol = {"security.protocol": LISTENERS[listener]}
        return {"bootstrap.servers": self.servers(listener), **protocol, **properties}

    def cluster(self, listener: str, properties: Mapping[str, str]) -> KafkaCluster:
        return KafkaCluster(parse_config(self.properties(listener, properties), {}).config)

    def root(self) -> KafkaCluster:
        """Return a client with all rights."""
        servers = {"bootstrap.servers": self.local.bootstrap_servers}
        return KafkaCluster(parse_config(servers, {}).config)

    def as_alice(self) -> dict[str, Any]:
        """Return the client properties of User:alice's applications."""
        return {
            "bootstrap.servers": self.servers("WORD"),
            "security.protocol": LISTENERS["WORD"],
            "sasl.mechanism": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": PASSWORDS["alice"],
            # A principal that may write to no other topic is refused a producer id.
            "enable.idempotence": False,
        }

    def acls(self, topic: str) -> set[str]:
        """Return the ACLs of a topic's literal name."""

        async def run() -> set[str]:
            async with self.root() as cluster:
                found = await describe_acls(cluster) or frozenset()
            return {str(one) for one in found if one.resource_name == topic}

        return asyncio.run(run())

    @property
    def trust(self) -> dict[str, str]:
        return {"ssl.truststore.location": str(self.home / "ca.pem")}

    def certificate(self, name: str) -> dict[str, str]:
        return {**self.trust, "ssl.keystore.location": str(self.home / f"{name}.store")}

    async def set_password(
        self, name: str, password: str, mechanisms: Sequence[str] = MECHANISMS[1:3]
    ) -> None:
        """Set a password, one mechanism a request: a broker takes only one per user (else 92).

        The broker knows the new password some time after the controller has answered.
        """
        salt, rounds = b"0123456789", 4096
        item = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
        async with self.root() as cluster:
            for mechanism in mechanisms:
                digest = f"sha{mechanism.rpartition('-')[2]}"
                user = item(
                    name=name,
                    mechanism=SCRAM_NUMBERS[mechanism],
                    iterations=rounds,
                    salt=salt,
                    salted_password=hashlib.pbkdf2_hmac(digest, password.encode(), salt, rounds),
                )
                request = AlterUserScramCredentialsRequest(deletions=[], upsertions=[user])
                response = await cluster.call(request)
                assert [r.error_code for r in response.results] == [0], response
                await until_async(
                    partial(self._lets_in, sasl(mechanism, name, password)),
                    what=f"{name} with the new password",
                )

    async def _lets_in(self, properties: Mapping[str, str]) -> bool:
        try:
            async with self.cluster("WORD", properties):
                return True
        except (UserError, Retriable):
            return False

    async def delete_user(self, name: str) -> None:
        """Delete a user's SCRAM credentials. Open sessions end at their next reauthentication."""
        item = AlterUserScramCredentialsRequest.ScramCredentialDeletion
        async with self.root() as cluster:
            for mechanism in SCRAM_NUMBERS.values():
                gone = item(name=name, mechanism=mechanism)
                request = AlterUserScramCredentialsRequest(deletions=[gone], upsertions=[])
                response = await cluster.call(request)
                assert [r.error_code for r in response.results] == [0], response

    async def give(self, acls: Collection[Acl]) -> None:
        """Create ACLs, and wait until the broker applies them."""
        async with self.root() as cluster:
            assert set((await create_acls(cluster, list(acls))).values()) == {None}

            async def there() -> bool:
                return set(acls) <= (await describe_acls(cluster) or frozenset())

            await until_async(there)

    async def take(self, acls: Collection[Acl]) -> None:
        """Delete ACLs, and wait until the broker applies that."""
        async with self.root() as cluster:
            assert set((await delete_acls(cluster, list(acls))).values()) == {None}

            async def gone() -> bool:
                return not set(acls) & (await describe_acls(cluster) or frozenset())

            await until_async(gone)


def reach(cluster: KafkaCluster) -> None:
    """Connect, and send a request."""

    async def run() -> None:
        async with cluster:
            assert cluster.cluster_id
            assert (await cluster.refresh()).brokers

    asyncio.run(run())


def refused(cluster: KafkaCluster) -> str:
    """Return the one-line error of a client whose authentication is refused."""
    with pytest.raises(UserError) as caught:
        reach(cluster)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def outlive_sessions(cluster: KafkaCluster) -> None:
    """Check that connections survive their sessions: brokers close unrenewed ones (KIP-368)."""

    async def run() -> None:
        async with cluster:
            await cluster.refresh()
            await outlive(cluster)

    asyncio.run(run())


async def outlive(cluster: KafkaCluster) -> None:
    """Send requests for as long as two sessions last; the connections must not change.

    A machine that stands still for a part of a session may let it expire: then this begins again.
    """
    clock, session = asyncio.get_running_loop().time, SESSION_MS / 1000
    deadline, began = clock() + SECONDS, clock()
    opened, stalled = cluster.counters.opened, -session
    while clock() < began + 2.5 * session:
        last = clock()
        await cluster.refresh()
        await asyncio.sleep(0.05)
        if clock() - last > STALL_S:
            stalled = clock()
        if cluster.counters.opened != opened:
            assert clock() < stalled + session, "a connection has not survived its session"
            assert clock() < deadline, "the machine is too busy"
            began, opened = clock(), cluster.counters.opened


def sasl(mechanism: str, name: str, password: str) -> dict[str, str]:
    """Return a client's properties for a SASL mechanism."""
    module = PLAIN if mechanism == "PLAIN" else SCRAM
    entry = f'{module} username="{name}" password="{password}";'
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": entry}


def oauth(file: Path) -> dict[str, str]:
    """Return a client's properties for OAUTHBEARER; the file holds its token."""
    return {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": file.as_uri(),
    }


@contextmanager
def secured_cluster(home: Path, directory: Path, passwords: Mapping[str, str]) -> Iterator[Secured]:
    """Start a broker; `passwords` are those of PLAIN, by name. Missing certificates are created."""
    if not (home / "ca.pem").exists():
        make_authority(home, "ca")
        for name in ("broker", "client", "mirror"):
            make_store(home, name)
    config = _broker(home, passwords)
    with LocalCluster.start(
        directory=directory, config=config, listeners=LISTENERS, jvm_flags=SHORT_LIVED
    ) as local:
        yield Secured(home, local)


def _broker(home: Path, passwords: Mapping[str, str]) -> dict[str, str]:
    users = " ".join(f'user_{name}="{password}"' for name, password in passwords.items())
    mechanisms = {
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "plain.sasl.jaas.config": f"{PLAIN} {users};",
        "scram-sha-256.sasl.jaas.config": f"{SCRAM};",
        "scram-sha-512.sasl.jaas.config": f"{SCRAM};",
        "oauthbearer.sasl.jaas.config": f'{OAUTH} unsecuredLoginStringClaim_sub="broker";',
    }
    return {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "ssl.principal.mapping.rules": "RULE:^CN=(.*?)$/$1/,DEFAULT",
        "listener.name.mutual.ssl.client.auth": "required",
        "connections.max.reauth.ms": str(SESSION_MS),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(home / "broker.store"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(home / "ca.pem"),
        **{f"listener.name.{n}.{k}": v for n in ("word", "both") for k, v in mechanisms.items()},
    }
