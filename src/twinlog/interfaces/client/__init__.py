"""The client library of MirrorMaker 2 flows."""
