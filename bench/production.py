"""Catching up between clusters as they are in production: twinlog and MirrorMaker 2.

    .venv/bin/python bench/production.py [--case replicated tls sasl distant] [--records 2000000]
        [--round 0 ...] [--only twinlog ...] [--beside PROGRAM]

The load `zstd` of catch_up.py, in four cases:

* replicated: the destination has three brokers, and the topic three replicas there (acks=all, with
  two of them in sync at least).
* tls: TLS on both sides, of brokers and clients, without client certificates.
* sasl: SASL_SSL with PLAIN on both sides.
* distant: a round trip of 100 ms to the source (relay.py); a connection has at most `WINDOW` bytes
  in flight, as TCP has.

The relay's process shares the two cores with all others. The contenders take turns. Each run is
stored in bench/results/production.json; a case takes about two minutes a round.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import NamedTuple

import results
from catch_up import ONE_LANE, Bench, line
from certificates import certificate
from harness import (
    Properties,
    catch_up_loads,
    client,
    plain,
    preload,
    start_cluster,
    undisturbed,
)
from relay import LISTENER, RELAYED, relaying
from twinlog.local.cluster import LocalCluster

CONTENDERS = {"replicated": ("twinlog", ONE_LANE, "mm2-tuned", "limit")}
"""Of a case; else `DEFAULT_CONTENDERS`. `limit` appends batches that were fetched before."""
WARM_RUNS = {"replicated": ("limit", "twinlog") * 3}
"""Runs that are not stored; else `DEFAULT_WARM_RUNS`. Brokers that have just started compile their
code: three of them on two cores reached their speed after six runs, of 100,000 to 330,000
records/s, and used 31, 14, 11 and 9 CPU seconds for the first four of the mirror's."""
DEFAULT_WARM_RUNS = ("twinlog",)
DEFAULT_CONTENDERS = ("twinlog", "mm2-tuned")
KEY = ("case", "contender", "round")
SECURED = "SECURED"
"""The name of a listener with TLS."""
PLAIN_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
USER, PASSWORD = "mirror", "bench"
ROUND_TRIP_S = 0.1
WINDOW = 4 << 20


class Pair(NamedTuple):
    """Two clusters, and how a contender reaches them."""

    source: LocalCluster
    destination: LocalCluster
    source_properties: Properties
    destination_properties: Properties


async def main() -> None:
    """Run the selected cases and contenders, print a line for each run, store it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", nargs="*", choices=sorted(CASES), default=list(CASES))
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--round", action="append", type=int, help="only these; default: 0, 1, 2")
    parser.add_argument("--only", action="append", help="only these contenders")
    parser.add_argument("--beside", type=Path, help="another checkout's twinlog; printed, not kept")
    options = parser.parse_args()
    for case in options.case:
        with tempfile.TemporaryDirectory() as name, CASES[case](Path(name)) as pair:
            await compare(case, pair, Path(name), options)


async def compare(case: str, pair: Pair, folder: Path, options: argparse.Namespace) -> None:
    """Run the contenders in turns."""
    load = catch_up_loads(options.records)[0]
    async with client(pair.source) as here, client(pair.destination) as there:
        size = await preload(here, load)
        print(f"{case}: {load.records} records, {size / 1e6:.0f} MB", flush=True)
        brokers = len(pair.destination.brokers)
        bench = Bench(
            *(pair.source_properties, pair.destination_properties, here, there, load, folder),
            options.beside,
            replication=brokers,
        )
        beside = ("beside",) if options.beside else ()
        for contender in (*WARM_RUNS.get(case, DEFAULT_WARM_RUNS), *beside):
            await bench.run(contender, "warm")
        for number in options.round or range(3):
            contenders = options.only or CONTENDERS.get(case, DEFAULT_CONTENDERS)
            for contender in (*contenders, *beside):
                figures = await undisturbed(
                    partial(bench.run, contender), lambda found: found.others_cores
                )
                print(line(contender, figures, size), flush=True)
                if contender not in beside:
                    row: results.Run = {
                        "case": case,
                        "contender": contender,
                        "round": number,
                        "records": load.records,
                        "bytes": size,
                        **asdict(figures),
                    }
                    results.put("production", row, KEY)


# ---- cases ---------------------------------------------------------------------------------------


@contextmanager
def replicated(_: Path) -> Iterator[Pair]:
    """Three brokers on the destination."""
    with (
        start_cluster() as source,
        start_cluster(3, config={"min.insync.replicas": "2"}) as destination,
    ):
        yield Pair(source, destination, plain(source), plain(destination))


@contextmanager
def tls(folder: Path) -> Iterator[Pair]:
    """TLS on both sides."""
    with _secured(folder, "SSL", {}, {}) as pair:
        yield pair


@contextmanager
def sasl(folder: Path) -> Iterator[Pair]:
    """SASL_SSL with PLAIN on both sides."""
    name = f"listener.name.{SECURED.lower()}"
    brokers = {
        f"{name}.sasl.enabled.mechanisms": "PLAIN",
        f"{name}.plain.sasl.jaas.config": f'{PLAIN_LOGIN} user_{USER}="{PASSWORD}";',
    }
    login = f'{PLAIN_LOGIN} username="{USER}" password="{PASSWORD}";'
    clients = {"sasl.mechanism": "PLAIN", "sasl.jaas.config": login}
    with _secured(folder, "SASL_SSL", brokers, clients) as pair:
        yield pair


@contextmanager
def distant(_: Path) -> Iterator[Pair]:
    """A long round trip to the source."""
    with (
        start_cluster(listeners=LISTENER, proxied=[RELAYED]) as source,
        start_cluster() as destination,
        relaying(list(source.proxy_ports(RELAYED).values()), WINDOW) as delay,
    ):
        delay.value = ROUND_TRIP_S / 2
        relays = {"bootstrap.servers": source.listener(RELAYED)}
        yield Pair(source, destination, relays, plain(destination))


@contextmanager
def _secured(
    folder: Path, protocol: str, brokers: Properties, clients: Properties
) -> Iterator[Pair]:
    public, private = certificate(folder)
    store = folder / "broker.pem"
    store.write_text(private.read_text() + public.read_text())
    config = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(store), **brokers}
    listeners = {SECURED: protocol}
    with (
        start_cluster(config=config, listeners=listeners) as source,
        start_cluster(config=config, listeners=listeners) as destination,
    ):
        properties = [
            {
                "bootstrap.servers": cluster.listener(SECURED),
                "security.protocol": protocol,
                "ssl.truststore.type": "PEM",
                # In the text: a mirror's properties may name no files without the node's leave.
                "ssl.truststore.certificates": public.read_text().strip(),
                **clients,
            }
            for cluster in (source, destination)
        ]
        yield Pair(source, destination, *properties)


CASES = {"replicated": replicated, "tls": tls, "sasl": sasl, "distant": distant}


if __name__ == "__main__":
    asyncio.run(main())
