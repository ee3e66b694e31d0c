"""The section of docs/benchmarks.md on flows of MirrorMaker 2 files."""

from typing import Final

from tables import Figures, Target, per_gigabyte, table

CONTENDERS: Final = {
    "twinlog": "exact mirror",
    "flow": "flow",
    "mm2-tuned": "MirrorMaker 2, tuned",
    "flow-header": "flow with `InsertHeader`",
    "mm2-header": "MirrorMaker 2, tuned, with `InsertHeader`",
}
NEAR: Final = 0.9
"""The least share of an exact mirror's throughput that an untransformed flow is to have."""

_CPU: Final = per_gigabyte("cpu_seconds")


def flows(figures: Figures) -> str:
    """Return the table of all contenders."""
    head = ["", "records/s", "CPU s/GB", "other programs, cores", "rounds"]
    rows = [
        [
            title,
            figures.shown((name,), "records_per_second"),
            figures.shown((name,), _CPU, ".1f"),
            figures.shown((name,), "others_cores", ".2f"),
            figures.rounds((name,)),
        ]
        for name, title in CONTENDERS.items()
        if (name,) in figures
    ]
    return table(head, rows) if rows else ""


def flows_targets(figures: Figures) -> list[Target]:
    """Return the targets of flows with and without transforms."""
    if any((name,) not in figures for name in CONTENDERS):
        return []
    near = figures.share(("flow",), of=("twinlog",))
    ahead = figures.share(("flow-header",), of=("mm2-header",))
    return [
        Target(
            "a flow without transforms: within 10 % of exact mirroring",
            f"{near:.0%}",
            near >= NEAR,
        ),
        Target(
            "a flow with a transform: not slower than tuned MirrorMaker 2 with the same",
            f"{ahead:.1f} times",
            ahead >= 1,
        ),
    ]
