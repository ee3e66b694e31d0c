"""Twin of twinlog.kafka.log.markers."""

from batch_builders import ABORT, COMMIT, altered, batch, marker, record

from twinlog.kafka.log.batch import CONTROL, batches
from twinlog.kafka.log.markers import aborts, commits


def test_only_the_marker_of_a_transaction_commits_or_aborts() -> None:
    key = (0).to_bytes(2, "big") + COMMIT.to_bytes(2, "big")
    emptied = altered(marker(5, 7, COMMIT), body=b"", num_records=0)
    content = (
        marker(1, 7, COMMIT)
        + marker(2, 7, ABORT)
        + batch([record(3, key=key)])
        + batch([record(4, key=None)], attributes=CONTROL)
        + emptied
    )
    buffer = memoryview(content)
    assert [commits(one, buffer) for one in batches(buffer)] == [True, False, False, False, False]
    assert [aborts(one, buffer) for one in batches(buffer)] == [False, True, False, False, False]
