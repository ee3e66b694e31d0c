"""The real engine against a model of two clusters; one seed decides everything that happens.

`history.py` writes the source. `checker.py` checks each append to the destination. `lanes.py` runs
engines as processes that freeze and die. `scenario.py` draws the faults from the seed.
`variants.py` holds engines with a planted bug, which the simulation has to find.

    make sim SEED=42        replay one seed
"""
