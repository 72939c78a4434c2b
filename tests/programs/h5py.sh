#!/usr/bin/env bash
# HDF5 by h5py: chunks, growing data sets, several openings, several files.
set -euo pipefail
# shellcheck source=tests/programs/lib.sh
. "$PROGRAMS/lib.sh"

python3 - <<'PY'
import os, subprocess, sys
import h5py, numpy

chance = numpy.random.default_rng(3)
values = chance.random((400, 333))
with h5py.File("data.h5", "w") as file:
    plain = file.create_dataset("plain", data=values)
    chunked = file.create_dataset("chunked", (0, 333), maxshape=(None, 333), chunks=(17, 50), dtype="f8")
    for row in range(0, 400, 40):
        chunked.resize((row + 40, 333))
        chunked[row : row + 40] = values[row : row + 40]
    packed = file.create_dataset("group/packed", data=values, chunks=True, compression="gzip", shuffle=True, fletcher32=True)
    packed.attrs["units"] = "hartree"
    file["soft"] = h5py.SoftLink("/group/packed")
    file.create_dataset("text", data=[f"line {n}" for n in range(100)], dtype=h5py.string_dtype())
for mode in ("r+", "a"):
    with h5py.File("data.h5", mode) as file:
        file["chunked"][:400:7] += 1
        file["chunked"].resize((500 if mode == "a" else 450, 333))
        file.require_group("more").create_dataset(mode, data=numpy.arange(10))
        del file["text"]
        file["text"] = "anew"
values[::7] += 2
with h5py.File("data.h5", "r") as one, h5py.File("data.h5", "r") as two:
    assert (one["chunked"][:400] == values).all() and (two["chunked"][400:] == 0).all()
    assert two["soft"].attrs["units"] == "hartree"
    assert numpy.array_equal(one["plain"][5:300:9, ::11], two["soft"][5:300:9, ::11])
    print(sorted(one), one["chunked"].shape, two["text"][()], float(one["soft"][:].sum()))

# Whoever writes locks the file.
sys.stdout.flush()
with h5py.File("data.h5", "r+"):
    opening = 'import h5py\ntry: h5py.File("data.h5", "r+")\nexcept OSError: print("locked")'
    subprocess.run([sys.executable, "-c", opening], check=True)

# One writes while others read (SWMR). Not with --io-buffer: what a process writes is not at once there
# for others.
reader = """
import h5py, numpy, time
file = h5py.File("swmr.h5", "r", libver="latest", swmr=True)
print("ready", flush=True)
data, length, limit = file["data"], 0, time.monotonic() + 30
while length < 50 and time.monotonic() < limit:
    data.refresh()
    got = data[:]
    length = len(got)
    assert (got == numpy.arange(length)[:, None]).all()
assert length == 50, length
"""
with h5py.File("swmr.h5", "w", libver="latest") as file:
    data = file.create_dataset("data", (0, 100), maxshape=(None, 100), chunks=(5, 100), dtype="i4")
    file.swmr_mode = True
    count = 0 if "WEIR_IO_BUFFER" in os.environ else 2
    readers = [subprocess.Popen([sys.executable, "-c", reader], stdout=subprocess.PIPE) for _ in range(count)]
    for process in readers:
        assert process.stdout.readline() == b"ready\n"
    for row in range(50):
        data.resize((row + 1, 100))
        data[row] = row
        data.flush()
    for process in readers:
        assert process.wait(40) == 0
print("ok")
PY
