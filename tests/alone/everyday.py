"""What a program without a mount may do, in the pool and, to know that the
test is right, in a local directory: `everyday.py DIRECTORY [pool]`."""

import errno
import mmap
import multiprocessing
import os
import shutil
import subprocess
import sys

import h5py
import numpy

directory = sys.argv[1]
in_pool = len(sys.argv) > 2


def at(name):
    return os.path.join(directory, name)


def refused(number, act, *arguments):
    """Without a mount it fails, and says so."""
    try:
        act(*arguments)
    except OSError as error:
        assert not in_pool or error.errno in number, (act, error)
        return
    assert not in_pool, act


def files():
    data = os.urandom(3_000_001)
    with open(at("f"), "wb") as file:
        assert file.write(data[:1000]) == 1000
        file.write(data[1000:])
        assert file.tell() == len(data)
    with open(at("f"), "rb") as file:
        assert file.read() == data
        assert file.read(1) == b""
        file.seek(-5, os.SEEK_END)
        assert file.read(100) == data[-5:]
        assert os.fstat(file.fileno()).st_size == len(data)
    found = os.stat(at("f"))
    assert found.st_size == len(data) and found.st_nlink == 1, found
    assert os.path.samefile(at("f"), directory + "/.//./f")
    with open(at("f"), "r+b") as file:
        assert os.pwrite(file.fileno(), b"xyz", 2_000_000) == 3
        assert os.pread(file.fileno(), 5, 1_999_999) == data[1_999_999:2_000_000] + b"xyz" + data[2_000_003:2_000_004]
        file.truncate(10)
        assert os.fstat(file.fileno()).st_size == 10
    os.truncate(at("f"), 20)
    assert open(at("f"), "rb").read() == data[:10] + bytes(10)
    for line in ["one\n", "two\n"]:
        with open(at("log"), "a") as file:
            file.write(line)
    assert open(at("log")).read() == "one\ntwo\n"
    try:
        open(at("log"), "x")
        assert False
    except FileExistsError:
        pass
    for mode, wrong in [("none/x", FileNotFoundError), ("log/x", NotADirectoryError)]:
        try:
            open(at(mode), "w")
            assert False
        except wrong:
            pass
    assert not os.path.exists(at("none")) and os.access(at("log"), os.R_OK | os.W_OK)
    fd = os.open(at("sparse"), os.O_RDWR | os.O_CREAT, 0o640)
    assert os.stat(at("sparse")).st_mode & 0o777 == 0o640
    os.pwrite(fd, b"end", 1 << 20)
    assert os.lseek(fd, 0, os.SEEK_DATA) == 1 << 20
    assert os.lseek(fd, 0, os.SEEK_HOLE) == 0
    assert os.lseek(fd, 0, os.SEEK_END) == (1 << 20) + 3
    copy = os.dup(fd)
    os.lseek(copy, 1 << 20, os.SEEK_SET)
    os.close(copy)
    assert os.read(fd, 10) == b"end"
    os.fsync(fd)
    os.utime(fd, (5, 7))
    assert os.fstat(fd).st_mtime == 7
    os.close(fd)
    fd = os.open(at("sparse"), os.O_RDONLY)
    try:
        os.write(fd, b"x")
        assert False
    except OSError as error:
        assert error.errno == errno.EBADF, error
    os.close(fd)


def names():
    os.makedirs(at("d/e"))
    for index in range(1500):
        with open(at(f"d/{index:04}"), "w"):
            pass
    expected = sorted([f"{index:04}" for index in range(1500)] + ["e"])
    assert sorted(os.listdir(at("d"))) == expected
    kinds = {entry.name: entry.is_dir() for entry in os.scandir(at("d"))}
    assert kinds["e"] and not kinds["0000"] and len(kinds) == 1501
    os.rename(at("d/0000"), at("d/e/moved"))
    os.symlink("moved", at("d/e/link"))
    assert os.readlink(at("d/e/link")) == "moved"
    assert os.lstat(at("d/e/link")).st_mode != os.stat(at("d/e/link")).st_mode
    for name, expected in (("none/", errno.EISDIR), ("d/e/moved/", errno.ENOTDIR)):
        try:
            os.open(at(name), os.O_CREAT | os.O_WRONLY)
            assert False, name
        except OSError as error:
            assert error.errno in (expected, errno.EISDIR), error
    assert not os.path.exists(at("none")) and os.path.isdir(at("d/e/"))
    os.mkdir(at("slash/"))
    os.rename(at("slash/"), at("hash/"))
    os.rmdir(at("hash/"))
    for text in (at("d/e"), at("d/e/moved"), "/etc/hostname", "/"):
        os.symlink(text, at("absolute"))
        assert os.readlink(at("absolute")) == text, text
        assert os.lstat(at("absolute")).st_size == len(text), text
        if text == at("d/e"):
            assert sorted(os.listdir(at("absolute"))) == ["link", "moved"]
            assert os.path.samefile(at("absolute/link"), at("d/e/moved"))
            with open(at("absolute/made"), "w"):
                pass
            os.unlink(at("d/e/made"))
        elif text == at("d/e/moved"):
            assert os.path.samefile(at("absolute"), text)
            assert os.path.realpath(at("absolute")) == os.path.realpath(text)
        os.unlink(at("absolute"))
    os.link(at("d/e/moved"), at("d/e/second"))
    assert os.stat(at("d/e/second")).st_nlink == 2
    assert [len(files) for _, _, files in os.walk(at("d"))] == [1499, 3]
    try:
        os.rmdir(at("d"))
        assert False
    except OSError as error:
        assert error.errno == errno.ENOTEMPTY, error
    shutil.copytree(at("d/e"), at("copied"), symlinks=True)
    assert sorted(os.listdir(at("copied"))) == ["link", "moved", "second"]
    shutil.rmtree(at("d"))
    shutil.rmtree(at("copied"))
    assert not os.path.exists(at("d"))


