"""The figures of bench/striping: rates over the time in which all clients were at work, beside the
sum of what iperf3 got through the servers' links."""

import json
import os
import sys

MIB = 1 << 20
# What is left out at the beginning, as iperf3 leaves out its first second.
RAMP_S = 0.5


def rate(clients, way):
    """Bytes a second of all clients together, in the interval that is common to all. A call that
    only partly falls into it counts by that part of its time."""
    begin = max(min(start for start, _ in client[way]) for client in clients) + RAMP_S
    end = min(max(stop for _, stop in client[way]) for client in clients)
    if end <= begin:
        sys.exit(f"striping: clients were not at work at the same time ({way}); more --seconds, or less --transfer")
    total = 0
    for client in clients:
        for start, stop in client[way]:
            common = max(0, min(stop, end) - max(start, begin))
            total += client["length"] * common / (stop - start)
    return total / (end - begin)


def links(work, count, way):
    total = 0
    for i in range(1, count + 1):
        with open(f"{work}/links.{count}.{way}.{i}") as file:
            total += json.load(file)["end"]["sum_received"]["bits_per_second"] / 8
    return total


def main():
    work, servers, clients, link, transfer, window, connections, aim, out = sys.argv[1:]
    aim = float(aim)
    rows, worst = [], None
    for count in map(int, servers.split(",")):
        for clients_now in map(int, clients.split(",")):
            measured = []
            for i in range(1, clients_now + 1):
                with open(f"{work}/client.{count}.{clients_now}.{i}") as file:
                    measured.append(json.load(file))
            row = {"servers": count, "clients": clients_now}
            for way in ("write", "read"):
                limit, reached = links(work, count, way), rate(measured, way)
                share = reached / limit
                row[way] = {"bytes_per_s": reached, "links_bytes_per_s": limit, "share": share}
                worst = share if worst is None else min(worst, share)
            rows.append(row)

    print(f"links of {link} each; calls of {transfer} MiB over clients, {window} under way in each, "
          f"{connections} connections to each server; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print("MiB/s; share of the sum of the links as iperf3 measured them\n")
    print("                        write                      read")
    print("servers  clients   pool   links  share       pool   links  share")
    for row in rows:
        cells = [
            f"{row[way]['bytes_per_s'] / MIB:6.1f}  {row[way]['links_bytes_per_s'] / MIB:6.1f}  {row[way]['share']:5.3f}"
            for way in ("write", "read")
        ]
        print(f"{row['servers']:7}  {row['clients']:7} {cells[0]}     {cells[1]}")
    print(f"\nleast share {worst:.3f}; all bytes were right")
    if out:
        with open(out, "w") as file:
            json.dump({"link": link, "transfer_bytes": int(transfer) * MIB, "window": int(window),
                       "connections": int(connections), "rows": rows, "verified": True}, file, indent=2)
            file.write("\n")
    if worst < aim:
        sys.exit(f"striping: less than {aim} of the links")


main()
