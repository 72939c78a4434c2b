"""h5py on MPI: python3 h5py_mpi.py FILE. Bytes depend on the number of ranks alone."""

import sys

import numpy
from mpi4py import MPI
import h5py

COMM = MPI.COMM_WORLD
ROWS, COLUMNS = 24 * COMM.size, 300
NAME = sys.argv[1]
whole = numpy.arange(ROWS * COLUMNS, dtype="f8").reshape(ROWS, COLUMNS)
rows = slice(24 * COMM.rank, 24 * (COMM.rank + 1))
turns = slice(COMM.rank, ROWS, COMM.size)

with h5py.File(NAME, "w", driver="mpio", comm=COMM) as file:
    plain = file.create_dataset("plain", whole.shape, "f8")
    chunked = file.create_dataset("chunked", whole.shape, "f8", chunks=(10, 64))
    together = file.create_dataset("together", whole.shape, "f8")
    file.attrs["title"] = "test"
    plain[rows] = whole[rows]
    chunked[turns] = whole[turns] + 1
    with together.collective:
        together[turns] = whole[turns] + 2

with h5py.File(NAME, "r", driver="mpio", comm=COMM) as file:
    for add, name in enumerate(("plain", "chunked", "together")):
        assert (file[name][()] == whole + add).all(), name
        assert (file[name][5:ROWS:3, 7:200:9] == (whole + add)[5:ROWS:3, 7:200:9]).all(), name
    with file["plain"].collective:
        assert (file["plain"][turns] == whole[turns]).all()
if COMM.rank == 0:
    print("h5py: 0 failures")
