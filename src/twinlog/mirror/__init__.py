"""The domain: states, placement, settings, the plan of a source log. Pure."""
