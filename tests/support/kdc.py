"""A KDC of MIT Kerberos on loopback, with its own realm.

The Debian packages are krb5-kdc (krb5kdc, kdb5_util), krb5-admin-server (kadmin.local), krb5-user.
"""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from waiting import until

from twinlog.local.ports import HOST, PortClaim
from twinlog.local.processes import JavaProcess, ProcessGroup, Program

REALM = "TWINLOG.TEST"
SECONDS = 30.0
_CLIENTS = """\
[libdefaults]
  default_realm = {realm}
  dns_lookup_kdc = false
  dns_lookup_realm = false
  dns_canonicalize_hostname = false
  rdns = false
  udp_preference_limit = 1
[realms]
  {realm} = {{
    kdc = {host}:{port}
  }}
"""
_SERVER = """\
[logging]
  kdc = FILE:{home}/asked.log
[kdcdefaults]
  kdc_listen = {host}:{port}
  kdc_tcp_listen = {host}:{port}
[realms]
  {realm} = {{
    database_name = {home}/principal
    key_stash_file = {home}/stash
    supported_enctypes = aes256-cts-hmac-sha1-96:normal
  }}
"""


class Kdc:
    """See the module. `environment` holds the variables with which programs find it."""

    def __init__(self, home: Path, port: int, group: ProcessGroup) -> None:
        self.home = home
        self._port, self._group = port, group
        self._process: JavaProcess | None = None
        words = {"realm": REALM, "host": HOST, "port": port, "home": home}
        self.clients_file = home / "krb5.conf"
        self.clients_file.write_text(_CLIENTS.format(**words))
        server_file = home / "kdc.conf"
        server_file.write_text(_SERVER.format(**words))
        self.environment = {
            "KRB5_CONFIG": str(self.clients_file),
            "KRB5_KDC_PROFILE": str(server_file),
        }
        self.run("kdb5_util", "create", "-s", "-r", REALM, "-P", "of-this-test-alone")

    def run(self, *command: str) -> None:
        """Run one of the programs of Kerberos."""
        program = _program(command[0])
        subprocess.run(
            [program, *command[1:]],
            env={**os.environ, **self.environment},
            check=True,
            capture_output=True,
            timeout=SECONDS,
        )

    def keytab(self, principal: str) -> Path:
        """Create a principal; return the file with its key."""
        file = self.home / f"{principal.replace('/', '-')}.keytab"
        self.run("kadmin.local", "-r", REALM, "-q", f"addprinc -randkey {principal}")
        self.run("kadmin.local", "-r", REALM, "-q", f"ktadd -k {file} {principal}")
        return file

    def start(self) -> None:
        """Serve until `stop`."""
        program = Program(
            argv=[_program("krb5kdc"), "-n", "-r", REALM],
            environment=self.environment,
            log=self.home / "kdc.log",
        )
        self._process = self._group.start(program)

        def serves() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex((HOST, self._port)) == 0

        until(serves, SECONDS, "the KDC")

    def asked(self) -> str:
        """Return the log of requests so far, a line for each ticket."""
        return (self.home / "asked.log").read_text()

    def stop(self) -> None:
        """Stop the KDC."""
        assert self._process is not None
        self._process.kill()


@contextmanager
def kdc(home: Path) -> Iterator[Kdc]:
    """Start a KDC; stop it at the end of the block."""
    claim, group = PortClaim.fresh(1), ProcessGroup()
    try:
        kdc = Kdc(home, claim.ports[0], group)
        kdc.start()
        yield kdc
    finally:
        group.stop()
        claim.close()


def _program(name: str) -> str:
    """Return a program's path: server programs are often not on PATH."""
    places = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
    found = shutil.which(name, path=places)
    assert found is not None, f"{name} is not installed (Debian: krb5-kdc, krb5-admin-server)"
    return found


def krb5_login(options: Mapping[str, str]) -> str:
    """Return a `sasl.jaas.config`."""
    said = " ".join(f'{name}="{value}"' for name, value in options.items())
    return f"com.sun.security.auth.module.Krb5LoginModule required {said};"


def by_keytab(principal: str, keytab: Path) -> dict[str, str]:
    """Return the client properties for a keytab login."""
    options = {"useKeyTab": "true", "keyTab": str(keytab), "principal": f"{principal}@{REALM}"}
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "sasl.jaas.config": krb5_login({**options, "storeKey": "true"}),
    }
