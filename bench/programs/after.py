"""Prints MiB/s of a Python program that has started another one after it opened its file: lines of name, tab,
rate. Verifies its bytes outside of what is timed.

    after.py FILE
"""

import os
import subprocess
import sys
import time

TOTAL = 64 << 20


def go_through(path, length, move):
    """Opens the file, starts a program, then times `move` for each piece of the file."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    subprocess.run(["true"], check=True)
    begun = time.perf_counter()
    moved = [move(descriptor, index) for index in range(TOTAL // length)]
    spent = time.perf_counter() - begun
    os.close(descriptor)
    return moved, TOTAL / spent / 2**20


def main():
    path = sys.argv[1]
    for turn in range(2):
        for length, label in [(4 << 10, "4 KiB"), (1 << 20, "1 MiB")]:
            pieces = [bytes([index]) * length for index in range(251)]
            written, write_rate = go_through(path, length, lambda fd, index: os.write(fd, pieces[index % 251]))
            assert written == [length] * (TOTAL // length), "a short write"
            read, read_rate = go_through(path, length, lambda fd, index: len(os.read(fd, length)))
            assert read == written, "a short read"
            with open(path, "rb") as file:
                for index in range(TOTAL // length):
                    assert file.read(length) == pieces[index % 251], "other bytes"
            # The first turn warms up: memory of the servers, connections.
            if turn:
                print(f"Python, write {label}\t{write_rate:f}")
                print(f"Python, read {label}\t{read_rate:f}")


main()
