#!/usr/bin/env python3
"""Processes at several mounts of one pool do the same things at the same time, to the same names.

    together.py [--preload PATH] DIRECTORY...

Each DIRECTORY is the same directory under one mount. Two processes work in each, and with --preload
two more that have PATH preloaded. Appends come out whole and in order; what only one can do, one does.
"""

import argparse
import ctypes
import os
import random
import subprocess
import sys

RECORDS = 200
NAMES = 150
LENGTH_MAX = 30_000
NOREPLACE = 1
AT_FDCWD = -100


def record(process, number):
    length = random.Random(process * 1000 + number).randint(1, LENGTH_MAX)
    return b"%d %d %d\n" % (process, number, length) + bytes([65 + process]) * length + b"\n"


def append(process):
    file = os.open("log", os.O_WRONLY | os.O_APPEND)
    for number in range(RECORDS):
        data = record(process, number)
        if number % 2 == 0:
            assert os.write(file, data) == len(data)
        else:
            middle = len(data) // 2
            assert os.writev(file, [data[:middle], data[middle:]]) == len(data)
    os.close(file)


def check_log(processes):
    with open("log", "rb") as file:
        log = file.read()
    at = 0
    counts = [0] * processes
    while at < len(log):
        head = log[at : log.index(b"\n", at)]
        process, number, _ = map(int, head.split())
        assert number == counts[process], f"record {number} of {process} after {counts[process] - 1}"
        data = record(process, number)
        assert log[at : at + len(data)] == data, f"record {number} of {process} is broken"
        counts[process] += 1
        at += len(data)
    assert counts == [RECORDS] * processes, f"records: {counts}"


def create(process, name):
    with open(name, "xb") as file:
        file.write(b"%d" % process)


def rename(process, name):
    own = f"own{process}"
    with open(own, "wb") as file:
        file.write(b"%d" % process)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(AT_FDCWD, own.encode(), AT_FDCWD, name.encode(), NOREPLACE) != 0:
        raise OSError(ctypes.get_errno(), "renameat2")


# What only one process can do for a name; all raise FileExistsError for the others.
RACES = {
    "create": create,
    "mkdir": lambda process, name: os.mkdir(name),
    "mkfifo": lambda process, name: os.mkfifo(name),
    "symlink": lambda process, name: os.symlink(str(process), name),
    "link": lambda process, name: os.link("log", name),
    "rename": rename,
}


def race(process):
    for kind, work in RACES.items():
        for number in range(NAMES):
            try:
                work(process, f"{kind}{number}")
            except FileExistsError:
                continue
            print(kind, number, flush=True)


def remove(process):
    for number in range(NAMES):
        try:
            os.unlink(f"create{number}")
        except FileNotFoundError:
            continue
        print("unlink", number, flush=True)


def replace(process):
    """The name is there at all times, and always somebody's whole file."""
    for number in range(NAMES):
        with open(f"new{process}", "wb") as file:
            file.write(b"%d" % process * 5000)
        os.rename(f"new{process}", "current")
        with open("current", "rb") as file:
            content = file.read()
        assert len(content) == 5000 and len(set(content)) == 1, f"{len(content)} bytes"
        os.stat("current")


PHASES = {"append": append, "race": race, "remove": remove, "replace": replace}


def run(phase, places):
    """Runs a phase in all processes at once; gives what they printed."""
    children = []
    for process, (directory, preload) in enumerate(places):
        environment = dict(os.environ, LD_PRELOAD=preload) if preload else None
        command = [sys.executable, os.path.abspath(__file__), "--work", phase, str(process)]
        child = subprocess.Popen(
            command, cwd=directory, env=environment, stdout=subprocess.PIPE, text=True
        )
        children.append(child)
    said = [child.communicate()[0].split("\n") for child in children]
    for process, child in enumerate(children):
        assert child.returncode == 0, f"{phase}: process {process} in {places[process][0]} failed"
    return [line for lines in said for line in lines if line]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", action="store_true")
    parser.add_argument("--preload", default="")
    parser.add_argument("directories", nargs="+")
    options = parser.parse_args()
    if options.work:
        phase, process = options.directories
        return PHASES[phase](int(process))

    directories = [os.path.abspath(directory) for directory in options.directories] * 2
    places = [(directory, "") for directory in directories]
    if options.preload:
        places += [(directory, options.preload) for directory in directories]
    os.chdir(directories[0])
    with open("log", "wb"):
        pass
    run("append", places)
    check_log(len(places))
    done = run("race", places)
    expected = sorted(f"{kind} {number}" for kind in RACES for number in range(NAMES))
    assert sorted(done) == expected, f"{len(done)} done, {len(expected)} names"
    for number in range(NAMES):
        with open(f"create{number}", "rb") as file:
            assert file.read() in [b"%d" % process for process in range(len(places))]
    assert os.stat("log").st_nlink == NAMES + 1
    done = run("remove", places)
    assert sorted(done) == sorted(f"unlink {number}" for number in range(NAMES)), done
    run("replace", places)
    print(f"together.py: {len(places)} processes")


if __name__ == "__main__":
    main()
