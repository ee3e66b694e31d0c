"""A client of a schema registry: the requests that Avro's wire format needs.

GET  /schemas/ids/ID                 the schema of an id, which never changes
GET  /subjects/SUBJECT/versions/latest
GET  /subjects/SUBJECT/versions/N    a schema that another one refers to; it never changes
POST /subjects/SUBJECT/versions      register a schema; one that is there keeps its id
POST /subjects/SUBJECT               which version a registered schema has

0 | id (4 bytes, big endian) | Avro's binary encoding        the wire format

Credentials are resolved for each request, so that a changed password needs no restart. There are
few requests: an answer about an id is kept.
"""

import base64
import json
import os
import struct
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import replace
from http.client import HTTPException
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from twinlog.kafka.client.configuration import parse_source, resolve
from twinlog.kafka.client.references import NOTHING, Grants
from twinlog.kafka.errors import UserError
from twinlog.mirror.dataframe_transform import USER_INFO, RegistryAccess

WIRE: Final = struct.Struct(">bI")
MAGIC: Final = 0
_CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_ANSWER_S: Final = 10.0
_HTTPS: Final = {"bootstrap.servers": "registry:443", "security.protocol": "SSL"}
"""What the parser of a broker's TLS settings needs to have; nothing connects to that server."""
_REFUSALS: Final = frozenset({404, 409, 422})
"""Unknown; not compatible with the subject's versions; no valid schema."""
_MAX_DEPTH: Final = 32
"""Of references; a registry takes no circles."""
_DENIALS: Final = frozenset({401, 403})


class RegistryTrouble(Exception):
    """A registry does not answer, or refuses the client; the text says which."""


class RegistryRefusal(Exception):
    """A registry has no such schema, or takes no such one; the text says which."""


class UnsupportedSchema(Exception):
    """An Avro schema has no column type; the text names it."""


class NotAvro(Exception):
    """Bytes are not in the wire format, or do not fit their schema. Holds nothing of them."""


class RegisteredSchema(NamedTuple):
    """A schema as its text in JSON, with its id in one registry."""

    id: int
    text: str
    references: "tuple[SchemaReference, ...]" = ()
    has_rules: bool = False
    """Whether Confluent's registry has rules for it, such as which fields are encrypted."""

    def definitions(self) -> "list[RegisteredSchema]":
        """The schemas that it refers to, each behind those that it refers to itself, and once."""
        found: dict[int, RegisteredSchema] = {}
        for reference in self.references:
            reference.schema.collect(found)
        return list(found.values())

    def collect(self, found: "dict[int, RegisteredSchema]") -> None:
        """Add it to these schemas by id, behind those that it refers to."""
        if self.id not in found:
            for reference in self.references:
                reference.schema.collect(found)
            found[self.id] = self


