"""Why a command is refused, by KIP-1279's names, so that scripts and people find them there.

The KIP does not number the errors yet. twinlog adds `MIRROR_ALREADY_EXISTS` (the KIP demands the
check but names no error), `MIRROR_LOOP`, and `MIRROR_TOPIC_DIVERGED` (the KIP's brokers would
truncate the log).
"""

import enum

from twinlog.kafka.errors import UserError


class MirrorError(enum.Enum):
    """An error's name, and KIP-1279's message for it."""

    INVALID_MIRROR_NAME = "The mirror name does not meet the naming rules"
    MIRROR_ALREADY_EXISTS = "The mirror name is already in use"
    UNKNOWN_MIRROR = "There is no such mirror, or the topic is not assigned to any mirror"
    TOPIC_ALREADY_IN_MIRROR = "The topic is already assigned to a mirror"
    TOPIC_NOT_IN_MIRROR = "The topic does not belong to the specified mirror"
    MIRROR_TOPIC_ALREADY_PAUSED = "The mirror topic is already paused"
    MIRROR_TOPIC_NOT_PAUSED = "The mirror topic is not paused"
    MIRROR_TOPIC_BEING_REMOVED = "The mirror topic is being removed"
    MIRROR_NOT_EMPTY = "The mirror still has active or non-removed topics"
    MIRROR_LOOP = "The source mirrors the topic from this very cluster"
    MIRROR_TOPIC_DIVERGED = "The topic holds records that the source does not have"
    UNKNOWN_TOPIC_OR_PARTITION = "The topic does not exist on the source cluster"
    TOPIC_ALREADY_EXISTS = "The topic exists on the destination cluster and cannot be taken over"
    MIRROR_AUTHORIZATION_FAILED = "Mirror authorization failed"
    INVALID_REGULAR_EXPRESSION = "The regular expression is not valid"

    def error(self, detail: str, *, hint: str = "") -> "MirrorRefused":
        """The exception for it: `NAME: detail; hint`."""
        return MirrorRefused(self, detail, hint)


class MirrorRefused(UserError):
    """A command was refused, and nothing was changed."""

    def __init__(self, kind: MirrorError, detail: str, hint: str = "") -> None:
        super().__init__(f"{kind.name}: {detail}", hint=hint)
        self.kind = kind

    def __reduce__(self) -> tuple[object, ...]:
        """Picklable, as all of twinlog's errors are."""
        detail = self.message.removeprefix(f"{self.kind.name}: ")
        return (MirrorRefused, (self.kind, detail, self.hint))
