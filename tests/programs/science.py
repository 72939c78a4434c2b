"""Files as scientists' Python makes them; each is read back and compared."""

import bz2
import gzip
import lzma
import mailbox
import os
import shelve
import shutil
import tarfile
import tempfile

import netCDF4
import numpy
import tables
import zarr

data = numpy.random.default_rng(5).standard_normal((300, 200))


def changed(rows, value):
    copy = data.copy()
    copy[rows] = value
    return copy


def netcdf4():
    with netCDF4.Dataset("a.nc", "w") as file:
        file.createDimension("t", None)
        file.createDimension("x", 200)
        values = file.createVariable("v", "f8", ("t", "x"), zlib=True)
        numbers = file.createVariable("n", "i4", ("t",))
        for row in range(300):
            values[row, :] = data[row]
            numbers[row] = row
            if row % 50 == 0:
                file.sync()
    with netCDF4.Dataset("a.nc", "a") as file:
        file["v"][10:20, :] = 0
        file.note = "x" * 1000
    with netCDF4.Dataset("a.nc") as file:
        same = (file["v"][:] == changed(slice(10, 20), 0)).all()
        print("netCDF-4", same, file["n"][:].sum(), len(file.note))


def netcdf3():
    for form in ["NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA"]:
        with netCDF4.Dataset("b.nc", "w", format=form) as file:
            file.createDimension("t", None)
            file.createDimension("x", 200)
            values = file.createVariable("v", "f8", ("t", "x"))
            for row in range(0, 300, 6):
                values[row : row + 6, :] = data[row : row + 6]
        with netCDF4.Dataset("b.nc", "r+") as file:
            file["v"][5] = 1
        with netCDF4.Dataset("b.nc") as file:
            print(form, (file["v"][:] == changed(5, 1)).all())


def pytables():
    with tables.open_file("t.h5", "w") as file:
        filters = tables.Filters(1, "zlib")
        rows = file.create_earray("/", "e", tables.Float64Atom(), (0, 200), filters=filters)
        for row in range(0, 300, 9):
            rows.append(data[row : row + 9])
            file.flush()
    with tables.open_file("t.h5") as file:
        print("PyTables", (file.root.e[:] == data).all())


def zarrs():
    array = zarr.open("z.zarr", mode="w", shape=data.shape, chunks=(37, 41), dtype="f8")
    array[:] = data
    array[3:5] = 7
    array = zarr.open("z.zarr", mode="r+")
    print("Zarr", (array[:] == changed(slice(3, 5), 7)).all())
    array.append(data)
    print(array.shape, (zarr.open("z.zarr")[300:] == data).all())


def arrays():
    numpy.savez("s.npz", a=data, b=data[::2])
    loaded = numpy.load("s.npz")
    print("npz", (loaded["a"] == data).all(), (loaded["b"] == data[::2]).all())
    mapped = numpy.lib.format.open_memmap("m.npy", "w+", dtype="f8", shape=(1000, 500))
    mapped[::3] = 2
    mapped.flush()
    del mapped
    print("memmap", numpy.load("m.npy", mmap_mode="r").sum())
    mapped = numpy.load("m.npy", mmap_mode="r+")
    mapped[1] = 5
    mapped.flush()
    print(numpy.load("m.npy")[1].sum())


def stores():
    with shelve.open("shelf") as shelf:
        for number in range(300):
            shelf[str(number)] = list(range(number % 50))
    with shelve.open("shelf") as shelf:
        print("shelve", len(shelf), sum(map(len, shelf.values())))
    box = mailbox.Maildir("mail")
    for number in range(20):
        box.add(f"Subject: {number}\n\nbody\n")
    print("maildir", len(box))
    box = mailbox.mbox("mbox")
    box.lock()
    for number in range(20):
        box.add(f"Subject: {number}\n\nbody\n")
    box.flush()
    box.unlock()
    box.close()
    print("mbox", len(mailbox.mbox("mbox")))


def archives():
    for module in (gzip, lzma, bz2):
        with module.open("packed", "wb") as file:
            file.write(data.tobytes())
        with module.open("packed", "rb") as file:
            print(module.__name__, file.read() == data.tobytes())
    with tempfile.NamedTemporaryFile(dir=".") as named, tempfile.TemporaryFile(dir=".") as other:
        named.write(b"x" * 100_000)
        named.flush()
        with open(named.name, "rb") as again:
            shutil.copyfileobj(again, other)
        print("temporary", other.tell())
    with tarfile.open("t.tar.gz", "w:gz") as archive:
        archive.add("mail")
        archive.add("z.zarr")
    with tarfile.open("t.tar.gz") as archive:
        archive.extractall("out")
    print("tar", len(os.listdir("out/mail/new")), len(os.listdir("out/z.zarr")) > 2)


for part in [netcdf4, netcdf3, pytables, zarrs, arrays, stores, archives]:
    part()
