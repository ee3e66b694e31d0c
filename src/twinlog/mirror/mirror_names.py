"""Names of mirrors, and of flows, which are stored as mirrors.

KIP-1279: the rules are those of a topic's name, and two endings are reserved. The name of a flow
is made of the aliases of its clusters, so aliases that are valid may still give an invalid name.
"""

import re
from typing import Final

from twinlog.mirror.errors import MirrorError

MAX_NAME: Final = 249
"""Characters of a topic name, and so of a mirror name."""
FORBIDDEN_SUFFIXES: Final = (".removed", ".paused")
_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")


def flow_name(source: str, target: str) -> str:
    """The name of the mirror of a flow, from the aliases of its clusters."""
    return f"{source}-to-{target}"


def mirror_name(name: str) -> str:
    """The mirror's name for what a user has written: of a flow `A->B` that is `A-to-B`.

    MirrorMaker 2's files name flows with an arrow, which no mirror name can contain.
    """
    return name.strip().replace("->", "-to-")


def check_name(name: str) -> None:
    """Refuse an invalid mirror name.

    Raises:
        MirrorRefused: INVALID_MIRROR_NAME.
    """
    if trouble := _trouble(name):
        raise MirrorError.INVALID_MIRROR_NAME.error(
            trouble, hint=f"choose another name: up to {MAX_NAME} letters, digits, '.', '_' and '-'"
        )


def wrong_flow_name(source: str, target: str) -> str:
    """Why a flow between clusters with these aliases cannot be created; empty: it can."""
    trouble = _trouble(flow_name(source, target))
    return trouble and (
        f"{MirrorError.INVALID_MIRROR_NAME.name}: {trouble}; the flow {source}->{target} is stored "
        "with this name: choose other aliases"
    )


def _trouble(name: str) -> str:
    if not name or name in {".", ".."}:
        return f"{name!r} is not a valid mirror name"
    if len(name) > MAX_NAME:
        return f"the mirror name has {len(name)} characters, expected at most {MAX_NAME}"
    if not _NAME.fullmatch(name):
        return f"{name!r} has characters other than ASCII letters, digits, '.', '_' and '-'"
    for suffix in FORBIDDEN_SUFFIXES:
        if name.endswith(suffix):
            return f"{name!r} ends with {suffix}, which is reserved by KIP-1279"
    return ""
