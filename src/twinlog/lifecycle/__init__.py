"""Creates, pauses, removes, fails back and rebuilds mirrors and their topics."""
