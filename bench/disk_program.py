#!/usr/bin/env python3
"""The programs that bench/disk runs on a pool, under `weir run`. Each prints its figures as one line of JSON.

    disk_program.py STEP ARGUMENTS(JSON)
"""

import concurrent.futures
import json
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import time

MIB = 1 << 20
# What comes out of /dev/urandom once is new enough for a disk, if each block begins with its number.
BLOCK = os.urandom(MIB)


def status():
    """What the servers have counted, summed."""
    words = [os.environ["WEIR_BENCH"], "status", "--json"]
    found = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    servers = found["pools"][0]["servers"]
    sums = {name: sum(server[name] for server in servers)
            for name in ("bytes_read", "bytes_written", "busy")}
    for name in ("dirty", "disk_reads", "disk_bytes_read", "disk_bytes_written"):
        sums[name] = sum(target[name] for server in servers for target in server["targets"])
    return sums


class Phase:
    """A part of a program: its time, what it moved and what the servers say about that."""

    def __enter__(self):
        self.before, self.begin = status(), time.monotonic()
        return self

    def __exit__(self, *_):
        self.seconds = time.monotonic() - self.begin
        after = status()
        self.server = {name: after[name] - self.before[name] for name in after}

    def figures(self, way, count):
        """Of a phase that moved `count` bytes one way."""
        way = {"read": "bytes_read", "write": "bytes_written"}[way]
        return {"rate": count / self.seconds, "seconds": self.seconds, "client_bytes": count,
                "server_bytes": self.server[way],
                "disk_rate": (self.server["disk_bytes_written"] if way == "bytes_written"
                              else self.server["disk_bytes_read"]) / self.seconds,
                "disk_read_bytes": self.server["disk_bytes_read"],
                "disk_written_bytes": self.server["disk_bytes_written"]}


def warm(memory):
    """Has the servers touch their memory: a virtual machine's host may be slow to hand it out, and that is
    neither the pool's nor the disk's doing."""
    fill("warm", memory)
    os.remove("warm")
    # What was removed is freed by and by.
    time.sleep(0.5)


def fill(name, total, first=0):
    # One buffer for all: a new one for each block costs three times as much as its write to a pool in memory.
    block = bytearray(BLOCK)
    with open(name, "wb", buffering=0) as file:
        for index in range(total // MIB):
            block[:8] = (first + index).to_bytes(8, "little")
            file.write(block)
        os.fsync(file.fileno())


def sequential(total, memory, seconds=0, **_):
    """Writes a file and its fsync; reads it; reads 16 KiB of it here and there, by 32 threads."""
    result = {}
    warm(memory)
    with Phase() as phase:
        fill("large", total)
    result["write"] = phase.figures("write", total)
    buffer, wrong = bytearray(MIB), 0
    with Phase() as phase, open("large", "rb", buffering=0) as file:
        for index in range(total // MIB):
            file.readinto(buffer)
            wrong += int.from_bytes(buffer[:8], "little") != index
    result["read"] = phase.figures("read", total)
    if wrong or buffer[8:] != BLOCK[8:]:
        sys.exit(f"{wrong} blocks came back wrong")
    if seconds:
        descriptor = os.open("large", os.O_RDONLY)
        until = time.monotonic() + seconds

        def reader(seed):
            chance, done = random.Random(seed), 0
            while time.monotonic() < until:
                os.pread(descriptor, 16384, chance.randrange(total // 16384) * 16384)
                done += 1
            return done

        with Phase() as phase, concurrent.futures.ThreadPoolExecutor(32) as readers:
            done = sum(readers.map(reader, range(32)))
        result["random"] = phase.figures("read", done * 16384)
        result["random"]["rate"] = done / phase.seconds
        os.close(descriptor)
    os.remove("large")
    return result


def again(memory, **_):
    """Nine tenths of memory, read again and again."""
    total = memory * 9 // 10 // MIB * MIB
    fill("set", total)
    buffer = bytearray(MIB)
    with Phase() as phase:
        for _ in range(3):
            with open("set", "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
    os.remove("set")
    return {"disk_reads": phase.server["disk_reads"], **phase.figures("read", 3 * total)}


def write_until(name, most, stop, counts):
    """Writes a file again and again; says when how much was written."""
    with open(name, "wb", buffering=0) as file:
        while not stop.is_set():
            file.seek(0)
            for _ in range(most // MIB):
                if stop.is_set():
                    return
                file.write(BLOCK)
                counts.append(time.monotonic())


def writer(name, most, stop, sender):
    counts = []
    write_until(name, most, stop, counts)
    sender.send(counts)
    sender.close()


class Writers:
    """Processes that each write a file of their own."""

    def __init__(self, count, most):
        self.stop = multiprocessing.Event()
        self.processes = []
        for index in range(count):
            receiver, sender = multiprocessing.Pipe(False)
            process = multiprocessing.Process(target=writer, args=(f"writer{index}", most, self.stop, sender))
            process.start()
            self.processes.append((process, receiver))

    def end(self):
        """When each wrote which block."""
        self.stop.set()
        found = [receiver.recv() for _, receiver in self.processes]
        for process, _ in self.processes:
            process.join(30)
        return found


def until_throttled(seconds=30):
    """Waits until writers are ahead of the disk."""
    last, until = -1, time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.5)
        dirty = status()["dirty"]
        if last >= 0 and abs(dirty - last) < max(dirty, 1) // 10 and dirty > 0:
            return
        last = dirty
    sys.exit("the writers never got ahead of the disk")


def latencies(seconds):
    """Single reads of 64 KiB of a file in memory: microseconds."""
    with open("hot", "rb", buffering=0) as file:
        descriptor, chance, found = file.fileno(), random.Random(5), []
        size = os.fstat(descriptor).st_size
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            at = chance.randrange(size // 65536) * 65536
            begin = time.perf_counter()
            os.pread(descriptor, 65536, at)
            found.append((time.perf_counter() - begin) * 1e6)
            time.sleep(0.001)
    cuts = statistics.quantiles(found, n=100)
    return {"median_us": cuts[49], "p99_us": cuts[98], "reads": len(found)}


def latency(memory, seconds, **_):
    """Reads of a file in memory, alone and while a writer waits for the disk."""
    warm(memory)
    fill("hot", max(memory // 16 // MIB, 1) * MIB)
    latencies(1)
    idle = latencies(seconds)
    writers = Writers(1, memory * 3)
    until_throttled()
    before = status()
    busy = latencies(seconds)
    after = status()
    writers.end()
    return {"idle": idle, "throttled": busy, "disk_rate":
            (after["disk_bytes_written"] - before["disk_bytes_written"]) / seconds,
            "disk_reads": after["disk_reads"] - before["disk_reads"]}


def even(memory, clients, seconds, **_):
    """Clients that write at once, ahead of the disk: what each gets."""
    warm(memory)
    writers = Writers(clients, memory * 2 // clients)
    until_throttled()
    begin = time.monotonic()
    time.sleep(seconds)
    end = time.monotonic()
    times = writers.end()
    rates = [sum(begin <= at < end for at in client) * MIB / (end - begin) for client in times]
    return {"rates": rates, "least_of_most": min(rates) / max(rates)}


STEPS = {"sequential": sequential, "again": again, "latency": latency, "even": even}

if __name__ == "__main__":
    os.chdir(os.environ["WEIR_MOUNT"])
    print(json.dumps(STEPS[sys.argv[1]](**json.loads(sys.argv[2]))))
