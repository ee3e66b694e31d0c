"""A certificate for brokers on this machine."""

import subprocess
from pathlib import Path

from twinlog.local.ports import HOST


def certificate(folder: Path) -> tuple[Path, Path]:
    """Write a certificate for this address that signs itself, and its key; return both files."""
    files = folder / "certificate.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    command += ["-subj", f"/CN={HOST}", "-addext", f"subjectAltName=IP:{HOST}"]
    command += ["-out", str(files[0]), "-keyout", str(files[1])]
    subprocess.run(command, check=True, capture_output=True)
    return files
