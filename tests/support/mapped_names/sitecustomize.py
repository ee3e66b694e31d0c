"""Leads host names to other addresses, in each Python process that has this folder in `PYTHONPATH`.

So a command runs with an address that no resolver here knows, such as one of a published file, and
nothing of the command or the file is changed. `ADDRESSES` is read from the environment, which child
processes inherit: JSON, `{"HOST:PORT": "HOST:PORT"}`. Python imports `sitecustomize` at its start.
"""

import json
import os
import socket
from typing import Any

ADDRESSES = "TWINLOG_TEST_ADDRESSES"

_mapped: dict[str, str] = json.loads(os.environ.get(ADDRESSES, "{}"))
_resolve = socket.getaddrinfo


def _resolve_mapped(host: Any, port: Any, *arguments: Any, **keywords: Any) -> Any:
    known = _mapped.get(f"{host}:{port}")
    if known is not None:
        host, _, port = known.rpartition(":")
    return _resolve(host, port, *arguments, **keywords)


socket.getaddrinfo = _resolve_mapped
