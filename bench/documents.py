"""Values as an application writes them: orders as JSON documents.

The cost of a mirror that decompresses depends on the data. Random bytes cannot be compressed and a
padding of one byte costs nothing to compress, so neither represents real topics. These documents
repeat their field names, their words and their few shops, and contain unique values: ids, times,
amounts, an address, a token. In a batch of 500, zstd leaves 30 % of them (300 bytes of 1,000).
"""

import json
from base64 import b64encode
from random import Random
from typing import Final

TOKEN_BYTES: Final = 155
_FIRST: Final = ("Ana", "Ben", "Chloe", "David", "Elif", "Farid", "Grace", "Jonas", "Keiko", "Nora")
_LAST: Final = ("Almeida", "Berg", "Costa", "Dubois", "Evans", "Haddad", "Ito", "Kowalski", "Li")
_STREETS: Final = ("Mill", "Station", "Church", "Park", "Garden", "Harbour", "Castle", "Bridge")
_CITIES: Final = (
    "Lisbon",
    "Oslo",
    "Lyon",
    "Berlin",
    "Krakow",
    "Osaka",
    "Leeds",
    "Utrecht",
    "Porto",
)
_GOODS: Final = (
    "espresso cups, set of four",
    "cotton shirt, white",
    "desk lamp, brass",
    "walking boots, leather",
    "rain jacket, blue",
    "notebook, ruled, A5",
    "wireless headphones",
    "garden hose, 20 m",
)
_AGENTS: Final = (
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 Chrome/141.0.0.0 Safari/537.36",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_6 like Mac OS X) AppleWebKit/605.1.15 Safari/604.1",
    "Mozilla/5.0 (X11; Linux x86_64; rv:143.0) Gecko/20100101 Firefox/143.0",
)
_NOTES: Final = (
    "please",
    "leave",
    "the parcel",
    "with the neighbour",
    "or ring",
    "twice",
    "thanks",
)


def order(rng: Random, size: int) -> bytes:
    """Return a document of exactly `size` bytes, at least 900."""
    first, last = rng.choice(_FIRST), rng.choice(_LAST)
    token = b64encode(rng.randbytes(TOKEN_BYTES)).decode()
    document = {
        "order_id": f"{rng.getrandbits(64):016x}",
        "created_at": 1_760_000_000_000 + rng.randrange(10**9),
        "shop": f"shop-{rng.randrange(40)}",
        "customer": {
            "id": rng.randrange(10**8),
            "name": f"{first} {last}",
            "email": f"{first}.{last}{rng.randrange(1000)}@example.com".lower(),
            "street": f"{rng.choice(_STREETS)} Street {rng.randrange(1, 200)}",
            "city": rng.choice(_CITIES),
            "postcode": f"{rng.randrange(10**5):05}",
        },
        "items": [
            {
                "sku": f"{rng.randrange(10**6):06}",
                "name": rng.choice(_GOODS),
                "quantity": rng.randrange(1, 5),
                "price": rng.randrange(100, 20_000) / 100,
            }
            for _ in range(3)
        ],
        "payment": {"method": rng.choice(("card", "transfer")), "token": token},
        "client": {
            "ip": f"10.{rng.getrandbits(8)}.{rng.getrandbits(8)}.1",
            "agent": rng.choice(_AGENTS),
        },
        "note": "",
    }
    note = ""
    missing = size - len(json.dumps(document))
    while len(note) < missing:
        note += rng.choice(_NOTES) + " "
    document["note"] = note[:missing]
    return json.dumps(document).encode()
