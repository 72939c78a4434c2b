"""Files, maps and processes of Python in the current directory. Says what it sees."""

import ctypes
import errno
import fcntl
import glob
import hashlib
import io
import mmap
import multiprocessing
import os
import pathlib
import random
import shelve
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile

import numpy


def digest(path):
    with open(path, "rb") as file:
        return hashlib.md5(file.read()).hexdigest()


def refused(what, number):
    try:
        what()
    except OSError as error:
        assert error.errno == number, error
    else:
        raise AssertionError(f"no error {errno.errorcode[number]}")


def modes():
    with open("text", "x") as file:
        file.write("one\ntwo\n")
    refused(lambda: open("text", "x"), errno.EEXIST)
    with open("text", "a+") as file:
        assert file.tell() == 8
        file.write("three\n")
        file.seek(0)
        print(file.readlines())
    with open("text", "r+") as file:
        print(file.readline(), end="")
        file.seek(4)
        file.write("TWO")
        file.seek(0)
        print(file.read().split())
        file.truncate(4)
    print(os.stat("text").st_size)
    with open("text", "w+b", buffering=0) as file:
        assert file.write(b"unbuffered") == 10
        assert file.seek(-3, os.SEEK_END) == 7 and file.read(10) == b"red"
        file.seek(100)
        file.write(b"far")
        into = bytearray(200)
        file.seek(5)
        print(file.readinto(into), bytes(into[:5]))
    with open("text", "rb") as reader, open("text", "r+b", buffering=0) as writer:
        assert reader.read(3) == b"unb"
        writer.write(b"XXX")
        assert os.pread(reader.fileno(), 3, 0) == b"XXX"
        assert os.pwritev(writer.fileno(), [b"a", b"bc"], 200) == 3
        assert os.fstat(reader.fileno()).st_size == 203
    with io.open("lines", "w", encoding="utf-16", newline="\r\n") as file:
        file.writelines(f"Zeile {number} äöü\n" for number in range(10000))
    with open("lines", encoding="utf-16") as file:
        assert sum(1 for _ in file) == 10000
    print(digest("lines"))
    fd = os.open("flags", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_SYNC, 0o604)
    assert os.write(fd, b"x" * 5000) == 5000
    os.ftruncate(fd, 3000)
    os.posix_fallocate(fd, 0, 10000)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.fsync(fd), os.fdatasync(fd)
    print(os.fstat(fd).st_size, os.pread(fd, 2, 2999), oct(os.fstat(fd).st_mode))
    assert os.lseek(fd, 0, os.SEEK_DATA) == 0
    os.close(fd)
    # Over 2 and over 4 GiB.
    with open("far", "w+b") as file:
        for place in (2**31 - 2, 2**32 - 2, 2**33 + 5):
            file.seek(place)
            file.write(b"behind")
        file.seek(2**32 - 1)
        print(file.read(6), os.fstat(file.fileno()).st_size)


def trees():
    for path in ("tree/a/b", "tree/c"):
        pathlib.Path(path).mkdir(parents=True)
        for index in range(20):
            pathlib.Path(path, f"f{index}").write_bytes(os.urandom(0) + bytes([index]) * index * 1000)
    os.symlink("a/b/f1", "tree/link")
    os.utime("tree/c/f3", ns=(1_000_000_000_123_456_789, 1_100_000_000_987_654_321))
    shutil.copytree("tree", "copy", symlinks=True)
    assert os.stat("copy/c/f3").st_mtime_ns == 1_100_000_000_987_654_321
    shutil.make_archive("archive", "zip", "tree")
    shutil.make_archive("archive", "gztar", "tree")
    shutil.unpack_archive("archive.zip", "unpacked")
    assert zipfile.ZipFile("archive.zip").testzip() is None
    print(sorted(glob.glob("unpacked/**", recursive=True))[:5], os.readlink("copy/link"))
    shutil.move("copy/c", "moved")
    print(len(os.listdir("moved")), sum(entry.stat().st_size for entry in os.scandir("moved")))
    shutil.copy2("tree/c/f3", "f3")
    assert os.stat("f3").st_mtime_ns == os.stat("tree/c/f3").st_mtime_ns
    shutil.rmtree("tree"), shutil.rmtree("moved")
    refused(lambda: os.rmdir("copy"), errno.ENOTEMPTY)
    usage = shutil.disk_usage(".")
    assert usage.total >= usage.used + usage.free > 0
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryFile() as file:
        assert directory.startswith(os.environ["TMPDIR"])
        file.write(b"nameless")
        file.seek(0)
        assert file.read() == b"nameless" and not os.listdir(directory)
        with tempfile.NamedTemporaryFile(dir=directory) as named:
            assert os.path.exists(named.name)
    with tempfile.SpooledTemporaryFile(max_size=10) as file:
        file.write(b"more than ten bytes")
        file.seek(5)
        print(file.read())
    directory = os.open(".", os.O_RDONLY)
    os.mkdir("at", dir_fd=directory)
    os.rename("at", "at2", src_dir_fd=directory, dst_dir_fd=directory)
    os.rmdir("at2", dir_fd=directory)
    os.close(directory)
    with shelve.open("shelf") as shelf:
        for number in range(500):
            shelf[str(number)] = list(range(number % 17))
    with shelve.open("shelf", "r") as shelf:
        print(len(shelf), shelf["33"])
    os.setxattr("f3", "user.colour", b"green")
    print(os.getxattr("f3", "user.colour"), os.listxattr("f3"))


