"""An engine process that a test may kill: SOCKET NAME ROLE [RANK RANKS INSTANCE_HEX].

Says "ready" once its arena is in force (or once it is connected, for a rank), then obeys lines on its standard input:
"store N FAMILY" stores a chain and says "stored"; "fetch N FAMILY" restores it and says "fetched"; "scribble" writes
garbage over the residency table and says "scribbled".
"""

import ctypes
import re
import sys

import foreload
from harness import BLOCK_BYTES, digests_of, store_chain, wait_until


def table_mappings():
    """Address and length of every shared residency table in this process."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            match = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw-s .*memfd:([^ ]*)", line)
            if match and "table" in match.group(3):
                start, end = int(match.group(1), 16), int(match.group(2), 16)
                yield start, end - start


def main():
    socket, name, role = sys.argv[1:4]
    rank, ranks, instance = (int(sys.argv[4]), int(sys.argv[5]), bytes.fromhex(sys.argv[6])) \
        if len(sys.argv) > 4 else (0, 1, foreload.random_id())
    client = foreload.Client(socket, name, instance_id=instance, scheduler=role != "rank", worker=True, rank=rank,
                             rank_count=ranks, extents=[foreload.Extent(0, 0, BLOCK_BYTES)], block_tokens=16)
    client.grant_host(64, BLOCK_BYTES, 32)
    if role == "hold":
        wait_until(lambda: client.connected, "a connection")
    else:
        client.connect_wait(20)
    print("ready", flush=True)
    for line in sys.stdin:
        words = line.split()
        if words[0] == "store":
            store_chain(client, digests_of(int(words[1]), int(words[2])))
            print("stored", flush=True)
        elif words[0] == "fetch":
            client.fetch_wait(client.fetch("request", digests_of(int(words[1]), int(words[2])), deadline=10))
            print("fetched", flush=True)
        elif words[0] == "scribble":
            for start, length in table_mappings():
                ctypes.memset(start, 0xA5, length)
            print("scribbled", flush=True)


main()
