"""The engine of flows that transform records, or write in transactions (KIP-656)."""
