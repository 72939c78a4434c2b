"""What several benchmarks need of the machine and of their command lines."""

import contextlib
import os


def size(text):
    """Bytes, from words such as 64K, 1.5G."""
    units = {"K": 10, "M": 20, "G": 30, "T": 40}
    return int(float(text[:-1]) * (1 << units[text[-1].upper()])) if text[-1].isalpha() else int(text)


class Group:
    """A cgroup of our own, of version 1 or 2, whichever the machine has this controller in."""

    def __init__(self, old_controller, controller):
        old = os.path.join("/sys/fs/cgroup", old_controller)
        self.old = os.path.isdir(old)
        parent = old if self.old else "/sys/fs/cgroup"
        self.path = os.path.join(parent, f"weir-bench-{os.getpid()}-{id(self)}")
        if not self.old:
            _write(parent, "cgroup.subtree_control", "+" + controller)
        os.mkdir(self.path)

    def set(self, name, text):
        _write(self.path, name, text)

    def text(self, name):
        with open(os.path.join(self.path, name), encoding="ascii") as file:
            return file.read()

    def enter(self):
        """For a child between fork and exec."""
        self.set("cgroup.procs", str(os.getpid()))

    def close(self):
        with contextlib.suppress(OSError):
            os.rmdir(self.path)


def _write(directory, name, text):
    with open(os.path.join(directory, name), "w", encoding="ascii") as file:
        file.write(text)
