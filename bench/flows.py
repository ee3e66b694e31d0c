"""Catching up by flows of MirrorMaker 2 files, beside exact mirroring and MirrorMaker 2 itself.

    .venv/bin/python bench/flows.py [--records 2000000] [--round 0 ...] [--only flow ...]
        [--beside PROGRAM]

The load `zstd` of catch_up.py, two clusters of one broker each. Five contenders take turns:

* twinlog: an exact mirror, as in catch_up.py.
* flow: a flow of twinlog (`twinlog flows create`) to a renamed topic, without transforms.
* mm2-tuned: MirrorMaker 2, as in catch_up.py.
* flow-header, mm2-header: flow and MirrorMaker 2 with the transform `InsertHeader`. It needs no
  converter: MirrorMaker 2's source connector hands bytes to its transforms, so that transforms of
  fields fail there.

A flow with transforms writes in transactions, so that up to one offset in a thousand is a marker:
its clock may stop that much too early. Each run is stored in bench/results/flows.json; a round
takes about four minutes.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import results
from catch_up import Bench, line
from harness import (
    PROGRAM,
    Figures,
    catch_up,
    catch_up_loads,
    client,
    forget_mirrors,
    plain,
    preload,
    start_cluster,
    undisturbed,
)
from twinlog.store.offset_log import OFFSETS_TOPIC

NO_TRANSFORM: Mapping[str, str] = MappingProxyType({})
HEADER = {
    "transforms": "header",
    "transforms.header.type": "org.apache.kafka.connect.transforms.InsertHeader",
    "transforms.header.header": "datacentre",
    "transforms.header.value.literal": "north",
}
TEXT_HEADERS = {"header.converter": "org.apache.kafka.connect.storage.StringConverter"}
"""MirrorMaker 2's own converter of headers takes bytes only, and fails at what `HEADER` inserts."""
FLOWS = {"flow": NO_TRANSFORM, "flow-header": HEADER}
CONTENDERS = ("twinlog", "flow", "mm2-tuned", "flow-header", "mm2-header")
SETTINGS = {
    "replication.factor": "1",
    "emit.heartbeats.enabled": "false",
    "emit.checkpoints.enabled": "false",
    "sync.topic.acls.enabled": "false",
}
KEY = ("contender", "round")


async def main() -> None:
    """Run the selected contenders, print a line for each run, store it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--round", action="append", type=int, help="only these; default: 0, 1, 2")
    parser.add_argument("--only", action="append", help="only these contenders")
    parser.add_argument("--beside", type=Path, help="another checkout's flows; printed, not kept")
    options = parser.parse_args()
    load = catch_up_loads(options.records)[0]
    with (
        tempfile.TemporaryDirectory() as name,
        start_cluster() as source,
        start_cluster() as destination,
    ):
        async with client(source) as here, client(destination) as there:
            size = await preload(here, load)
            print(f"{load.records} records, {size / 1e6:.0f} MB", flush=True)
            bench = Bench(plain(source), plain(destination), here, there, load, Path(name), None)
            contenders = options.only or CONTENDERS
            for contender in ("twinlog", "flow"):  # not stored: the brokers compile their code
                await run(bench, contender, PROGRAM, "warm")
            turns = [(contender, PROGRAM) for contender in contenders]
            if options.beside:
                turns += [(each, options.beside) for each in contenders if each in FLOWS]
            for number in options.round or range(3):
                for contender, program in turns:
                    figures = await undisturbed(
                        partial(run, bench, contender, program), lambda found: found.others_cores
                    )
                    beside = program is not PROGRAM
                    label = f"{contender}*" if beside else contender
                    print(line(label, figures, size), flush=True)
                    if not beside:
                        row: results.Run = {
                            "contender": contender,
                            "round": number,
                            "records": load.records,
                            "bytes": size,
                            **asdict(figures),
                        }
                        results.put("flows", row, KEY)


async def run(bench: Bench, contender: str, program: Path, name: str) -> Figures:
    """Run a contender once; `name` is in the names of its topics."""
    if contender in FLOWS:
        return await _flow(bench, FLOWS[contender], program, f"{contender}-{name}")
    if contender == "mm2-header":
        return await replace(bench, connector=HEADER | TEXT_HEADERS).run("mm2-tuned", name)
    return await bench.run(contender, name)


async def _flow(bench: Bench, transforms: Mapping[str, str], program: Path, alias: str) -> Figures:
    load, there = bench.load, bench.there
    topic = f"{alias}.{load.name}"
    settings = [f"{name}={value}" for name, value in {**SETTINGS, **transforms}.items()]
    async with bench.node(program) as pid:
        create = await asyncio.create_subprocess_exec(
            *(str(program), "flows", "create", "--source", alias, "--target", "target"),
            *("--bootstrap-server", bench.destination["bootstrap.servers"]),
            *("--source-bootstrap-server", bench.source["bootstrap.servers"]),
            *("--topics", load.name),
            *(part for each in settings for part in ("--config", each)),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert await create.wait() == 0
        figures = await catch_up(there, topic, load, pid)
    await forget_mirrors(there, [topic, OFFSETS_TOPIC])
    return figures


if __name__ == "__main__":
    asyncio.run(main())
