#!/usr/bin/env python3
"""What is large: files, directories, names, paths. Works in the directory that it is given."""

import errno
import mmap
import os
import sys
import time

GIB = 1 << 30


def fails(code, work, *arguments):
    try:
        work(*arguments)
    except OSError as error:
        assert error.errno == code, error
    else:
        raise AssertionError(f"{work.__name__}{arguments} works")


def large_file():
    far = 5 * GIB + 12_345
    file = os.open("file", os.O_RDWR | os.O_CREAT)
    data = os.urandom(300_000)
    os.pwrite(file, data, far)
    assert os.fstat(file).st_size == far + len(data)
    assert os.fstat(file).st_blocks * 512 < 1 << 20
    assert os.pread(file, len(data), far) == data
    assert os.lseek(file, 0, os.SEEK_END) == far + len(data)
    os.lseek(file, far, os.SEEK_SET)
    assert os.read(file, 1000) == data[:1000]
    assert 4 * GIB < os.lseek(file, 0, os.SEEK_DATA) <= far
    assert os.lseek(file, 3 * GIB, os.SEEK_HOLE) == 3 * GIB
    page = far // mmap.PAGESIZE * mmap.PAGESIZE
    with mmap.mmap(file, 100_000, offset=page) as view:
        assert view[far - page : far - page + 1000] == data[:1000]
        view[far - page] = 7
        view.flush()
    assert os.pread(file, 2, far) == b"\7" + data[1:2]
    copy = os.open("copy", os.O_RDWR | os.O_CREAT)
    assert os.copy_file_range(file, copy, 1000, far, 6 * GIB) == 1000
    assert os.pread(copy, 999, 6 * GIB + 1) == data[1:1000]
    os.ftruncate(file, 4 * GIB + 1)
    assert os.pread(file, 10, 4 * GIB - 5) == bytes(6)
    with open("file", "ab") as appender:
        appender.write(b"end")
    assert os.pread(file, 10, 4 * GIB + 1) == b"end"
    os.ftruncate(file, 1 << 43)
    assert os.stat("file").st_size == 1 << 43
    os.close(file)
    os.close(copy)
    os.unlink("file")
    os.unlink("copy")


def large_directory(count):
    os.mkdir("directory")
    begin = time.monotonic()
    names = {f"{number:06d}" for number in range(count)}
    for name in names:
        os.mknod(f"directory/{name}")
    made = time.monotonic()
    listed = os.listdir("directory")
    took = time.monotonic() - made
    assert len(listed) == count and set(listed) == names
    print(f"large.py: {count / (made - begin):.0f} made in a second; all listed in {took:.2f} s")
    fails(errno.ENOTEMPTY, os.rmdir, "directory")
    assert os.stat("directory/050000").st_size == 0
    # The first are removed as they are listed: none is skipped, none comes twice.
    with os.scandir("directory") as entries:
        for number, entry in enumerate(entries):
            assert entry.is_file(follow_symlinks=False)
            names.remove(entry.name)
            if number < 10_000:
                os.unlink(entry.path)
    assert not names
    assert len(os.listdir("directory")) == count - 10_000


def long_names():
    octets = bytes(octet for octet in range(1, 256) if octet != ord("/")) + b"x"
    assert len(octets) == 255
    for name in (octets, b"n" * 255, "\u00e9".encode() * 127):
        os.mkdir(name)
        assert name in os.listdir(b".")
        os.rename(name, name[1:] if name != octets else b"other")
        os.rmdir(name[1:] if name != octets else b"other")
    for work in (os.mkdir, os.stat, os.unlink, os.listdir):
        fails(errno.ENAMETOOLONG, work, b"n" * 256)
    os.symlink("t" * 4095, "link")
    assert os.readlink("link") == "t" * 4095
    os.unlink("link")
    os.symlink("end", "chain0")
    for number in range(1, 41):
        os.symlink(f"chain{number - 1}", f"chain{number}")
    with open("end", "w"):
        pass
    os.stat("chain39")
    fails(errno.ELOOP, os.stat, "chain40")
    for number in range(1000):
        os.link("end", f"end{number}")
    assert os.stat("end").st_nlink == 1001
    for name in os.listdir("."):
        os.unlink(name)


def deep_path():
    start = os.getcwd()
    name = "d" * 200
    for _ in range(40):
        os.mkdir(name)
        os.chdir(name)
    with open("leaf", "w") as file:
        file.write("deep")
    fails(errno.ENAMETOOLONG, os.stat, start + f"/{name}" * 40)
    os.chdir("../..")
    with open(f"{name}/{name}/leaf") as file:
        assert file.read() == "deep"
    os.chdir(start)
    at = os.open(".", os.O_RDONLY)
    for _ in range(40):
        below = os.open(name, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.unlink("leaf", dir_fd=at)
    for _ in range(40):
        above = os.open("..", os.O_RDONLY, dir_fd=at)
        os.rmdir(name, dir_fd=above)
        os.close(at)
        at = above
    os.close(at)
    assert os.listdir(".") == []


os.mkdir(sys.argv[1])
os.chdir(sys.argv[1])
large_file()
long_names()
deep_path()
large_directory(100_000)
