"""A schema registry in this process, with the paths of the real one that twinlog uses."""

import base64
import json
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

NOT_FOUND = 404, {"error_code": 40401, "message": "not found"}
UNAUTHORIZED = 401, {"error_code": 401, "message": "Unauthorized"}


class TinyRegistry:
    """Schemas by id, and the ids of each subject's versions."""

    def __init__(self, first_id: int) -> None:
        self.schemas: dict[int, str] = {}
        self.references: dict[int, list[dict[str, Any]]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.more: dict[int, dict[str, Any]] = {}
        """What else the registry has of a schema, by id."""
        self.requests: list[str] = []
        self.url = ""
        self.user_info: str | None = None
        """`NAME:PASSWORD` that each request has to have."""
        self.tenants: dict[str, TinyRegistry] = {}
        """Registries behind the same URL, by the `NAME:PASSWORD` of their users."""
        self.redirects_to: str | None = None
        """Where all requests are sent instead."""
        self.lacks = 0
        """How many bytes each answer lacks."""
        self._next = first_id

    def add(self, subject: str, schema: object, references: Sequence[dict[str, Any]] = ()) -> int:
        """Register a schema, which has one id in all subjects."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        for each in references:
            assert each["version"] <= len(self.subjects[each["subject"]])
        found = self._known(text, references)
        number = found or self._next
        if not found:
            self._next += 1
            self.schemas[number], self.references[number] = text, list(references)
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def _known(self, text: str, references: Sequence[dict[str, Any]]) -> int:
        """The id of a schema; 0: it has none."""
        for number, one in self.schemas.items():
            if one == text and self.references[number] == list(references):
                return number
        return 0

    def _version(self, subject: str, version: int) -> dict[str, Any]:
        number = self.subjects[subject][version - 1]
        return {"subject": subject, "version": version, "id": number, **self._text(number)}

    def _text(self, number: int) -> dict[str, Any]:
        more = {"references": self.references[number]} if self.references[number] else {}
        return {"schema": self.schemas[number], **more, **self.more.get(number, {})}

    def lets_in(self, authorization: str | None) -> bool:
        """Whether a request with this header may be answered."""
        return self.user_info is None or authorization == _basic(self.user_info)

    def of_user(self, authorization: str | None) -> "TinyRegistry":
        """The registry that answers a request with this header."""
        users = (user for user in self.tenants if authorization == _basic(user))
        return self.tenants.get(next(users, ""), self)

    def answer(self, method: str, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        """The status and the answer to a request."""
        self.requests.append(f"{method} {path}")
        match method, path.strip("/").split("/"):
            case "GET", ["schemas", "ids", number] if int(number) in self.schemas:
                return 200, self._text(int(number))
            case "GET", ["subjects", name, "versions", version] if unquote(name) in self.subjects:
                subject = unquote(name)
                last = len(self.subjects[subject])
                return 200, self._version(subject, last if version == "latest" else int(version))
            case "POST", ["subjects", name, "versions"]:
                references = body.get("references", ())
                return 200, {"id": self.add(unquote(name), body["schema"], references)}
            case "POST", ["subjects", name] if unquote(name) in self.subjects:
                known = self._known(body["schema"], body.get("references", ()))
                versions = self.subjects[unquote(name)]
                if known in versions:
                    return 200, self._version(unquote(name), versions.index(known) + 1)
        return NOT_FOUND


def _basic(user_info: str) -> str:
    return f"Basic {base64.b64encode(user_info.encode()).decode()}"


@contextmanager
def tiny_registry(first_id: int = 1, tls: ssl.SSLContext | None = None) -> Iterator[TinyRegistry]:
    """A registry that answers on a free port, by https with `tls`; ids begin at `first_id`."""
    registry = TinyRegistry(first_id)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply("GET")

        def do_POST(self) -> None:
            self._reply("POST")

        def _reply(self, method: str) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            status, answer = UNAUTHORIZED
            authorization = self.headers.get("Authorization")
            if registry.lets_in(authorization):
                status, answer = registry.of_user(authorization).answer(method, self.path, body)
            data = json.dumps(answer).encode()
            self.send_response(status if registry.redirects_to is None else 302)
            if registry.redirects_to is not None:
                self.send_header("Location", f"{registry.redirects_to}{self.path}")
            self.send_header("Content-Length", str(len(data) + registry.lacks))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    registry.url = f"http{'s' * (tls is not None)}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
