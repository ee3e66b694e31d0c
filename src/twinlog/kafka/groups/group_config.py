"""A member's group, its topic, and the times after which a silent member is expelled."""

from dataclasses import dataclass

from twinlog.kafka.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """The group, the topic, and how soon a silent member is expelled. Times are in seconds."""

    group_id: str
    topic: str
    instance_id: str | None = None
    session_timeout: float = 10.0
    heartbeat_interval: float = 1.0
    rebalance_timeout: float = 60.0

    def __post_init__(self) -> None:
        """Check that the times are consistent."""
        if not 0 < self.heartbeat_interval * 3 <= self.session_timeout <= self.rebalance_timeout:
            raise UserError(
                f"heartbeat interval {self.heartbeat_interval:g} s must be at most a third of "
                f"session timeout {self.session_timeout:g} s, which must be at most rebalance "
                f"timeout {self.rebalance_timeout:g} s"
            )
