"""The sections of docs/benchmarks.md on production-like clusters and on transactional logs."""

from collections.abc import Sequence
from typing import Final

from results import Run
from tables import Field, Figures, Target, per_gigabyte, table, times

CASES: Final = {
    "replicated": "three brokers, replication factor 3",
    "tls": "TLS on both sides",
    "sasl": "SASL_SSL on both sides",
    "distant": "100 ms to the source",
}
CONTENDERS: Final = {
    "twinlog": "twinlog",
    "twinlog-1": "twinlog, one lane",
    "mm2-tuned": "MirrorMaker 2, tuned",
    "limit": "limit: a bare loop that only appends",
}
LOADS: Final = {"short": "short transactions", "streams": "thirty Streams tasks"}
DRAIN_S: Final = 10.0
GROWTH: Final = 1.5
"""Times by which a bounded lag's median in the second half may exceed that in the first half."""
STEADY: Final = 1000.0
"""Offsets; a lag below that is bounded, whatever it was before."""
LEAST_SHARES: Final = {"1": 0.5, "3": 0.3}
"""Of tuned MirrorMaker 2's rate with transactions, by replication factor."""

_CPU: Final = per_gigabyte("cpu_seconds")


def _cpu_per_record(run: Run) -> float:
    """Microseconds."""
    return float(run["cpu_seconds"]) / float(run["records"]) * 1e6


# ---- production ----------------------------------------------------------------------------------


def production(figures: Figures) -> str:
    """Return a table for each case."""
    head = ["", "records/s", "CPU s/GB", "CPU us/record", "other programs, cores", "rounds"]
    parts = []
    for case, title in CASES.items():
        rows = _rows(figures, case, (_CPU, ".1f"))
        if rows:
            parts += [f"### {title[0].upper()}{title[1:]}", table(head, rows)]
    return "\n\n".join(parts)


def production_targets(figures: Figures) -> list[Target]:
    """Return the targets of each case."""
    targets = []
    for case, title in CASES.items():
        pair = (case, "twinlog"), (case, "mm2-tuned")
        if any(group not in figures for group in pair):
            continue
        ours, theirs = (figures.median(group, "records_per_second") for group in pair)
        cpu, their_cpu = (figures.median(group, _CPU) for group in pair)
        targets += [
            times(
                f"{title}: at least 3 times the throughput of tuned MirrorMaker 2", ours, theirs, 3
            ),
            Target(
                f"{title}: at most a fifth of tuned MirrorMaker 2's CPU per gigabyte",
                f"{cpu / their_cpu:.0%} ({cpu:.1f} s and {their_cpu:.1f} s)",
                5 * cpu <= their_cpu,
            ),
        ]
    return targets


def _rows(figures: Figures, first: str, *more: tuple[Field, str]) -> list[Sequence[str]]:
    return [
        [
            title,
            figures.shown((first, name), "records_per_second"),
            *(figures.shown((first, name), field, form) for field, form in more),
            figures.shown((first, name), _cpu_per_record, ".2f"),
            figures.shown((first, name), "others_cores", ".2f"),
            figures.rounds((first, name)),
        ]
        for name, title in CONTENDERS.items()
        if (first, name) in figures
    ]


# ---- transactions --------------------------------------------------------------------------------


def transactions(figures: Figures, chain: Figures) -> str:
    """Return a table for each replication factor, with the limit of the bare loop."""
    head = ["", "records/s", "CPU us/record", "other programs, cores", "rounds"]
    parts = []
    for replication in LEAST_SHARES:
        rows = _rows(figures, replication)
        if not rows:
            continue
        for lanes, title in (("1", "one bare loop"), ("2", "two bare loops")):
            group = (replication, "8", lanes)
            if group in chain:
                rate = chain.shown(group, lambda run: float(run["transactions_per_second"]) * 10)
                cpu = chain.shown(
                    group, lambda run: float(run["cpu_us_per_transaction"]) / 10, ".2f"
                )
                rows.append([f"{title} of batches and markers", rate, cpu, "", chain.rounds(group)])
        parts += [f"### Replication factor {replication}", table(head, rows)]
    return "\n\n".join(parts)


def transactions_targets(figures: Figures) -> list[Target]:
    """Return the targets of each replication factor."""
    targets = []
    for replication, share in LEAST_SHARES.items():
        pair = (replication, "twinlog"), (replication, "mm2-tuned")
        if any(group not in figures for group in pair):
            continue
        ours, theirs = (figures.median(group, "records_per_second") for group in pair)
        name = f"transactions, replication factor {replication}"
        targets.append(
            Target(
                f"{name}: at least {share:g} of tuned MirrorMaker 2's throughput",
                f"{ours / theirs:.2f}",
                ours >= share * theirs,
            )
        )
        if replication == "1":
            cpu, their_cpu = (figures.median(group, _cpu_per_record) for group in pair)
            targets.append(
                Target(
                    f"{name}: no more CPU per record than tuned MirrorMaker 2",
                    f"{cpu:.1f} us and {their_cpu:.1f} us",
                    cpu <= their_cpu,
                )
            )
    return targets


def live(figures: Figures) -> str:
    """Return the table of producers that write without a limit."""
    head = [
        *("load, replication factor", "transactions/s", "lag, 1st half", "lag, 2nd half"),
        *("highest lag", "seconds to 0", "cores", "rounds"),
    ]
    rows = [
        [
            f"{title}, {replication}",
            *(
                figures.shown((load, replication), field)
                for field in (
                    "transactions_per_second",
                    "lag_median_first_half",
                    "lag_median_second_half",
                    "lag_max",
                )
            ),
            figures.shown((load, replication), "drained_s", ".2f"),
            figures.shown((load, replication), "cores", ".2f"),
            figures.rounds((load, replication)),
        ]
        for load, title in LOADS.items()
        for replication in LEAST_SHARES
        if (load, replication) in figures
    ]
    return table(head, rows) if rows else ""


def live_targets(figures: Figures) -> list[Target]:
    """Return the targets of each load and replication factor."""
    targets = []
    for load, title in LOADS.items():
        for replication in LEAST_SHARES:
            group = (load, replication)
            if group not in figures:
                continue
            name = f"{title}, replication factor {replication}"
            early = figures.median(group, "lag_median_first_half")
            late = figures.median(group, "lag_median_second_half")
            drained = max(figures.all(group, "drained_s"))
            targets += [
                Target(
                    f"{name}: the lag stays bounded",
                    f"{early:,.0f} offsets, then {late:,.0f}",
                    late <= max(STEADY, GROWTH * early),
                ),
                Target(
                    f"{name}: no lag {DRAIN_S:g} s after the producers' end",
                    f"{drained:.1f} s in the longest round",
                    drained <= DRAIN_S,
                ),
            ]
    return targets


def partition_limit(figures: Figures) -> str:
    """Return the table of a single partition's rates."""
    head = ["replication factor", "round trip, ms", "transactions/s", "rounds"]
    rows = [
        [
            group[0],
            f"{float(group[1]):g}",
            figures.shown(group, "transactions_per_second"),
            figures.rounds(group),
        ]
        for group in figures.groups
    ]
    return table(head, rows) if rows else ""


def tls_bytes(figures: Figures) -> str:
    """Return the table of what TLS costs a process."""
    rows = [
        [way, direction, figures.shown((way, direction), "cpu_s_per_gb", ".2f")]
        for way, direction in figures.named
    ]
    return table(["", "direction", "CPU s/GB"], rows) if rows else ""
