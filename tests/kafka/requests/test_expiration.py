"""How long brokers remember producers and transactional ids."""

from types import SimpleNamespace

from twinlog.kafka.requests.expiration import PRODUCER, TRANSACTIONAL, Expirations, shortest


def broker(**values: str | None) -> dict[str, SimpleNamespace]:
    names = {"producer": PRODUCER, "transactional": TRANSACTIONAL}
    return {names[name]: SimpleNamespace(value=value) for name, value in values.items()}


def test_the_shortest_expiration_of_all_brokers_counts() -> None:
    """Goal: if brokers differ, the shortest time counts."""
    told = shortest([broker(producer="300"), broker(producer="200", transactional="7"), broker()])
    assert told == (200, 7)


def test_before_kafka_3_4_transactional_id_expiration_applies_to_producers() -> None:
    """Goal: a broker without producer.id.expiration.ms goes by transactional.id.expiration.ms."""
    assert shortest([broker(transactional="500")]) == (500, 500)
    assert shortest([broker(producer="300", transactional="100")]) == (300, 100)


def test_unreported_expirations_are_unknown() -> None:
    """Goal: nothing is assumed."""
    assert shortest([broker(), broker(producer=None)]) == Expirations()
    assert shortest([]) == Expirations()
