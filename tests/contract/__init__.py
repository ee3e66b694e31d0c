"""What twinlog stands on, as one suite that runs on the model and on real brokers.

Each test is a fact about Kafka. On the model it holds the model to the truth; on a real broker it
tells which version does otherwise. All go through the ports, so they test these too.
"""