def maps():
    size = 3 * 1024 * 1024 + 777
    data = bytearray(random.Random(1).randbytes(size))
    pathlib.Path("mapped").write_bytes(data)
    with open("mapped", "r+b") as file:
        with mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE) as private:
            assert private[:] == data
            private[0:7] = b"private"
        assert file.read(7) == data[:7]
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
            assert view[1_000_000:2_000_000] == data[1_000_000:2_000_000]
        with mmap.mmap(file.fileno(), 0) as shared:
            for place in (0, 4095, 4096, 1024 * 1024 - 3, size - 5):
                shared[place : place + 5] = data[place : place + 5] = b"12345"
            shared.flush()
            # What was written back is there for read, also by another opening.
            assert pathlib.Path("mapped").read_bytes() == data
            shared[100:105] = data[100:105] = b"after"
        assert pathlib.Path("mapped").read_bytes() == data
        # What is written is there in a later map.
        os.pwrite(file.fileno(), b"written", 5000)
        data[5000:5007] = b"written"
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
            assert view[:] == data
    print(digest("mapped"))
    # A map that two processes share.
    with open("shared", "w+b") as file:
        file.truncate(10000)
        with mmap.mmap(file.fileno(), 10000) as shared:
            pid = os.fork()
            if pid == 0:
                shared[5000:5005] = b"child"
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
            assert shared[5000:5005] == b"child"
            subprocess.run([sys.executable, "-c", MAPPER], check=True)
            assert shared[7000:7005] == b"other"

    array = numpy.memmap("array", dtype="float64", mode="w+", shape=(300, 500))
    array[:] = numpy.arange(150_000).reshape(300, 500)
    array[10, 20] = -1
    array.flush()
    print(numpy.fromfile("array").sum(), os.stat("array").st_size)
    del array
    again = numpy.memmap("array", dtype="float64", mode="r+", shape=(300, 500))
    again[299] *= 2
    del again
    print(numpy.memmap("array", dtype="float64", mode="r").sum())
    numpy.save("saved.npy", numpy.arange(1000.0))
    print(numpy.load("saved.npy", mmap_mode="r")[-1], numpy.load("saved.npy")[1])
    numpy.savez_compressed("saved.npz", a=numpy.ones(1000), b=numpy.zeros(7))
    print({name: float(value.sum()) for name, value in numpy.load("saved.npz").items()})
    numpy.arange(777, dtype="int32").tofile("raw")
    print(numpy.fromfile("raw", dtype="int32", offset=400, count=3))


MAPPER = """
import mmap
with open("shared", "r+b") as file, mmap.mmap(file.fileno(), 0) as shared:
    assert shared[5000:5005] == b"child"
    shared[7000:7005] = b"other"
"""

RECORD = 3001


def fill(fd, path, rank, count):
    """By the description of the parent and by one of its own."""
    own = os.open(path, os.O_RDWR)
    for index in range(rank, 200, count):
        os.pwrite(fd if index % 2 else own, bytes([index]) * RECORD, index * RECORD)
        assert os.pread(own if index % 2 else fd, RECORD, index * RECORD) == bytes([index]) * RECORD
    os.close(own)


def square(number):
    with open("pooled", "ab", buffering=0) as file:
        file.write(f"{number:04d}\n".encode())
    return number * number


