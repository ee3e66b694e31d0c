"""Exponential backoff with jitter: the one way in which anything is tried again (KIP-144).

Jitter keeps the clients of a restarted broker from retrying in the same millisecond. Randomness is
an argument, as everywhere in pure code.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """The pause after failure 1, 2, ...: doubling from `initial` to `maximum`, in seconds.

    `jitter`: the pause varies by this share of it in both directions.
    """

    initial: float
    maximum: float
    jitter: float = 0.2

    def delay(self, failures: int, random: float = 0.5) -> float:
        """Compute the pause after a number of failures in a row.

        Args:
            failures: how many, at least one.
            random: from 0 to 1; the default is the middle of the range.

        Returns:
            Seconds.
        """
        exponent = min(max(failures - 1, 0), 30)
        limit = min(self.initial * 2.0**exponent, self.maximum)
        return limit * ((1 - self.jitter) + 2 * self.jitter * random)
