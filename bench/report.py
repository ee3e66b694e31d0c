"""Write docs/benchmarks.md and its plots from bench/results/*.json.

    .venv/bin/python bench/report.py

The prose is in benchmarks.template.md; all figures are filled in by this program: medians of the
rounds, with the lowest and the highest round.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Final

import pygal
from pygal.style import Style

import flow_report
import production_report
import results
import translation_report
from results import Run
from tables import Field, Figures, Target, per_gigabyte, table, times

TEMPLATE: Final = Path(__file__).with_name("benchmarks.template.md")
DOCS: Final = Path(__file__).parents[1] / "docs"
BENCHES: Final = (
    *("catch_up", "delay", "idle", "memory", "failover"),
    *("production", "transactions", "live_transactions", "partition_limit", "marker_chain"),
    "flows",
)
NOT_MEASURED: Final = "(not measured)"
LOADS: Final = {
    "zstd": "1,000-byte records, zstd",
    "uncompressed": "1,000-byte records, uncompressed",
    "single": "100-byte records, one in each batch",
}
CONTENDERS: Final = {
    "limit": "bare loop, one connection",
    "limit-lanes": "bare loop, two connections",
    "twinlog": "twinlog",
    "mm2-tuned": "MirrorMaker 2, tuned",
    "mm2-defaults": "MirrorMaker 2, defaults",
    "none": "no mirror: the consumer at the source",
}
LIMITS: Final = ("limit", "limit-lanes")
MIRRORS: Final = ("twinlog", "mm2-tuned", "mm2-defaults")
DEFAULT_BUFFER: Final = ("64",)
COLOURS: Final = ("#0b6e99", "#d9730d", "#e3b27a", "#9b9a97")

_MOMENTS: Final = ("asked", "command", "stopped", "written")
_FAILOVER_S: Final = {"1": 0.5, "1000": 2.0, "10000": 10.0}


def main() -> None:
    """Write the page and its plots."""
    catch_up, delay = Figures("catch_up", "load", "contender"), Figures("delay", "contender")
    idle, memory = Figures("idle", "partitions"), Figures("memory", "buffer_mb")
    failover = Figures("failover", "partitions")
    production = Figures("production", "case", "contender")
    transactions = Figures("transactions", "replication", "contender")
    live = Figures("live_transactions", "load", "replication")
    flows = Figures("flows", "contender")
    targets = [
        *_rate_targets(catch_up),
        *_delay_targets(delay),
        *_idle_targets(idle),
        *_memory_targets(memory),
        *_failover_targets(failover),
        *production_report.production_targets(production),
        *production_report.transactions_targets(transactions),
        *production_report.live_targets(live),
        *flow_report.flows_targets(flows),
        *translation_report.translation_targets(),
    ]
    targets.sort(key=lambda target: target.met)  # the missed ones first
    missed = sum(not target.met for target in targets)
    rows = [[each.wanted, each.found, "yes" if each.met else "**no**"] for each in targets]
    _plot_rates(catch_up)
    _plot_delays(delay)
    text = Template(TEMPLATE.read_text()).substitute(
        machine=_machine(),
        verdict=f"**{missed} of {len(targets)} targets missed.**" if missed else "All are met.",
        targets=table(["target", "result", "met"], rows),
        catch_up=_rates(catch_up) or NOT_MEASURED,
        delay=_delays(delay) or NOT_MEASURED,
        delay_seconds=_seconds(delay),
        idle=_idle(idle) or NOT_MEASURED,
        memory=_memory(memory) or NOT_MEASURED,
        backlog=_backlog(memory),
        failover=_failover(failover) or NOT_MEASURED,
        production=production_report.production(production) or NOT_MEASURED,
        transactions=production_report.transactions(
            transactions, Figures("marker_chain", "replication", "partitions", "lanes")
        )
        or NOT_MEASURED,
        live=production_report.live(live) or NOT_MEASURED,
        partition_limit=production_report.partition_limit(
            Figures("partition_limit", "replication", "round_trip_ms")
        )
        or NOT_MEASURED,
        tls=production_report.tls_bytes(Figures("tls_bytes", "way", "direction")) or NOT_MEASURED,
        flows=flow_report.flows(flows) or NOT_MEASURED,
        translation=translation_report.translation() or NOT_MEASURED,
        others=_others(),
    )
    (DOCS / "benchmarks.md").write_text(text)


def _machine() -> str:
    machine = next(filter(None, map(results.loaded_machine, BENCHES)))
    return (
        f"Everything runs on one virtual machine: {machine['cores']} cores "
        f"({machine['processor']}), {machine['memory']} of memory, {machine['system']}. Both "
        f"clusters (Apache Kafka {machine['kafka']}, one broker each, 1 GB of heap, Java "
        f"{machine['java']}), the mirror and the measuring programs share these cores. "
        f"Python {machine['python']}; Spark {machine['spark']} in local mode, with "
        f"{machine['cores']} lanes."
    )


def _others() -> str:
    cores = [
        float(run["others_cores"])
        for bench in BENCHES
        for run in results.load(bench)
        if "others_cores" in run
    ]
    return f"{statistics.median(cores):.2f} cores in the median run, {max(cores):.2f} in the worst"


# ---- catching up ---------------------------------------------------------------------------------


_CPU: Final = per_gigabyte("cpu_seconds")
_LATE_CPU: Final = per_gigabyte("late_cpu_seconds", 0.5)


def _rates(figures: Figures) -> str:
    parts = []
    for load, title in LOADS.items():
        groups = {name: (load, name) for name in CONTENDERS if (load, name) in figures}
        if not groups:
            continue
        rows = []
        for name, group in groups.items():
            late = ["", ""]
            if name in MIRRORS:
                late = [
                    f"{figures.median(group, 'late_records_per_second'):,.0f}",
                    f"{figures.median(group, _LATE_CPU):.1f}",
                ]
            rate = figures.shown(group, "records_per_second")
            cpu = figures.shown(group, _CPU, ".1f")
            others = figures.shown(group, "others_cores", ".2f")
            rows.append([CONTENDERS[name], rate, cpu, *late, others, figures.rounds(group)])
        size = figures.median(next(iter(groups.values())), "bytes")
        head = ["", "records/s", "CPU s/GB", "2nd half: records/s", "2nd half: CPU s/GB"]
        head += ["other programs, cores", "rounds"]
        parts += [f"### {title} ({size / 1e6:,.0f} MB)", table(head, rows)]
    return "\n\n".join(parts)


def _rate_targets(figures: Figures) -> list[Target]:
    targets = []
    for load, title in LOADS.items():
        if any((load, name) not in figures for name in MIRRORS):
            continue
        ours, tuned, defaults = (
            figures.median((load, name), "records_per_second") for name in MIRRORS
        )
        cpu, their_cpu = (figures.median((load, name), _CPU) for name in MIRRORS[:2])
        if load == "zstd":
            targets += [
                times(
                    f"{title}: at least 2 times the throughput of tuned MirrorMaker 2",
                    ours,
                    tuned,
                    2,
                ),
                times(
                    f"{title}: at least 4 times that of MirrorMaker 2 with defaults",
                    ours,
                    defaults,
                    4,
                ),
                *(
                    _limit_target(
                        title, name, ours, figures.median((load, name), "records_per_second")
                    )
                    for name in LIMITS
                    if (load, name) in figures
                ),
            ]
        else:
            targets.append(times(f"{title}: not slower than tuned MirrorMaker 2", ours, tuned, 1))
        targets.append(
            Target(
                f"{title}: at most a fifth of tuned MirrorMaker 2's CPU per gigabyte",
                f"{cpu / their_cpu:.0%} ({cpu:.1f} s and {their_cpu:.1f} s)",
                5 * cpu <= their_cpu,
            )
        )
    return targets


def _limit_target(title: str, name: str, ours: float, limit: float) -> Target:
    return Target(
        f"{title}: at least 80 % of the limit ({CONTENDERS[name]})",
        f"{ours / limit:.0%}",
        0.8 * limit <= ours,
    )


def _plot_rates(figures: Figures) -> None:
    loads = [load for load in LOADS if (load, "twinlog") in figures]
    shown = {
        CONTENDERS[name]: [
            round(figures.median((load, name), "records_per_second"))
            if (load, name) in figures
            else None
            for load in loads
        ]
        for name in (*MIRRORS, "limit-lanes")
    }
    titles = [LOADS[load] for load in loads]
    _bars("benchmarks-catch-up.svg", "Catching up: records per second", titles, shown)


# ---- delay ---------------------------------------------------------------------------------------


def _delays(figures: Figures) -> str:
    rows = []
    for name, title in CONTENDERS.items():
        if (name,) in figures:
            delays = [figures.shown((name,), f, ".1f") for f in ("p50_ms", "p99_ms", "max_ms")]
            cores = figures.shown((name,), "cores", ".2f") if name in MIRRORS else ""
            others = figures.shown((name,), "others_cores", ".2f")
            rows.append([title, *delays, cores, others, figures.rounds((name,))])
    head = ["milliseconds", "p50", "p99", "max", "cores", "other programs, cores", "rounds"]
    return table(head, rows) if rows else ""


def _seconds(figures: Figures) -> str:
    """Return the measured seconds of a round."""
    group = ("twinlog",)
    if group not in figures:
        return "few"
    return f"{figures.median(group, 'records') / figures.median(group, 'rate'):.0f}"


def _delay_targets(figures: Figures) -> list[Target]:
    p99 = {name: figures.median((name,), "p99_ms") for name in MIRRORS if (name,) in figures}
    if len(p99) < len(MIRRORS):
        return []
    ours = p99.pop("twinlog")
    told = ", ".join(f"{CONTENDERS[name]}: {value:.0f} ms" for name, value in p99.items())
    return [
        Target("delay: p99 under 250 ms", f"{ours:.0f} ms", ours < 250),
        Target(
            "delay: p99 not above that of the better MirrorMaker 2",
            f"{ours:.0f} ms ({told})",
            ours <= min(p99.values()),
        ),
    ]


def _plot_delays(figures: Figures) -> None:
    names = [name for name in (*MIRRORS, "none") if (name,) in figures]
    fields = ("p50_ms", "p99_ms")
    shown = {
        CONTENDERS[name]: [round(figures.median((name,), field), 1) for field in fields]
        for name in names
    }
    title = "Delay at 2,000 records/s, milliseconds"
    _bars("benchmarks-delay.svg", title, ["p50", "p99"], shown)


# ---- idleness and memory -------------------------------------------------------------------------

_PARTS: Final = ("lanes", "driver", "java")


def _percent(name: str) -> Field:
    return lambda run: float(run[f"{name}_cores"]) * 100


def _idle(figures: Figures) -> str:
    head = [
        "partitions",
        "lanes, % of a core",
        "driver, % of a core",
        "Spark's JVM, % of a core",
        "lanes, MB",
        "driver, MB",
        "JVM, MB",
        "rounds",
    ]
    rows = [
        [
            f"{int(group[0]):,}",
            *(figures.shown(group, _percent(part), ".2f") for part in _PARTS),
            *(figures.shown(group, f"{part}_mb") for part in _PARTS),
            figures.rounds(group),
        ]
        for group in figures.groups
    ]
    return table(head, rows) if rows else ""


def _idle_targets(figures: Figures) -> list[Target]:
    def beside_spark(run: Run) -> float:
        return float(run["driver_cores"]) + float(run["lanes_cores"])

    if ("1000",) not in figures:
        return []
    share = figures.median(("1000",), beside_spark)
    wanted = "1,000 idle partitions: under 5 % of one core, without Spark itself"
    return [Target(wanted, f"{share:.1%} (lanes and driver)", share < 0.05)]


def _memory(figures: Figures) -> str:
    def growth(run: Run) -> float:
        return (float(run["highest_mb"]) - float(run["idle_mb"])) / _megabytes(run)

    head = ["buffer", "before", "highest in first quarter", "highest", "growth", "rounds"]
    rows = [
        [
            f"{group[0]} MiB",
            *(figures.shown(group, field) for field in ("idle_mb", "early_mb", "highest_mb")),
            figures.shown(group, growth, ".1f"),
            figures.rounds(group),
        ]
        for group in figures.groups
    ]
    return table(head, rows) if rows else ""


def _megabytes(run: Run) -> float:
    return float(run["buffer_mb"]) * 2**20 / 1e6


def _backlog(figures: Figures) -> str:
    if not figures:
        return "a backlog"
    return f"{figures.median(figures.groups[0], 'bytes') / 1e9:.1f} GB"


def _memory_targets(figures: Figures) -> list[Target]:
    if DEFAULT_BUFFER not in figures:
        return []
    early, highest = (figures.median(DEFAULT_BUFFER, f) for f in ("early_mb", "highest_mb"))
    found = (
        f"{highest:.0f} MB with a buffer of 64 MiB, {early:.0f} MB of it reached in the first "
        f"quarter of {_backlog(figures)}"
    )
    return [Target("memory of a lane: bounded for any backlog", found, highest < 1.2 * early)]


# ---- failover ------------------------------------------------------------------------------------


def _failover(figures: Figures) -> str:
    head = [
        *("partitions", "request stored", "command ended", "all STOPPED"),
        *("first write acknowledged", "rounds"),
    ]
    rows = [
        [
            f"{int(group[0]):,}",
            *(figures.shown(group, f"{moment}_s", ".2f") for moment in _MOMENTS),
            figures.rounds(group),
        ]
        for group in figures.groups
    ]
    return table(head, rows) if rows else ""


def _failover_targets(figures: Figures) -> list[Target]:
    found = [
        (count, most, figures.median((count,), "written_s"))
        for count, most in _FAILOVER_S.items()
        if (count,) in figures
    ]
    return [
        Target(
            f"failover, source dead, {int(count):,} partition(s): first write under {most:g} s",
            f"{seconds:.2f} s",
            seconds < most,
        )
        for count, most, seconds in found
    ]


# ---- tables and plots ----------------------------------------------------------------------------


def _bars(
    file: str, title: str, groups: Sequence[str], series: Mapping[str, Sequence[float | None]]
) -> None:
    """Draw horizontal bars, in groups, each with its figure."""
    chart = pygal.HorizontalBar(
        title=title,
        style=Style(
            colors=COLOURS,
            background="white",
            plot_background="white",
            font_family="sans-serif",
            title_font_size=16,
            legend_font_size=12,
            label_font_size=12,
            value_font_size=11,
            value_colors=("black",) * len(series),
        ),
        width=860,
        height=130 + 28 * len(groups) * len(series),
        js=[],
        legend_at_bottom=True,
        legend_at_bottom_columns=2,
        print_values=True,
        print_values_position="top",
        show_y_guides=False,
        show_x_labels=False,  # the bars have their numbers
        formatter=lambda value: "" if value is None else f"{value:,}",
        disable_xml_declaration=True,
    )
    chart.uuid = Path(file).stem  # otherwise it is a new one each time
    # pygal draws from the bottom up.
    chart.x_labels = list(reversed(groups))
    for name, values in series.items():
        chart.add(name, list(reversed(values)))
    (DOCS / file).write_text(chart.render() + "\n")


if __name__ == "__main__":
    main()
