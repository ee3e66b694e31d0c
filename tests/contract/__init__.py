"""The facts about Kafka that twinlog relies on: one suite for the model and for real brokers.

On the model, a test shows that the model equals a broker; on a real broker, it shows which version
behaves differently. All tests go through the ports, so they test these too.
"""