class SchemaReference(NamedTuple):
    """A schema whose types another one uses by name."""

    name: str
    subject: str
    schema: RegisteredSchema


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Takes a redirect for an error: the password would be sent to wherever it leads."""

    def redirect_request(self, *_: object, **__: object) -> None:
        """No request: the answer is an error."""


class SchemaRegistry:
    """A registry; what it has answered about an id is kept.

    Args:
        access: how it is reached.
        grants: what the properties of `access` may read of this machine.
    """

    def __init__(self, access: RegistryAccess, grants: Grants = NOTHING) -> None:
        self.url = access.url.rstrip("/")
        self.access = replace(access, url=self.url)
        self._grants = grants
        self._by_id: dict[int, RegisteredSchema] = {}
        self._by_version: dict[tuple[str, int], RegisteredSchema] = {}
        self._versions: dict[tuple[str, int], int] = {}  # by subject and the other registry's id

    def schema(self, schema_id: int) -> RegisteredSchema:
        """The schema of an id.

        Raises:
            RegistryRefusal: there is none, or it is of another kind.
            RegistryTrouble: there is no answer.
        """
        if schema_id not in self._by_id:
            answer = self._answer(f"/schemas/ids/{schema_id}")
            self._by_id[schema_id] = self._schema(schema_id, answer)
        return self._by_id[schema_id]

    def latest(self, subject: str) -> RegisteredSchema:
        """The latest version of a subject.

        Raises:
            RegistryRefusal: there is none, or it is of another kind.
            RegistryTrouble: there is no answer.
        """
        answer = self._answer(f"{_path(subject)}/versions/latest")
        return self._schema(int(answer["id"]), answer)

    def register(self, subject: str, schema: RegisteredSchema) -> int:
        """Have a schema in a subject; its id.

        What it refers to is registered before, in subjects of the same names.

        Args:
            subject: the subject.
            schema: of another registry, always the same one.

        Raises:
            RegistryRefusal: it is refused, or has rules, which would be lost.
            RegistryTrouble: there is no answer.
        """
        return int(self._answer(f"{_path(subject)}/versions", self._body(schema))["id"])

    def _body(self, schema: RegisteredSchema) -> Mapping[str, object]:
        """A schema as requests have it, with the versions of this registry.

        Raises:
            RegistryRefusal, RegistryTrouble: see `register`.
        """
        if schema.has_rules:
            raise RegistryRefusal(
                f"schema {schema.id} has a ruleSet: it is not registered in {self.url}, as its "
                "rules are not copied"
            )
        references = []
        for name, subject, referenced in schema.references:
            key = subject, referenced.id
            if key not in self._versions:
                body = self._body(referenced)
                self._answer(f"{_path(subject)}/versions", body)
                self._versions[key] = int(self._answer(_path(subject), body)["version"])
            references.append({"name": name, "subject": subject, "version": self._versions[key]})
        return {"schema": schema.text, **({"references": references} if references else {})}

    def _schema(
        self, schema_id: int, answer: Mapping[str, Any], depth: int = 0
    ) -> RegisteredSchema:
        kind = answer.get("schemaType", "AVRO")
        if kind != "AVRO":
            raise RegistryRefusal(f"schema {schema_id} is of type {kind}: expected AVRO")
        if depth > _MAX_DEPTH:
            raise RegistryRefusal(f"schema {schema_id}: more than {_MAX_DEPTH} nested references")
        references = tuple(
            SchemaReference(
                str(each["name"]),
                str(each["subject"]),
                self._version(str(each["subject"]), int(each["version"]), depth + 1),
            )
            for each in answer.get("references") or ()
        )
        has_rules = any((answer.get("ruleSet") or {}).values())
        return RegisteredSchema(schema_id, str(answer["schema"]), references, has_rules)

    def _version(self, subject: str, version: int, depth: int) -> RegisteredSchema:
        key = subject, version
        if key not in self._by_version:
            answer = self._answer(f"{_path(subject)}/versions/{version}")
            self._by_version[key] = self._schema(int(answer["id"]), answer, depth)
        return self._by_version[key]

    def _answer(self, path: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        request = urllib.request.Request(  # noqa: S310 - the scheme is checked with the properties
            self.url + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Accept": _CONTENT_TYPE, "Content-Type": _CONTENT_TYPE},
        )
        try:
            self._authenticate(request)
            with self._opener().open(request, timeout=_ANSWER_S) as response:
                answer: dict[str, Any] = json.load(response)
        except UserError as error:
            raise RegistryTrouble(
                f"the schema registry {self.url} cannot be asked: {error}"
            ) from error
        except urllib.error.HTTPError as error:
            error.close()  # it is an open response
            text = f"the schema registry {self.url} answers {error.code} to {path}"
            if error.code in _DENIALS:
                text = f"{text}: check {USER_INFO}"
            raise (RegistryRefusal if error.code in _REFUSALS else RegistryTrouble)(text) from error
        except (OSError, ValueError, HTTPException) as error:  # the last one: it was cut off
            raise RegistryTrouble(
                f"the schema registry {self.url} does not answer: {error}"
            ) from error
        return answer

    def _authenticate(self, request: urllib.request.Request) -> None:
        """Add the credentials to a request.

        Raises:
            UserError: they refer to what is missing, or may not be read.
        """
        if self.access.user_info is None:
            return
        text = resolve(USER_INFO, self.access.user_info, os.environ, self._grants)
        encoded = base64.b64encode(text.encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {encoded}")

    def _opener(self) -> urllib.request.OpenerDirector:
        """What opens requests: certificates are read anew, as for each connection to a broker.

        Raises:
            UserError: a file of `ssl.*` cannot be used, or may not be read.
        """
        handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
        if self.url.startswith("https:"):
            tls = {**dict(self.access.tls), **_HTTPS}
            security = parse_source(tls, self._grants).config.security
            assert security.tls is not None
            handlers.append(urllib.request.HTTPSHandler(context=security.tls.context()))
        return urllib.request.build_opener(*handlers)


def _path(subject: str) -> str:
    return f"/subjects/{quote(subject, safe='')}"
