"""A Kafka cluster in memory, as far as a mirror uses it: deterministic, under virtual time.

    loop.py           the event loop
    producers.py      the producer state of a partition's leader
    log.py            a partition's log
    coordinator.py    the transaction coordinator
    cluster.py        topics, leaders and replication
    network.py        the connections between clients and brokers
    ports.py          the two ports of `twinlog.engines.ports` on this model
    world.py          two clusters and an engine

The model is only useful as far as it equals a broker: `tests/contract` runs one suite on both.
"""
