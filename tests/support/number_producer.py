"""A producer that writes numbers in transactions, some of which it aborts."""

import random
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaException, Producer

_STEP_S: Final = 60.0
_TRIES: Final = 5


class NumberProducer:
    """Writes numbers to all partitions of a topic until it is ended, number n to n % partitions.

    Args:
        servers: the cluster's addresses.
        topic: the topic.
        partitions: how many it has.
        record: what is written of a number: `value`, and other arguments of `produce`.
        properties: of the producer.
    """

    def __init__(
        self,
        servers: str,
        topic: str,
        partitions: int,
        record: Callable[[int], Mapping[str, Any]],
        properties: Mapping[str, str | int],
    ) -> None:
        self._topic, self._partitions, self._record = topic, partitions, record
        self._properties = {
            "bootstrap.servers": servers,
            "transactional.id": f"{topic}-writer",
            **properties,
        }
        self._stop = threading.Event()
        self._committed: list[int] = []
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        producer = Producer(self._properties)
        producer.init_transactions(120)
        number, rng = 0, random.Random(7)
        while not self._stop.is_set():
            producer.begin_transaction()
            numbers = range(number, number + rng.randint(1, 30))
            for each in numbers:
                partition = each % self._partitions
                producer.produce(self._topic, partition=partition, **self._record(each))
            if rng.random() >= 0.2 and _completed(producer.commit_transaction):
                self._committed += numbers
            else:
                _completed(producer.abort_transaction)
            number = numbers.stop
            self._stop.wait(0.01)

    def end(self) -> list[int]:
        """End it; return the numbers of committed transactions."""
        self._stop.set()
        self._thread.join()
        return self._committed


def _completed(step: Callable[[float], None]) -> bool:
    """Take a step to its end, as often as librdkafka says; False: the transaction is to be aborted.

    A busy broker may answer after the step's time, or have aborted the transaction for its own.
    """
    for _ in range(_TRIES - 1):
        try:
            step(_STEP_S)
        except KafkaException as error:
            if error.args[0].txn_requires_abort():
                return False
            if not error.args[0].retriable():
                raise
        else:
            return True
    step(_STEP_S)
    return True
