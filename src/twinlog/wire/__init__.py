"""Bytes and messages of the Kafka protocol, pure: hot-path codecs and the records of the control topics."""
