"""The kinds of mirrors, by the value of `mirror.kind`. A new engine is registered here."""

from typing import Final

from twinlog.engines.base import MirrorKind
from twinlog.engines.exact.kind import ExactKind
from twinlog.engines.transactional.kind import TransactionalKind
from twinlog.engines.translated.kind import TranslatedKind
from twinlog.kafka.errors import UserError
from twinlog.mirror.settings import EXACT, KIND, TRANSACTIONAL, TRANSLATED

KINDS: Final[dict[str, MirrorKind]] = {
    EXACT: ExactKind(),
    TRANSLATED: TranslatedKind(),
    TRANSACTIONAL: TransactionalKind(),
}


def kind_named(name: str) -> MirrorKind:
    """The kind of this name.

    Raises:
        UserError: this version has no such kind.
    """
    try:
        return KINDS[name]
    except KeyError:
        raise UserError(
            f"this version of twinlog has no engine for {KIND}={name}",
            hint=f"supported kinds: {', '.join(sorted(KINDS))}",
        ) from None
