#!/usr/bin/env python3
"""One file, changed and read by several processes in turns, against a plain bytearray.

    turns.py [--steps N] [--seed N] [--length BYTES] [--unmapped] [--preload PATH] FILE...

Each FILE is the same file under one mount; each gets a process of its own, and with --preload one
more that has PATH preloaded. What one process has done is what the next one finds. Equal seeds give
equal histories. docs/posix.md tells what the processes must do for it: mappings are made anew for
each use, files are opened anew for sendfile, and fstat comes before copy_file_range. With --unmapped
there are neither mappings nor sendfile, and the kernel has no pages of the file.
"""

import argparse
import ctypes
import mmap
import os
import random
import sys

from told import Process, serve

KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16


def content(seed, length):
    return random.Random(seed).randbytes(length)


class Worker:
    """What the processes do: each method is one operation on the open file."""

    def __init__(self, path):
        self.path = path
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.file = os.open(path, os.O_RDWR)

    def read(self, offset, length):
        return os.pread(self.file, length, offset)

    def read_all(self):
        """By a descriptor of its own, in parts, through the file position."""
        with open(self.path, "rb", buffering=0) as file:
            parts = []
            while part := file.read(100_000):
                parts.append(part)
            return b"".join(parts)

    def read_mapped(self, offset, length):
        with mmap.mmap(self.file, offset + length, prot=mmap.PROT_READ) as view:
            return view[offset:]

    def read_private(self, offset, length):
        with mmap.mmap(self.file, offset + length, flags=mmap.MAP_PRIVATE) as view:
            return view[offset:]

    def read_sent(self, offset, length):
        """By sendfile into a pipe."""
        self.reopen()
        end, start = os.pipe()
        parts = []
        while length > 0:
            count = os.sendfile(start, self.file, offset, min(length, 16_384))
            if count == 0:
                break
            parts.append(os.read(end, count))
            offset, length = offset + count, length - count
        os.close(end)
        os.close(start)
        return b"".join(parts)

    def write(self, offset, length, seed):
        assert os.pwrite(self.file, content(seed, length), offset) == length

    def write_vector(self, offset, length, seed):
        data = content(seed, length)
        third = length // 3
        parts = [data[:third], data[third : 2 * third], data[2 * third :]]
        assert os.pwritev(self.file, parts, offset) == length

    def write_seeking(self, offset, length, seed):
        os.lseek(self.file, offset, os.SEEK_SET)
        assert os.write(self.file, content(seed, length)) == length
        assert os.lseek(self.file, 0, os.SEEK_CUR) == offset + length

    def write_mapped(self, offset, length, seed):
        with mmap.mmap(self.file, offset + length) as view:
            view[offset:] = content(seed, length)
            view.flush()

    def append(self, length, seed):
        with open(self.path, "ab", buffering=0) as file:
            assert file.write(content(seed, length)) == length
            return file.tell()

    def truncate(self, size):
        os.ftruncate(self.file, size)

    def allocate(self, mode, offset, length):
        result = self.libc.fallocate(
            self.file, mode, ctypes.c_int64(offset), ctypes.c_int64(length)
        )
        if result != 0:
            raise OSError(ctypes.get_errno(), "fallocate")

    def copy(self, source, target, length):
        os.fstat(self.file)
        while length > 0:
            count = os.copy_file_range(self.file, self.file, length, source, target)
            assert count > 0, "nothing copied"
            source, target, length = source + count, target + count, length - count

    def sync(self):
        os.fsync(self.file)

    def reopen(self):
        os.close(self.file)
        self.file = os.open(self.path, os.O_RDWR)

    def size(self):
        assert os.stat(self.path).st_size == os.fstat(self.file).st_size
        return os.lseek(self.file, 0, os.SEEK_END)

    def data(self):
        """What SEEK_DATA and SEEK_HOLE call data: pairs of start and end."""
        found, at = [], 0
        while True:
            try:
                start = os.lseek(self.file, at, os.SEEK_DATA)
            except OSError:  # ENXIO: no more data
                return found
            at = os.lseek(self.file, start, os.SEEK_HOLE)
            found.append((start, at))


def refused(name, arguments, error):
    return RuntimeError(f"{name}{arguments}: {error!r}")


