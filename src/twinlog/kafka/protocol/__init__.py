"""Kafka's protocol as bytes: frames, and the codecs of the hot path. Pure."""
