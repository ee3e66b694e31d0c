"""Processes with a lane each (flow_lane.py), for tests that kill them."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

SUPPORT = Path(__file__).parent
_LINES = 60


class Lanes:
    """Processes with a lane each."""

    def __init__(self, servers: str, folder: Path, settings: Mapping[str, str]) -> None:
        self.servers = servers
        self._settings = [f"{name}={value}" for name, value in settings.items()]
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, node: str) -> int:
        """Start a lane; return its process id."""
        with (self._folder / f"{node}.log").open("ab") as log:
            self._processes[node] = subprocess.Popen(
                [sys.executable, "-m", "flow_lane", node, self.servers, *self._settings],
                cwd=SUPPORT,
                stdout=log,
                stderr=log,
            )
        return self._processes[node].pid

    def kill(self, node: str) -> None:
        process = self._processes.pop(node)
        process.kill()
        process.wait(60)

    def logs(self) -> str:
        """The end of each lane's log, for the report of a test that fails."""
        texts = [
            "\n".join([f"-- {log.name}", *log.read_text(errors="replace").splitlines()[-_LINES:]])
            for log in sorted(self._folder.glob("*.log"))
        ]
        return "\n".join(texts)

    def end(self) -> None:
        for node in list(self._processes):
            self.kill(node)


@contextmanager
def lanes(servers: str, folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[Lanes]:
    running = Lanes(servers, folder, settings or {})
    try:
        yield running
    except BaseException as error:
        error.add_note(running.logs())
        raise
    finally:
        running.end()
