#!/usr/bin/env python3
"""A tree of files, changed and looked at by several processes in turns, beside one in a local directory.

    trees.py [--steps N] [--seed N] [--preload PATH] [--users] [--alone] [--local DIRECTORY] DIRECTORY...

Each DIRECTORY is the same, empty directory under one mount. Each gets a process of its own, and with
--preload one more that has PATH preloaded. For each of these there is another one in the local
DIRECTORY (below /dev/shm): it does the same, and whatever both of them answer must be equal: results,
error numbers, what is in the directories, attributes, and which times a step has changed. Equal seeds
give equal histories. With --users there is one process of the superuser's and one of each of two others.
With --alone (there is no mount, the pool is seen by the preload library) what that
refuses is left out. To be run by the superuser.
"""

import argparse
import ctypes
import errno
import fcntl
import operator
import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
import zlib

from told import Process, serve

NOREPLACE, EXCHANGE = 1, 2
AT_FDCWD, AT_SYMLINK_FOLLOW = -100, 0x400
NAMES = ["a", "b", "c", "d", "é" * 10]
TEXTS = ["a", "b/c", "nothing", "d"]
# The kernel asks nobody whether a directory may be left by these.
DOTS = ["..", "c/../a", "."]
# What changes nothing.
LOOKING = ["close", "fstat", "list_open", "stat", "list", "readlink", "access", "getxattr", "listxattr", "content",
           "chdir", "fchdir", "getcwd", "home", "where", "realpath"]
# Users beside the superuser, and groups that they are in besides their own.
GROUPS = {1: [], 65534: [1]}
# What Linux mostly permits to a file's owner alone (fs.protected_hardlinks): not on file systems as ours.
NOT_OTHERS = ["link", "link_open"]
# What the preload library refuses where there is no mount.
NOT_ALONE = ["mkfifo", "setxattr", "getxattr", "listxattr", "removexattr", "link_open", "where"]
# Symbolic links may lead out of the tree, but not far.
BASE = "1/2/3/4/5/6"
FLAGS = [
    os.O_RDONLY,
    os.O_WRONLY,
    os.O_RDWR,
    os.O_RDWR | os.O_CREAT,
    os.O_RDWR | os.O_CREAT | os.O_EXCL,
    os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
    os.O_WRONLY | os.O_CREAT | os.O_APPEND,
    os.O_RDWR | os.O_TRUNC,
    os.O_RDONLY | os.O_DIRECTORY,
    os.O_RDONLY | os.O_NOFOLLOW,
    os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW,
    os.O_PATH,
    os.O_PATH | os.O_NOFOLLOW,
]


