"""Twin of twinlog.local.truststore: Java itself reads the written file."""

import ssl
import subprocess
from pathlib import Path

from twinlog.java import find_java
from twinlog.local.truststore import encode_jks


def test_java_reads_every_certificate(tmp_path: Path) -> None:
    """Java's own keytool finds as many trusted certificates as Python wrote."""
    certificates = ssl.create_default_context().get_ca_certs(binary_form=True)
    store = tmp_path / "store.jks"
    store.write_bytes(encode_jks(certificates))
    keytool = ["-Duser.language=en", "-m", "java.base/sun.security.tools.keytool.Main", "-list"]
    which = ["-keystore", str(store), "-storetype", "JKS", "-storepass", "changeit"]
    listed = subprocess.run(
        [find_java().executable, *keytool, *which],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert listed.count("trustedCertEntry") == len(certificates)
