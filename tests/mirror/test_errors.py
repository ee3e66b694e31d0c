"""KIP-1279's error names."""

import pickle

from twinlog.mirror.errors import MirrorError, MirrorRefused

KIP = {
    "INVALID_MIRROR_NAME",
    "UNKNOWN_MIRROR",
    "TOPIC_ALREADY_IN_MIRROR",
    "TOPIC_NOT_IN_MIRROR",
    "MIRROR_TOPIC_ALREADY_PAUSED",
    "MIRROR_TOPIC_NOT_PAUSED",
    "MIRROR_TOPIC_BEING_REMOVED",
    "MIRROR_NOT_EMPTY",
    "UNKNOWN_TOPIC_OR_PARTITION",
}


def test_all_error_names_of_the_kip_exist() -> None:
    assert set(MirrorError.__members__) >= KIP


def test_an_error_is_one_line_with_name_detail_and_hint() -> None:
    """It survives pickling, as all of twinlog's errors do."""
    error = MirrorError.UNKNOWN_MIRROR.error("mirror m does not exist", hint="create it")
    assert str(error) == "UNKNOWN_MIRROR: mirror m does not exist; create it"
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, MirrorRefused)
    assert (str(copy), copy.kind) == (str(error), error.kind)
