"""Parts of docs/benchmarks.md: figures of several rounds, tables, and targets."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import results
from results import Run

Field = Callable[[Run], float]


@dataclass(frozen=True, slots=True)
class Target:
    """A target, the measured result, and whether it meets the target."""

    wanted: str
    found: str
    met: bool


class Figures:
    """The runs of one benchmark, grouped by the fields of `key`."""

    def __init__(self, bench: str, *key: str) -> None:
        self._groups: dict[tuple[str, ...], list[Run]] = {}
        for run in results.load(bench):
            group = tuple(str(run[field]) for field in key)
            self._groups.setdefault(group, []).append(run)

    def __bool__(self) -> bool:
        return bool(self._groups)

    def __contains__(self, group: tuple[str, ...]) -> bool:
        return group in self._groups

    @property
    def groups(self) -> list[tuple[str, ...]]:
        """All groups of numbers, the smallest first."""
        return sorted(self._groups, key=lambda group: tuple(map(float, group)))

    @property
    def named(self) -> list[tuple[str, ...]]:
        """All groups, in the order of their first runs."""
        return list(self._groups)

    def all(self, group: tuple[str, ...], field: str | Field) -> list[float]:
        """The figure of each round of a group."""
        take = field if callable(field) else lambda run: float(run[field])
        return [take(run) for run in self._groups[group]]

    def median(self, group: tuple[str, ...], field: str | Field) -> float:
        """The median of the rounds of a group."""
        return statistics.median(self.all(group, field))

    def share(self, group: tuple[str, ...], of: tuple[str, ...]) -> float:
        """The throughput of one group by that of another, over the rounds that both have run.

        All their records by all their time: rounds of different hours and machines count by what
        they took, and a round never counts for one of the two alone.
        """
        ours, theirs = ({run["round"]: run for run in self._groups[name]} for name in (group, of))
        both = ours.keys() & theirs.keys()
        rates = [
            sum(float(runs[number]["records"]) for number in both)
            / sum(float(runs[number]["seconds"]) for number in both)
            for runs in (ours, theirs)
        ]
        return rates[0] / rates[1]

    def shown(self, group: tuple[str, ...], field: str | Field, form: str = ",.0f") -> str:
        """The median; with several rounds also the lowest and the highest, in brackets."""
        found = self.all(group, field)
        text = f"{statistics.median(found):{form}}"
        return f"{text} ({min(found):{form}} to {max(found):{form}})" if len(found) > 1 else text

    def rounds(self, group: tuple[str, ...]) -> str:
        """The number of rounds of a group."""
        return str(len(self._groups[group]))


def per_gigabyte(field: str, share: float = 1.0) -> Field:
    """CPU seconds per gigabyte; `field` covers a `share` of the records."""
    return lambda run: float(run[field]) / float(run["bytes"]) / share * 1e9


def times(wanted: str, ours: float, theirs: float, least: float) -> Target:
    """Return the target that one figure is at least a multiple of another one."""
    return Target(wanted, f"{ours / theirs:.1f} times", ours >= least * theirs)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; with more than three columns, all but the first hold numbers."""
    numbers = len(head) > 3  # all columns but the first hold numbers
    line = "| --- |" + (" ---: |" if numbers else " --- |") * (len(head) - 1)
    return "\n".join([f"| {' | '.join(head)} |", line, *(f"| {' | '.join(row)} |" for row in rows)])
