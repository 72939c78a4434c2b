"""One client of bench/striping: writes, then reads, through libweir.so, and prints as JSON when each
call began and ended. Every MiB is stamped with client, generation and offset; stamps of what is read
are checked at once, all bytes after the clock has stopped."""

import ctypes
import json
import mmap
import os
import struct
import sys
import threading
import time

MIB = 1 << 20
STAMP = struct.Struct("<IIQ")


class ConnectOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("connections", ctypes.c_uint32),
        ("silence_ms", ctypes.c_uint32),
        ("transfer_size", ctypes.c_uint64),
    ]


class Weir:
    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.library.weir_error_text.restype = ctypes.c_char_p
        for name in ("weir_pread", "weir_pwrite"):
            call = getattr(self.library, name)
            call.restype = ctypes.c_ssize_t
            call.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64]

    def check(self, result):
        if result < 0:
            raise OSError(-result, self.library.weir_error_text().decode())
        return result

    def connect(self, directory, connections):
        options = ConnectOptions(ctypes.sizeof(ConnectOptions), connections, 0, 0)
        pool = ctypes.c_void_p()
        self.check(self.library.weir_connect(directory.encode(), ctypes.byref(options), ctypes.byref(pool)))
        return pool

    def create(self, pool, path):
        file = ctypes.c_void_p()
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
        self.check(self.library.weir_open(pool, path.encode(), flags, 0o600, None, ctypes.byref(file)))
        return file


class Worker(threading.Thread):
    """One call at a time, over slots of the file that are this worker's alone."""

    def __init__(self, client, index, slots):
        super().__init__()
        self.client, self.index, self.slots = client, index, slots
        self.memory = mmap.mmap(-1, client.length)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.generations = {}
        self.failure = None

    def stamp(self, slot, generation):
        for at in range(0, self.client.length, MIB):
            STAMP.pack_into(self.memory, at, self.client.number, generation, slot * self.client.length + at)

    def stamps_right(self, slot):
        generation = self.generations[slot]
        for at in range(0, self.client.length, MIB):
            expected = (self.client.number, generation, slot * self.client.length + at)
            if STAMP.unpack_from(self.memory, at) != expected:
                raise ValueError(f"wrong bytes at {expected[2]}: {STAMP.unpack_from(self.memory, at)}, not {expected}")

    def call(self, write, slot):
        weir, offset = self.client.weir, slot * self.client.length
        call = weir.library.weir_pwrite if write else weir.library.weir_pread
        done = weir.check(call(self.client.file, self.address, self.client.length, offset))
        if done != self.client.length:
            raise ValueError(f"{done} of {self.client.length} bytes at {offset}")

    def measure(self, write, begin, seconds):
        """Calls from `begin` on, for so many seconds: their times."""
        times = []
        if write:
            self.memory[:] = self.client.pattern
        time.sleep(max(0, begin - time.monotonic()))
        round_ = 0
        while True:
            slot = self.slots[round_ % len(self.slots)]
            round_ += 1
            if write:
                self.generations[slot] = self.generations.get(slot, 0) + 1
                self.stamp(slot, self.generations[slot])
            start = time.monotonic()
            if start >= begin + seconds:
                if write:
                    self.generations[slot] -= 1
                return times
            self.call(write, slot)
            times.append((start, time.monotonic()))
            if not write:
                self.stamps_right(slot)

    def compare(self):
        for slot in self.slots:
            self.call(False, slot)
            self.stamps_right(slot)
            for at in range(0, self.client.length, MIB):
                self.memory[at : at + STAMP.size] = self.client.pattern[at : at + STAMP.size]
            if self.memory[:] != self.client.pattern:
                raise ValueError(f"wrong bytes in the call at {slot * self.client.length}")

    def run(self):
        try:
            client = self.client
            client.results["write"] += self.measure(True, client.begin, client.seconds)
            # What there was no time to write is not there to be read. All clients should be done by
            # then; those that are not are seen in the times.
            self.slots = [slot for slot in self.slots if self.generations.get(slot)]
            client.results["read"] += self.measure(False, client.begin_read, client.seconds)
            self.compare()
        except (OSError, ValueError) as error:
            self.failure = error


class Client:
    def __init__(self, library, directory, number, transfer, window, slots, connections, seconds, begin):
        self.number, self.length = int(number), int(transfer) * MIB
        self.seconds, self.begin = float(seconds), float(begin)
        self.begin_read = self.begin + 2 * self.seconds + 1
        self.pattern = os.urandom(self.length)
        self.results = {"write": [], "read": []}
        self.weir = Weir(library)
        pool = self.weir.connect(directory, int(connections))
        self.file = self.weir.create(pool, f"/striping.{number}")
        window = min(int(window), int(slots))
        self.workers = [Worker(self, i, range(i, int(slots), window)) for i in range(window)]

    def run(self):
        late = time.monotonic() - self.begin
        if late > 0:
            sys.exit(f"client {self.number}: ready {late:.1f} s too late")
        for worker in self.workers:
            worker.start()
        for worker in self.workers:
            worker.join()
        for worker in self.workers:
            if worker.failure:
                sys.exit(f"client {self.number}: {worker.failure}")
        self.weir.check(self.weir.library.weir_close(self.file))
        json.dump({"length": self.length, "begin": self.begin, "begin_read": self.begin_read, **self.results}, sys.stdout)


Client(*sys.argv[1:]).run()