def memory():
    data = os.urandom(100_000)
    with open(at("m"), "wb") as file:
        file.write(data)
    with open(at("m"), "rb") as file:
        with mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) as seen:
            assert seen[:] == data
    with open(at("m"), "r+b") as file:
        refused([errno.EOPNOTSUPP], mmap.mmap, file.fileno(), 0)
    array = numpy.arange(500_000, dtype=float).reshape(500, 1000)
    numpy.save(at("a.npy"), array)
    assert (numpy.load(at("a.npy")) == array).all()
    numpy.savez(at("a.npz"), one=array, two=array * 2)
    with numpy.load(at("a.npz")) as found:
        assert (found["two"] == array * 2).all()
    array.tofile(at("a.raw"))
    assert (numpy.fromfile(at("a.raw")) == array.ravel()).all()


def work(index):
    with open(at("shared"), "r+b") as file:
        file.seek(index * 1000)
        file.write(bytes([index]) * 1000)
    return index


def children():
    with open(at("shared"), "wb") as file:
        file.truncate(8000)
    with multiprocessing.get_context("fork").Pool(4) as pool:
        assert pool.map(work, range(8)) == list(range(8))
    assert open(at("shared"), "rb").read() == b"".join(bytes([index]) * 1000 for index in range(8))
    # The position is shared after fork, and children that execute programs have it too.
    with open(at("out"), "wb") as file:
        file.write(b"before\n")
        file.flush()
        subprocess.run(["sh", "-c", "echo sh; cat; printf 'b%d' 7"], input=b"cat\n", stdout=file, check=True)
        file.write(b"\nafter\n")
    assert open(at("out"), "rb").read() == b"before\nsh\ncat\nb7\nafter\n"
    with open(at("out"), "rb") as file:
        found = subprocess.run(["sort"], stdin=file, stdout=subprocess.PIPE, check=True)
    assert found.stdout == b"after\nb7\nbefore\ncat\nsh\n", found
    os.mkdir(at("work"))
    found = subprocess.run(["sh", "-c", "pwd; echo x >y"], cwd=at("work"), stdout=subprocess.PIPE, check=True)
    assert found.stdout.decode().strip() == os.path.realpath(at("work")), found
    assert open(at("work/y")).read() == "x\n"
    fd = os.open(at("log2"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for word in [b"parent ", b"again "]:
        child = os.fork()
        if child == 0:
            os.write(fd, b"child ")
            os._exit(0)
        os.waitpid(child, 0)
        os.write(fd, word)
    os.close(fd)
    assert open(at("log2")).read() == "child parent child again "


def refusals():
    import fcntl

    refused([errno.ENOSYS], os.mkfifo, at("fifo"))
    with open(at("locked"), "w") as file:
        refused([errno.ENOSYS], fcntl.flock, file, fcntl.LOCK_EX)
        refused([errno.ENOLCK], fcntl.lockf, file, fcntl.LOCK_EX)
        if in_pool:
            refused([errno.EOPNOTSUPP], os.posix_fallocate, file.fileno(), 0, 100)
            refused([errno.EOPNOTSUPP], os.getxattr, file.fileno(), "user.x")


def hdf5():
    """HDF5 locks each file that it opens, where there are locks."""
    wanted = numpy.arange(120_000.0).reshape(400, 300)
    with h5py.File(at("data.h5"), "w") as file:
        file.create_dataset("plain", data=wanted)
        grown = file.create_dataset("grown", (0, 300), maxshape=(None, 300), compression="gzip")
        for row in range(0, 400, 50):
            grown.resize(row + 50, axis=0)
            grown[row : row + 50] = wanted[row : row + 50]
    with h5py.File(at("data.h5"), "r+") as file:
        file["plain"][7] = -1
        file.attrs["told"] = "x" * 1000
    wanted[7] = -1
    with h5py.File(at("data.h5"), "r") as file:
        assert (file["plain"][:] == wanted).all()
        assert (file["grown"][:7] == wanted[:7]).all()
        assert file.attrs["told"] == "x" * 1000


for part in [files, names, memory, children, hdf5, refusals]:
    part()
    print(part.__name__, "ok", flush=True)
