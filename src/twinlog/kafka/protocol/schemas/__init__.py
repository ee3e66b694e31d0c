"""Kafka's own message schemas (Apache License 2.0), of messages that kafka-python does not have.

Taken as they are from kafka-clients 4.3.1, `common/message`.
"""
