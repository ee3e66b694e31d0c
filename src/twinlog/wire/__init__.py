"""Bytes and messages of Kafka's protocol, pure: hot-path codecs, records of the control topics."""
