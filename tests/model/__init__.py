"""A Kafka cluster in memory, as far as a mirror meets one: deterministic, under virtual time.

`loop.py` is the event loop, `producers.py` what a partition's leader remembers of producers,
`log.py` a partition's log, `coordinator.py` the transaction coordinator, `cluster.py` topics,
leaders and replication, `network.py` what lies between a client and them, and `ports.py` the two
ports of `twinlog.engines.exact.ports` on all that. `world.py` puts two of them beside an engine.

The model is only as good as it is like a broker: `tests/contract` runs one suite on both.
"""
