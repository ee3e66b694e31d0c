"""Kafka's own message schemas (Apache License 2.0) that tests alone need.

Taken as they are from kafka-clients 4.3.1, `common/message`.
"""
