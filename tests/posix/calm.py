#!/usr/bin/env python3
"""Names and attributes at two mounts of one pool, after times in which nobody changed anything.

    calm.py [--rounds N] [--seed N] DIRECTORY DIRECTORY

Each DIRECTORY is the same directory under one mount. In each round one mount looks at everything, for
longer than it takes until its kernel may know names and attributes for a while; then both change some.
Whatever a change has done when it returns, both see.
"""

import argparse
import os
import random
import stat
import sys
import time

# A little longer than the pool has to be calm (CALM_MS).
CALM_S = 3.3
DIRECTORIES = ["a", "b", "c"]
NAMES = [f"{directory}/{number}" for directory in DIRECTORIES for number in range(8)]


class Inode:
    def __init__(self, kind, content=b""):
        self.kind, self.content, self.mode = kind, content, 0o644


class History:
    def __init__(self, mounts, seed):
        self.mounts = mounts
        self.chance = random.Random(seed)
        self.names = {}
        self.log = []
        for directory in DIRECTORIES:
            os.mkdir(os.path.join(mounts[0], directory))

    def change(self, mount):
        """One change at a mount. Gives the names that it touches."""
        at = lambda name: os.path.join(mount, name)
        name, other = self.chance.choice(NAMES), self.chance.choice(NAMES)
        inode, there = self.names.get(name), self.names.get(other)
        kinds = ["open", "mkdir", "symlink"] if inode is None else ["rename", "rename", "remove", "remove"]
        if inode and inode.kind == "file":
            kinds += ["chmod", "write", "append", "truncate"]
        if inode and inode.kind != "directory" and there is None:
            kinds += ["link"]
        kind = self.chance.choice(kinds)
        self.log.append(f"{kind} {name} {other} at {mount}")
        data = self.chance.randbytes(self.chance.randrange(3000))
        if kind == "open":
            with open(at(name), "xb") as file:
                os.fchmod(file.fileno(), 0o644)
                file.write(data)
            self.names[name] = Inode("file", data)
        elif kind == "mkdir":
            os.mkdir(at(name))
            self.names[name] = Inode("directory")
        elif kind == "symlink":
            os.symlink("text", at(name))
            self.names[name] = Inode("link", b"text")
        elif kind == "remove":
            (os.rmdir if inode.kind == "directory" else os.unlink)(at(name))
            del self.names[name]
        elif kind == "rename":
            if there and (inode.kind == "directory") != (there.kind == "directory"):
                return self.refused(NotADirectoryError if inode.kind == "directory" else IsADirectoryError,
                                    os.rename, at(name), at(other))
            os.rename(at(name), at(other))
            if there is not inode:
                self.names[other] = self.names.pop(name)
        elif kind == "link":
            os.link(at(name), at(other), follow_symlinks=False)
            self.names[other] = inode
        elif kind == "chmod":
            # Writes of anybody but the superuser end a set-user-id bit.
            inode.mode = self.chance.choice([0o600, 0o644, 0o755, 0o4711 if os.geteuid() == 0 else 0o711])
            os.chmod(at(name), inode.mode)
        elif kind == "truncate":
            size = self.chance.randrange(4000)
            os.truncate(at(name), size)
            inode.content = inode.content[:size].ljust(size, b"\0")
        else:
            with open(at(name), "ab" if kind == "append" else "wb") as file:
                file.write(data)
            inode.content = data if kind == "write" else inode.content + data
        touched = {name, other} | {same for same, one in self.names.items() if one is inode}
        return sorted(touched)

    def refused(self, error, call, *paths):
        try:
            call(*paths)
        except error:
            return []
        raise AssertionError(f"{self.log[-1]} was not refused by {error.__name__}")

    def look(self, mount, name):
        inode = self.names.get(name)
        path = os.path.join(mount, name)
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            assert inode is None, f"{path} is missing"
            return
        assert inode is not None, f"{path} is there"
        is_kind = {"file": stat.S_ISREG, "directory": stat.S_ISDIR, "link": stat.S_ISLNK}[inode.kind]
        assert is_kind(found.st_mode), f"{path} is no {inode.kind}: mode {found.st_mode:o}"
        if inode.kind == "directory":
            return
        names = sum(one is inode for one in self.names.values())
        assert found.st_nlink == names, f"{path} has {found.st_nlink} names, not {names}"
        assert found.st_size == len(inode.content), f"{path} has size {found.st_size}, not {len(inode.content)}"
        if inode.kind == "link":
            assert os.readlink(path).encode() == inode.content, f"{path} leads elsewhere"
            return
        mode = stat.S_IMODE(found.st_mode)
        assert mode == inode.mode, f"{path} has mode {mode:o}, not {inode.mode:o}"
        if self.chance.random() < 0.2:
            with open(path, "rb") as file:
                assert file.read() == inode.content, f"{path} holds something else"

    def list(self, mount, directory):
        expected = sorted(name.split("/")[1] for name in self.names if name.split("/")[0] == directory)
        found = sorted(os.listdir(os.path.join(mount, directory)))
        assert found == expected, f"{mount}/{directory} lists {found}, not {expected}"

    def look_at_all(self, mount):
        for directory in DIRECTORIES:
            self.list(mount, directory)
        for name in NAMES:
            self.look(mount, name)

    def change_and_look(self, mount, first):
        """What is changed at one mount is seen at both, at `first` first."""
        for name in self.change(mount):
            for looking in sorted(self.mounts, key=lambda one: one != first):
                self.look(looking, name)
                self.list(looking, name.split("/")[0])

    def round(self):
        calm = self.chance.choice(self.mounts)
        other = self.mounts[1 - self.mounts.index(calm)]
        self.log.append(f"calm at {calm}")
        until = time.monotonic() + CALM_S
        while time.monotonic() < until:
            self.look_at_all(calm)
            # What it changes itself does not disturb it; the other must not look, lest it know, too.
            if self.chance.random() < 0.1:
                for name in self.change(calm):
                    self.look(calm, name)
            time.sleep(0.02)
        for _ in range(self.chance.randint(1, 4)):
            self.change_and_look(other, calm)
            time.sleep(self.chance.choice([0, 0, 0.03, 0.1]))
        for _ in range(40):
            self.change_and_look(self.chance.choice(self.mounts), self.chance.choice(self.mounts))
        for mount in self.mounts:
            self.look_at_all(mount)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("mounts", nargs=2)
    options = parser.parse_args()
    history = History(options.mounts, options.seed)
    try:
        for _ in range(options.rounds):
            history.round()
    except (AssertionError, OSError) as error:
        print("\n".join(history.log[-20:]))
        sys.exit(f"calm.py: seed {options.seed}: {error}")
    print(f"calm.py: seed {options.seed}: {options.rounds} rounds, {len(history.log)} changes")


if __name__ == "__main__":
    main()