class Worker:
    """What the processes do: each method is one operation, on paths below the working directory or on
    descriptors by the numbers that the history gives them."""

    def __init__(self, base, others, user):
        os.chdir(base)
        os.umask(0o022)
        if user != 0:
            os.setgroups(GROUPS[user])
            os.setgid(user)
            os.setuid(user)
        self.others = others
        self.base = os.getcwd()
        self.open_files = {}
        self.libc = ctypes.CDLL(None, use_errno=True)

    def call(self, function, *arguments):
        """Calls a function of the C library's."""
        if getattr(self.libc, function)(*arguments) != 0:
            raise OSError(ctypes.get_errno(), function)

    def attributes(self, found):
        kind = stat.S_IFMT(found.st_mode)
        size = found.st_size if kind in (stat.S_IFREG, stat.S_IFLNK) else None
        return (oct(found.st_mode), found.st_nlink, found.st_uid, found.st_gid, size)

    def at(self, place):
        """The descriptor of a directory that `place` stands for, if any."""
        return None if place is None else self.open_files[place]

    def open(self, number, place, path, flags, mode):
        fd = os.open(path, flags | os.O_NONBLOCK, mode, dir_fd=self.at(place))
        if self.others and stat.S_ISFIFO(os.fstat(fd).st_mode):
            # At each mount it is another one; and the kernel lets everybody open it.
            os.close(fd)
            return "error", "FIFO"
        self.open_files[number] = fd
        return self.attributes(os.fstat(fd))

    def close(self, number):
        os.close(self.open_files.pop(number))

    def read(self, number, offset, length):
        return os.pread(self.open_files[number], length, offset)

    def write(self, number, offset, data):
        return os.pwrite(self.open_files[number], data, offset)

    def read_on(self, number, length):
        fd = self.open_files[number]
        return os.read(fd, length), os.lseek(fd, 0, os.SEEK_CUR)

    def write_on(self, number, data):
        fd = self.open_files[number]
        count, position = os.write(fd, data), os.lseek(fd, 0, os.SEEK_CUR)
        # Behind the end that the kernel has last seen: others may have moved that.
        unseen = self.others and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND
        return count, None if unseen else position

    def seek(self, number, offset, whence):
        fd = self.open_files[number]
        # A directory's positions are its own affair.
        return None if stat.S_ISDIR(os.fstat(fd).st_mode) else os.lseek(fd, offset, whence)

    def fstat(self, number):
        fd = self.open_files[number]
        found = os.fstat(fd)
        if found.st_nlink == 0 and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_PATH:
            # By which the mount does not keep a file: it tells what it was.
            return stat.S_IFMT(found.st_mode)
        return self.attributes(found)

    def ftruncate(self, number, size):
        os.ftruncate(self.open_files[number], size)

    def fchmod(self, number, mode):
        if not self.is_gone(number):
            os.fchmod(self.open_files[number], mode)

    def fchown(self, number, uid, gid):
        if not self.is_gone(number):
            os.fchown(self.open_files[number], uid, gid)

    def is_gone(self, number):
        """Whether it is no regular file, and has lost its last name."""
        found = os.fstat(self.open_files[number])
        return found.st_nlink == 0 and not stat.S_ISREG(found.st_mode)

    def list_open(self, number):
        return sorted(os.listdir(self.open_files[number]))

    def link_open(self, number, path):
        self.link(f"/proc/self/fd/{self.open_files[number]}", path, True)

    def stat(self, place, path, follow):
        return self.attributes(os.stat(path, dir_fd=self.at(place), follow_symlinks=follow))

    def list(self, path):
        with os.scandir(path) as entries:
            return sorted((entry.name, entry.is_dir(follow_symlinks=False), entry.is_symlink()) for entry in entries)

    def mkdir(self, place, path, mode):
        os.mkdir(path, mode, dir_fd=self.at(place))

    def rmdir(self, place, path):
        os.rmdir(path, dir_fd=self.at(place))

    def unlink(self, place, path):
        os.unlink(path, dir_fd=self.at(place))

    def rename(self, place, path, other_place, other, flags):
        at, other_at = (AT_FDCWD if it is None else self.at(it) for it in (place, other_place))
        self.call("renameat2", at, path.encode(), other_at, other.encode(), flags)

    def link(self, path, other, follow):
        # Python's own follows only where it is given descriptors.
        flags = AT_SYMLINK_FOLLOW if follow else 0
        self.call("linkat", AT_FDCWD, path.encode(), AT_FDCWD, other.encode(), flags)

    def symlink(self, place, text, path):
        os.symlink(text, path, dir_fd=self.at(place))

    def readlink(self, place, path):
        return os.readlink(path, dir_fd=self.at(place))

    def mkfifo(self, path, mode):
        os.mkfifo(path, mode)

    def chmod(self, path, mode):
        os.chmod(path, mode)

    def chown(self, path, uid, gid, follow):
        os.chown(path, uid, gid, follow_symlinks=follow)

    def utime(self, path, times, follow):
        os.utime(path, ns=times, follow_symlinks=follow)
        found = os.stat(path, follow_symlinks=follow)
        # A symbolic link on the way to itself has been read by now.
        return None if stat.S_ISLNK(found.st_mode) else found.st_atime_ns, found.st_mtime_ns

    def truncate(self, path, size):
        # To the same length: the pool takes it for a change, some local file systems do not.
        if os.stat(path).st_size != size:
            os.truncate(path, size)

    def access(self, path, mode):
        return os.access(path, mode)

    def setxattr(self, path, name, value, flags, follow):
        os.setxattr(path, name, value, flags, follow_symlinks=follow)

    def getxattr(self, path, name, follow):
        return os.getxattr(path, name, follow_symlinks=follow)

    def removexattr(self, path, name, follow):
        os.removexattr(path, name, follow_symlinks=follow)

    def listxattr(self, path, follow):
        return sorted(os.listxattr(path, follow_symlinks=follow))

    def content(self, path):
        if self.others and stat.S_ISFIFO(os.stat(path).st_mode):
            return "error", "FIFO"
        # Whoever opens a FIFO would wait for its other end.
        with open(path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
            return file.read()

    def replace(self, path, data):
        """As editors do."""
        with open(path + "~", "wb") as file:
            file.write(data)
        os.replace(path + "~", path)

    def chdir(self, path):
        os.chdir(path)
        return os.path.relpath(os.getcwd(), self.base)

    def fchdir(self, number):
        os.fchdir(self.open_files[number])
        return self.getcwd()

    def getcwd(self):
        # The kernel does not hear of what others have moved; and forgets a place that others may not look at.
        return None if self.others else self.shown(os.getcwd())

    def shown(self, path):
        return os.path.relpath(path, self.base)

    def home(self):
        os.chdir(self.base)

    def where(self, number):
        """The path by which the kernel knows what is open."""
        path = os.readlink(f"/proc/self/fd/{self.open_files[number]}")
        return None if self.others else self.shown(path)

    def realpath(self, path):
        if self.others:
            path = os.path.join(self.base, path)
        return os.path.relpath(os.path.realpath(path, strict=True), self.base)

    def extended(self, path):
        """Names of its extended attributes, where there are such."""
        try:
            return sorted(os.listxattr(path, follow_symlinks=False))
        except OSError as error:
            if error.errno != errno.ENOTSUP:
                raise
            return []

    def tree(self):
        """All there is."""
        found, alike = {}, {}
        for directory, names, files in os.walk(self.base):
            for name in sorted(names + files):
                path = os.path.join(directory, name)
                status = os.lstat(path)
                key = os.path.relpath(path, self.base)
                found[key] = [self.attributes(status), self.extended(path)]
                if stat.S_ISLNK(status.st_mode):
                    found[key].append(os.readlink(path))
                if stat.S_ISREG(status.st_mode):
                    with open(path, "rb") as file:
                        found[key].append(zlib.crc32(file.read()))
                alike.setdefault(status.st_ino, []).append(key)
        return found, sorted(sorted(names) for names in alike.values())

    def times(self, paths):
        """Of each path, what its times are."""
        answer = []
        for path in paths:
            try:
                found = os.lstat(path)
                answer.append((found.st_ino, found.st_mtime_ns, found.st_ctime_ns))
            except OSError:
                answer.append(None)
        return answer


def refused(_name, _arguments, error):
    if isinstance(error, KeyError):
        return "not open"
    if isinstance(error, OSError):
        return "error", errno.errorcode.get(error.errno, str(error.errno))
    return error


def process(base, others, user, preload=""):
    name = f"{base} by user {user}" if user else base
    options = ["--user", str(user), *(["--others"] if others else [])]
    return Process(name, __file__, ["--serve", *options, base], preload)


class Difference(Exception):
    pass


class Pair:
    """A process at a mount, and its twin in the local directory."""

    def __init__(self, process, twin, alone, user):
        self.process, self.twin, self.alone = process, twin, alone
        self.left_out = (NOT_ALONE if alone else []) + (NOT_OTHERS if user else [])
        self.open_files = []

    def both(self, name, *arguments):
        found, expected = self.process.ask(name, *arguments), self.twin.ask(name, *arguments)
        if found == expected:
            return found
        # The kernel does not know what the mount would refuse, and may find something else wrong before.
        refused = failed(found) and failed(expected) and {found[1], expected[1]} & {"EACCES", "EPERM"}
        if not refused and not (self.alone and self.may_differ(name, found, expected)):
            raise Difference(
                f"{name}{shown(arguments)} by {self.process.name}:\n   {difference(found, expected)}\n"
                f"locally\n   {difference(expected, found)}"
            )
        # They may be in different directories now.
        self.process.ask("home")
        self.twin.ask("home")
        return found

    def may_differ(self, name, found, expected):
        """Without a mount directories are gone when they are removed, whoever is in them or has them open;
        and of two things that are wrong it is not always told of the one that Linux tells of."""
        gone = name in ("fstat", "fchmod", "fchown", "fchdir", "list_open", "seek") and found == ("error", "ENOENT")
        return gone or name in ("rename", "link") and failed(found) and failed(expected)


class History:
    def __init__(self, pairs, seed, users, modes, log_all):
        self.pairs, self.users, self.modes = pairs, users, modes
        self.chance = random.Random(seed)
        self.log, self.log_all = [], log_all
        self.opened = 0

    def path(self):
        depth = self.chance.choice([1, 1, 2, 2, 2, 3, 3, 4])
        return "/".join(self.chance.choice(NAMES) for _ in range(depth))

    def place(self, pair):
        """No descriptor, mostly; or one that may be of a directory."""
        if pair.open_files and self.chance.random() < 0.3:
            return self.chance.choice(pair.open_files)
        return None

    def data(self):
        return self.chance.randbytes(self.chance.choice([0, 1, 100, 5000, 70_000]))

    def step(self, number):
        pair = self.chance.choice(self.pairs)
        operation = self.operation(pair)
        self.log.append(f"{number}: {pair.process.name}: {operation[0]}{shown(operation[1:])}")
        if self.log_all:
            print(self.log[-1], flush=True)
        paths = [p for p in operation[1:] if isinstance(p, str) and operation[0] != "symlink"]
        paths += [os.path.dirname(p) or "." for p in paths]
        before = [p.ask("times", paths) for p in (pair.process, pair.twin)]
        result = pair.both(*operation)
        after = [p.ask("times", paths) for p in (pair.process, pair.twin)]
        may_change = not failed(result) and operation[0] not in LOOKING
        for path, here, there in zip(paths, *(changes(*both) for both in zip(before, after))):
            # Two changes within a tick of its clock a local file system may give the same time.
            # What only one of them may look at, or still has, is none.
            alike = not (here and there) or here == there or may_change and all(map(operator.ge, here, there))
            if not alike:
                raise Difference(f"times of {path} changed: {here}\nlocally\n   {there}")
        self.log[-1] += f" -> {shown(result)}"
        if operation[0] == "open" and not failed(result):
            pair.open_files.append(operation[1])
        if operation[0] == "close":
            pair.open_files.remove(operation[1])
        if number % 5 == 0:
            looking = self.chance.choice(self.pairs)
            self.log.append(f"{number}: all seen by {looking.process.name}")
            looking.both("tree")

    def operation(self, pair):
        chance = self.chance
        path, other, place = self.path(), self.path(), self.place(pair)
        follow = chance.random() < 0.5
        if len(pair.open_files) > 6:
            return "close", chance.choice(pair.open_files)
        kinds = ["open"] * 4 + ["mkdir"] * 3 + ["rename"] * 4 + ["unlink"] * 2 + ["rmdir", "link", "symlink"]
        kinds += ["readlink", "mkfifo", "chmod", "chown", "utime", "truncate", "access", "setxattr"]
        kinds += ["getxattr", "removexattr", "listxattr", "content", "replace", "stat", "stat", "list", "realpath"]
        kinds += ["chdir", "getcwd", "home", "home"]
        if pair.open_files:
            kinds += ["close", "read", "write", "read_on", "write_on", "seek", "fstat", "fstat", "ftruncate"]
            kinds += ["fchmod", "fchown", "list_open", "link_open", "fchdir", "where"]
            number = chance.choice(pair.open_files)
        kind = chance.choice([kind for kind in kinds if kind not in pair.left_out])
        mode = chance.choice([0o644, 0o600, 0o755, 0o4755, 0o2755, 0o1777, 0o000]) & self.modes
        owner = chance.choice([0, 1, 65534])
        attribute = chance.choice(["user.one", "user.two", "trusted.three"])
        match kind:
            case "open":
                self.opened += 1
                flags = [flags for flags in FLAGS if not (pair.alone and flags & os.O_PATH)]
                return kind, self.opened, place, path, chance.choice(flags), mode
            case "mkdir":
                return kind, place, path, mode
            case "unlink" | "rmdir" | "readlink":
                return kind, place, path
            case "rename":
                return kind, place, path, self.place(pair), other, chance.choice([0, 0, 0, NOREPLACE, EXCHANGE])
            case "link":
                return kind, path, other, follow
            case "symlink":
                return kind, place, chance.choice(TEXTS + ([] if self.users else DOTS)), path
            case "mkfifo" | "chmod":
                return kind, path, mode
            case "chown":
                return kind, path, owner, owner, follow
            case "utime":
                return kind, path, (chance.randrange(2**60), chance.randrange(2**60)), follow
            case "truncate":
                return kind, path, chance.choice([0, 10, 6000, 100_000])
            case "access":
                return kind, path, chance.choice([os.F_OK, os.R_OK, os.W_OK, os.X_OK])
            case "setxattr":
                value, flags = chance.randbytes(chance.randrange(300)), chance.choice([0, 0, 1, 2])
                return kind, path, attribute, value, flags, follow
            case "getxattr" | "removexattr":
                return kind, path, attribute, follow
            case "listxattr":
                return kind, path, follow
            case "stat":
                return kind, place, path, follow
            case "replace":
                return kind, path, self.data()
            case "content" | "list" | "realpath" | "chdir":
                return kind, path
            case "getcwd" | "home":
                return (kind,)
            case "read":
                return kind, number, chance.randrange(8000), chance.choice([1, 1000, 70_000])
            case "ftruncate":
                return kind, number, chance.choice([0, 10, 6000, 100_000])
            case "write":
                return kind, number, chance.randrange(8000), self.data()
            case "read_on":
                return kind, number, chance.choice([1, 1000, 70_000])
            case "write_on":
                return kind, number, self.data()
            case "seek":
                return kind, number, chance.randrange(8000), chance.choice([os.SEEK_SET, os.SEEK_CUR, os.SEEK_END])
            case "fchmod":
                return kind, number, mode
            case "fchown":
                return kind, number, owner, owner
            case "link_open":
                return kind, number, path
            case _:
                return kind, number


def failed(answer):
    return isinstance(answer, tuple) and answer[:1] == ("error",)


def changes(before, after):
    """Of each path that is the same one before and after: whether its times have changed."""
    return [
        (one[1] != two[1], one[2] != two[2]) if one and two and one[0] == two[0] else None
        for one, two in zip(before, after)
    ]


def difference(one, other):
    """What is worth showing of one answer that differs from another."""
    if isinstance(one, tuple) and one and isinstance(one[0], dict) and isinstance(other[0], dict):
        return {key: value for key, value in one[0].items() if other[0].get(key) != value}, one[1] == other[1]
    return shown(one)


def shown(value):
    text = repr(value)
    return text if len(text) < 150 else text[:150] + "..."


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--others", action="store_true")
    parser.add_argument("--user", type=int, default=0)
    parser.add_argument("--users", action="store_true")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--preload", default="")
    parser.add_argument("--local", default="/dev/shm")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--log", action="store_true", help="print each step")
    parser.add_argument("directories", nargs="+")
    options = parser.parse_args()
    if options.serve:
        return serve(Worker(options.directories[0], options.others, options.user), refused)

    local = tempfile.mkdtemp(dir=options.local)
    os.chmod(local, 0o755)
    try:
        ways = [(base, "") for base in options.directories]
        if options.preload:
            ways += [(base, options.preload) for base in options.directories]
        others = options.users or len(options.directories) > 1
        inside = lambda directory: os.path.join(directory, BASE)
        for directory in [options.directories[0], local]:
            os.makedirs(inside(directory))
            os.chmod(inside(directory), 0o777)
        pairs = [
            Pair(
                process(inside(base), others, user, preload),
                process(inside(local), others, user),
                options.alone,
                user,
            )
            for base, preload in ways
            for user in ([0, *GROUPS] if options.users else [0])
        ]
        # That a file was made set-user-id at another mount after it was opened here is not seen, and a write of an
        # ordinary user's here does not end it then.
        modes = 0o1777 if os.geteuid() != 0 and len(options.directories) > 1 else 0o7777
        history = History(pairs, options.seed, options.users, modes, options.log)
        try:
            for number in range(options.steps):
                history.step(number)
        except Difference as difference:
            print("\n".join(history.log[-40:]))
            sys.exit(f"trees.py: seed {options.seed}: {difference}")
        for pair in pairs:
            pair.process.end()
            pair.twin.end()
        print(f"trees.py: seed {options.seed}: {options.steps} steps of {len(pairs)} processes")
    finally:
        # A directory may be closed, also to its owner.
        subprocess.run(["chmod", "-R", "u+rwx", local], check=True)
        shutil.rmtree(local)


if __name__ == "__main__":
    main()