def processes():
    fd = os.open("filled", os.O_RDWR | os.O_CREAT)
    fork = multiprocessing.get_context("fork")
    workers = [fork.Process(target=fill, args=(fd, "filled", rank, 4)) for rank in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    expected = b"".join(bytes([index]) * RECORD for index in range(200))
    assert os.pread(fd, len(expected) + 1, 0) == expected
    os.close(fd)
    with fork.Pool(4) as pool:
        print(sum(pool.map(square, range(100))))
    print(len(set(open("pooled"))), os.stat("pooled").st_size)

    with open("inherited", "w+b", buffering=0) as file:
        file.write(b"parent\n")
        number = str(file.fileno())
        child = f"import os; os.write({number}, b'child\\n')"
        subprocess.run([sys.executable, "-c", child], pass_fds=[file.fileno()], check=True)
        subprocess.run(["sh", "-c", "echo shell; echo error >&2"], stdout=file, stderr=file, check=True)
        subprocess.run(["cat"], input=b"piped\n", stdout=file, check=True)
        file.write(b"parent\n")
        file.seek(0)
        subprocess.run(["head", "-n", "2"], stdin=file, check=True, stdout=open("head", "w"))
        print(file.read(), open("head").read().split())
    refused(lambda: subprocess.run(["./head"]), errno.EACCES)

    with open("threaded", "w+b") as file:
        descriptor = file.fileno()

        def part(rank):
            for index in range(rank, 400, 8):
                os.pwrite(descriptor, bytes([index % 251]) * 1234, index * 1234)

        threads = [threading.Thread(target=part, args=(rank,)) for rank in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print(digest("threaded"))


def inside_kernel():
    """Copies that never come to the program."""
    source = os.environ["INPUT"] + "/noise"
    size = os.stat(source).st_size
    shutil.copyfile(source, "here")
    with open("here", "rb") as here, open("sent", "wb") as sent:
        done = 0
        while done < size:
            done += os.sendfile(sent.fileno(), here.fileno(), done, size - done)
    assert digest("sent") == digest(source)
    with open("here", "rb") as here, open("ranged", "wb") as ranged:
        done = 0
        while done < size:
            done += os.copy_file_range(here.fileno(), ranged.fileno(), size - done)
    assert digest("ranged") == digest(source)
    with open("here", "rb") as here, open("ranged", "r+b") as ranged:
        assert os.copy_file_range(here.fileno(), ranged.fileno(), 1000, 5000, 777) == 1000
        here.seek(5000)
        ranged.seek(777)
        assert here.read(1000) == ranged.read(1000)
    read, write = os.pipe()
    with open("here", "rb") as here, open("spliced", "wb") as spliced:
        moved = 0
        while moved < 300_000:
            count = os.splice(here.fileno(), write, 60_000, offset_src=moved)
            while count > 0:
                part = os.splice(read, spliced.fileno(), count)
                moved += part
                count -= part
    with open(source, "rb") as file:
        assert pathlib.Path("spliced").read_bytes() == file.read(moved)
    print(digest("here"), moved)


def locks():
    """Within one machine."""
    child = "import fcntl, sys; f = open('locked', 'r+b'); fcntl.{}(f, fcntl.LOCK_EX | fcntl.LOCK_NB)"
    for call in ("flock", "lockf"):
        with open("locked", "w+b") as file:
            getattr(fcntl, call)(file, fcntl.LOCK_EX)
            words = [sys.executable, "-c", child.format(call)]
            assert subprocess.run(words, stderr=subprocess.PIPE).returncode == 1
            getattr(fcntl, call)(file, fcntl.LOCK_UN)
            assert subprocess.run(words).returncode == 0
            getattr(fcntl, call)(file, fcntl.LOCK_SH)
        assert subprocess.run(words).returncode == 0
    print("locks")


def errno_is_kept():
    """What succeeds leaves errno alone."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open("errno", os.O_RDWR | os.O_CREAT)
    buffer = ctypes.create_string_buffer(b"x" * 100, 100)
    ctypes.set_errno(77)
    assert libc.write(fd, buffer, 100) == 100 and ctypes.get_errno() == 77
    assert libc.lseek(fd, 0, 0) == 0 and libc.read(fd, buffer, 100) == 100
    assert libc.close(fd) == 0 and ctypes.get_errno() == 77
    assert libc.close(fd) == -1 and ctypes.get_errno() == errno.EBADF


for step in (modes, trees, maps, processes, inside_kernel, locks, errno_is_kept):
    print(step.__name__)
    step()
    sys.stdout.flush()
