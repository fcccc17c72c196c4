"""One direction of the kernel's packet generator, from the namespace in which this program runs.

    python pktgen_sender.py --cpu 0 --to 198.18.1.2 --mac 02:... --size 1514 --seconds 2

Prints what the kernel says of it. Imports nothing but the standard library: it has to begin at once.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time

DIRECTORY = "/proc/thread-self/net/pktgen"
#: Discard (RFC 863): nobody listens, the packets end where the stack looks for a socket.
PORT = 9


def write(name: str, *words: str) -> None:
    """One command a write, as the kernel's parser wants it."""
    fd = os.open(f"{DIRECTORY}/{name}", os.O_WRONLY | os.O_CLOEXEC)
    try:
        for word in words:
            os.write(fd, word.encode() + b"\n")
    finally:
        os.close(fd)


def main() -> int:
    """Send for a while, print the result; returns the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cpu", type=int, required=True)
    parser.add_argument("--to", required=True)
    parser.add_argument("--mac", required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--delay-ns", type=int, default=0)
    given = parser.parse_args()
    if not os.path.isdir(DIRECTORY):  # noqa: PTH112 - pathlib is one more import
        print("no /proc/net/pktgen in this namespace: modprobe pktgen", file=sys.stderr)
        return 1
    thread = f"kpktgend_{given.cpu}"
    write(thread, "rem_device_all", "add_device eth0")
    address = "dst6" if ":" in given.to else "dst"
    write("eth0", "count 0", "clone_skb 0", f"pkt_size {given.size}", f"delay {given.delay_ns}")
    write("eth0", f"{address} {given.to}", f"dst_mac {given.mac}", f"udp_dst_min {PORT}", f"udp_dst_max {PORT}")
    starter = threading.Thread(target=write, args=("pgctrl", "start"), daemon=True)
    starter.start()
    time.sleep(given.seconds)
    write("pgctrl", "stop")
    starter.join(30)
    with open(f"{DIRECTORY}/eth0") as result:  # noqa: PTH123 - as above
        print(result.read())
    write(thread, "rem_device_all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
