"""The section of docs/benchmarks.md on translated offsets."""

import json
from typing import Final

import results
from results import Run
from tables import Target, table

ROWS: Final = {
    ("t", "translate"): "twinlog: `twinlog flows translate`",
    ("t", "group offset"): "twinlog: offsets of groups on the target",
    ("t", "checkpoint"): "twinlog: checkpoints",
    ("m0", "checkpoint"): "MirrorMaker 2, `offset.lag.max` 0: checkpoints",
    ("m100", "checkpoint"): "MirrorMaker 2, `offset.lag.max` 100: checkpoints",
}


def translation() -> str:
    """Return the table, one row for each program and way, over all runs; empty if there is none."""
    runs = results.load("translation")
    head = [
        *("", "positions", "exact", "behind", "ahead", "none"),
        *("records read again: median", "most", "skipped: most"),
    ]
    rows = [
        [title, *_cells([run for run in runs if (run["program"], run["answer"]) == key])]
        for key, title in ROWS.items()
        if runs
    ]
    return "\n\n".join([_log(runs), table(head, rows)]) if runs else ""


def translation_targets() -> list[Target]:
    """Return the targets that each position is translated exactly, and each group follows."""
    runs = [run for run in results.load("translation") if run["program"] == "t"]
    synced = [run for run in runs if run["answer"] == "group offset"]
    wanted = {
        "translation: every random position exactly": [run for run in runs if run not in synced],
        "translation: every offset of a group on the target exactly": synced,
    }
    return [
        Target(text, f"{_sum(some, 'exact'):,} of {_sum(some, 'positions'):,}", _exact(some))
        for text, some in wanted.items()
        if some
    ]


def _exact(runs: list[Run]) -> bool:
    return _sum(runs, "exact") == _sum(runs, "positions")


def _cells(runs: list[Run]) -> list[str]:
    positions, exact = _sum(runs, "positions"), _sum(runs, "exact")
    counts = [f"{_sum(runs, name):,}" for name in ("behind", "ahead", "none")]
    median = max(float(run["median_behind"]) for run in runs)
    most = [
        f"{max(float(run[name]) for run in runs):,.0f}" for name in ("most_behind", "most_ahead")
    ]
    return [f"{positions:,}", f"{exact:,}", *counts, f"{median:,.0f}", *most]


def _sum(runs: list[Run], name: str) -> int:
    return sum(int(run[name]) for run in runs)


def _log(runs: list[Run]) -> str:
    logs = {run["seed"]: run for run in runs}.values()
    kinds: dict[str, int] = {}
    for run in runs:
        for kind, count in json.loads(str(run.get("kinds", "{}"))).items():
            kinds[kind] = kinds.get(kind, 0) + count
    said = ", ".join(f"{count:,} {kind}" for kind, count in sorted(kinds.items()))
    offsets, records, restarts = (
        f"{sum(int(run[name]) for run in logs):,}" for name in ("offsets", "records", "restarts")
    )
    return (
        f"{len(logs)} log(s) with {offsets} offsets, {records} of which are records that the "
        f"cleaner has left, and {restarts} restarts. Answers of `translate`: {said}."
    )
