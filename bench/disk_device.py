"""What bench/disk measures devices with and slows them down by: fio, cgroups, loop devices."""

import contextlib
import glob
import json
import os
import subprocess
import sys

from machine import Group


def number_of(path):
    """MAJOR:MINOR of the whole device under a directory (limits are set on those)."""
    number = os.stat(path).st_dev
    name = f"{os.major(number)}:{os.minor(number)}"
    block = os.path.realpath(f"/sys/dev/block/{name}")
    if os.path.exists(os.path.join(block, "partition")):
        with open(os.path.join(os.path.dirname(block), "dev"), encoding="ascii") as file:
            name = file.read().strip()
    return name


class Limits(Group):
    """A cgroup whose members read and write some devices no faster than so many bytes a second, each way.

    It also counts what they move."""

    def __init__(self, limits):
        super().__init__("blkio", "io")
        try:
            for device, rate in limits.items():
                if self.old:
                    for way in ("read", "write"):
                        self.set(f"blkio.throttle.{way}_bps_device", f"{device} {rate}")
                else:
                    self.set("io.max", f"{device} rbps={rate} wbps={rate}")
        except OSError:
            self.close()
            raise

    def words(self):
        return "cgroup version 1, blkio.throttle" if self.old else "cgroup version 2, io.max"


@contextlib.contextmanager
def limited(limits):
    """A group, or none with the reason why."""
    try:
        group = Limits(limits)
    except OSError as error:
        yield None, f"{error.strerror} ({error.filename})"
        return
    try:
        yield group, None
    finally:
        group.close()


def sectors(device):
    """What a device itself has counted: bytes read and written, by anybody."""
    with open(f"/sys/dev/block/{device}/stat", encoding="ascii") as file:
        fields = file.read().split()
    return int(fields[2]) * 512, int(fields[6]) * 512


@contextlib.contextmanager
def loops(directory, count, size):
    """File systems on loop devices over files in a directory; None if that cannot be done here."""
    made, mounted = [], []
    try:
        places = []
        for index in range(count):
            image = os.path.join(directory, f".weir-bench-{os.getpid()}-{index}")
            made.append(image)
            with open(image, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, size)
            place = image + ".mount"
            os.mkdir(place)
            made.append(place)
            for words in (["mkfs.ext4", "-q", "-F", image],
                          ["mount", "-o", "loop", image, place]):
                done = subprocess.run(words, capture_output=True, text=True)
                if done.returncode:
                    yield None, f"{words[0]}: {done.stderr.strip()}"
                    return
            mounted.append(place)
            # The images' own pages are not to be a cache before the disk.
            device = os.path.basename(os.path.realpath(f"/sys/dev/block/{number_of(place)}"))
            subprocess.run(["losetup", "--direct-io=on", f"/dev/{device}"], check=False,
                           capture_output=True)
            places.append(place)
        yield places, None
    finally:
        for place in mounted:
            subprocess.run(["umount", place], check=False)
        for path in reversed(made):
            with contextlib.suppress(OSError):
                os.rmdir(path) if path.endswith(".mount") else os.remove(path)


def fio(directories, group=None, **options):
    """fio with one job in each of some directories, on files of this benchmark. Gives bytes and requests
    a second, of all together."""
    words = ["fio", "--output-format=json", "--thread", "--ioengine=io_uring", "--direct=1", "--group_reporting"]
    words += [f"--{name}={value}" for name, value in options.items()]
    for index, directory in enumerate(directories):
        words += [f"--name=raw{index}", f"--filename={raw_file(directory)}"]
    done = subprocess.run(words, capture_output=True, text=True,
                          preexec_fn=group.enter if group else None)
    if done.returncode:
        sys.exit(f"bench/disk: {' '.join(words)}: {done.stderr}{done.stdout}")
    job = json.loads(done.stdout)["jobs"][0]["write" if "write" in options["rw"] else "read"]
    return job["bw_bytes"], job["iops"]


def raw_file(directory):
    return os.path.join(directory, f".weir-bench-{os.getpid()}.raw")


def raw(directories, total, seconds, group=None, random=True):
    """The bare devices: sequential write and read of `total` bytes in each, random reads."""
    same = {"bs": "1M", "iodepth": 8, "size": total}
    try:
        # The pool's file is allocated, too.
        write, _ = fio(directories, group, rw="write", end_fsync=1, fallocate="posix", **same)
        read, _ = fio(directories, group, rw="read", **same)
        result = {"write": write, "read": read}
        if random:
            _, result["random"] = fio(directories, group, rw="randread", bs="16k", iodepth=32, size=total,
                                      time_based=1, runtime=seconds)
        return result
    finally:
        for directory in directories:
            for path in glob.glob(raw_file(directory)):
                os.remove(path)