class History:
    def __init__(self, processes, seed, length_max, unmapped):
        self.unmapped = unmapped
        self.processes = processes
        self.chance = random.Random(seed)
        self.length_max = length_max
        self.model = bytearray()
        self.log = []

    def grow(self, end):
        if len(self.model) < end:
            self.model.extend(bytes(end - len(self.model)))

    def extent(self):
        offset = self.chance.randrange(self.length_max)
        most = self.chance.choice([100, 5_000, 200_000])
        return offset, self.chance.randint(1, min(most, self.length_max - offset))

    def inside(self):
        """An extent within the file, for what fails or differs behind its end."""
        offset = self.chance.randrange(len(self.model))
        return offset, self.chance.randint(1, min(200_000, len(self.model) - offset))

    def compare(self, got, offset, length):
        expected = bytes(self.model[offset : offset + length])
        if got == expected:
            return
        at = next((i for i, (a, b) in enumerate(zip(got, expected)) if a != b), None)
        if at is None:
            raise RuntimeError(f"{len(got)} bytes at {offset}, not {len(expected)}")
        wrong = sum(a != b for a, b in zip(got, expected))
        raise RuntimeError(
            f"{wrong} of {length} bytes at {offset} differ, first at {offset + at}: "
            f"{got[at : at + 8].hex()} instead of {expected[at : at + 8].hex()}"
        )

    def step(self, number):
        process = self.chance.choice(self.processes)
        kinds = ["read"] * 5 + ["write"] * 5 + ["hole"] * 2
        kinds += ["read", "write"] * 2 if self.unmapped else ["mapped"] * 4
        kinds += ["truncate", "append", "allocate", "copy", "sync", "reopen", "size", "data"]
        kind = self.chance.choice(kinds)
        if not self.model and kind in ("mapped", "copy"):
            kind = "write"
        self.log.append(f"{number}: {kind} by {process.name}")
        getattr(self, "do_" + kind)(process, number)
        size = process.ask("size")
        if size != len(self.model):
            raise RuntimeError(f"size {size} instead of {len(self.model)}")

    def note(self, *what):
        self.log[-1] += " " + " ".join(map(str, what))

    def do_read(self, process, number):
        offset, length = self.extent()
        way = self.chance.choice(["read", "read", "read" if self.unmapped else "read_sent"])
        self.note(way, offset, length)
        self.compare(process.ask(way, offset, length), offset, length)

    def do_write(self, process, number):
        offset, length = self.extent()
        way = self.chance.choice(["write", "write_vector", "write_seeking"])
        self.note(way, offset, length)
        process.ask(way, offset, length, number)
        self.grow(offset + length)
        self.model[offset : offset + length] = content(number, length)

    def do_mapped(self, process, number):
        offset, length = self.inside()
        way = self.chance.choice(["read_mapped", "read_private", "write_mapped"])
        self.note(way, offset, length)
        if way == "write_mapped":
            process.ask(way, offset, length, number)
            self.model[offset : offset + length] = content(number, length)
        else:
            self.compare(process.ask(way, offset, length), offset, length)

    def do_hole(self, process, number):
        offset, length = self.extent()
        mode = self.chance.choice([PUNCH_HOLE | KEEP_SIZE, ZERO_RANGE, ZERO_RANGE | KEEP_SIZE])
        self.note(mode, offset, length)
        process.ask("allocate", mode, offset, length)
        if not mode & KEEP_SIZE:
            self.grow(offset + length)
        end = min(offset + length, len(self.model))
        if offset < end:
            self.model[offset:end] = bytes(end - offset)

    def do_allocate(self, process, number):
        offset, length = self.extent()
        mode = self.chance.choice([0, KEEP_SIZE])
        self.note(mode, offset, length)
        process.ask("allocate", mode, offset, length)
        if mode == 0:
            self.grow(offset + length)

    def do_truncate(self, process, number):
        size = self.chance.randrange(self.length_max)
        self.note(size)
        process.ask("truncate", size)
        del self.model[size:]
        self.grow(size)

    def do_append(self, process, number):
        length = self.chance.randint(1, 10_000)
        if len(self.model) + length > self.length_max:
            return
        self.note(length)
        end = process.ask("append", length, number)
        self.model.extend(content(number, length))
        if end != len(self.model):
            raise RuntimeError(f"position {end} after an append to {len(self.model)}")

    def do_copy(self, process, number):
        source, length = self.inside()
        target = self.chance.randrange(self.length_max)
        length = min(length, abs(target - source), self.length_max - target)
        if length == 0:
            return
        self.note(source, target, length)
        process.ask("copy", source, target, length)
        self.grow(target + length)
        self.model[target : target + length] = self.model[source : source + length]

    def do_sync(self, process, number):
        process.ask("sync")

    def do_reopen(self, process, number):
        process.ask("reopen")

    def do_size(self, process, number):
        for other in self.processes:
            if other.ask("size") != len(self.model):
                raise RuntimeError(f"{other.name} sees another size than {len(self.model)}")

    def do_data(self, process, number):
        at = 0
        for start, end in process.ask("data") + [(len(self.model), len(self.model))]:
            if not at <= start <= end <= len(self.model):
                raise RuntimeError(f"data from {start} to {end}")
            if any(self.model[at:start]):
                raise RuntimeError(f"data within what is called a hole from {at} to {start}")
            at = end

    def finish(self):
        for process in self.processes:
            self.log.append(f"at the end: all read by {process.name}")
            self.compare(process.ask("read_all"), 0, len(self.model))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--length", type=int, default=1_000_000)
    parser.add_argument("--unmapped", action="store_true")
    parser.add_argument("--preload", default="")
    parser.add_argument("files", nargs="+")
    options = parser.parse_args()
    if options.serve:
        return serve(Worker(options.files[0]), refused)

    with open(options.files[0], "wb"):
        pass
    process = lambda path, preload: Process(path, __file__, ["--serve", path], preload)
    processes = [process(path, "") for path in options.files]
    if options.preload:
        processes += [process(path, options.preload) for path in options.files]
    history = History(processes, options.seed, options.length, options.unmapped)
    try:
        for number in range(options.steps):
            history.step(number)
        history.finish()
    except RuntimeError as error:
        print("\n".join(history.log[-20:]))
        sys.exit(f"turns.py: seed {options.seed}: {error}")
    for process in processes:
        process.end()
    print(f"turns.py: seed {options.seed}: {options.steps} steps of {len(processes)} processes")


if __name__ == "__main__":
    main()
