"""A Kafka library: protocol, connections, requests. It knows nothing about mirrors."""
