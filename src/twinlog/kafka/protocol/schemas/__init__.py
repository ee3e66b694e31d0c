"""Kafka's own message schemas (Apache License 2.0), for messages that kafka-python does not have.

Copied unchanged from kafka-clients 4.3.1, `common/message`.
"""
