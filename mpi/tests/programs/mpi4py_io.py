"""MPI-IO through mpi4py, which loads its MPI late and for itself alone: python3 mpi4py_io.py FILE"""

import array
import sys

from mpi4py import MPI

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.rank, COMM.size
NAME = sys.argv[1]
N = 5000


def mine(rank, turn):
    return array.array("i", (turn * 1000000 + rank * 10000 + i for i in range(N)))


def opened(mode, name=NAME):
    return MPI.File.Open(COMM, name, mode)


file = opened(MPI.MODE_CREATE | MPI.MODE_RDWR)
file.Set_size(0)
COMM.Barrier()

# Explicit, collective.
file.Write_at_all(4 * N * RANK, mine(RANK, 0))
file.Sync()
COMM.Barrier()
other = (RANK + 1) % SIZE
found = array.array("i", [0] * N)
status = MPI.Status()
file.Read_at(4 * N * other, found, status)
assert status.Get_count(MPI.INT) == N, status.Get_count(MPI.INT)
assert found == mine(other, 0)
COMM.Barrier()

# Ranks in turn by a view; nonblocking.
view = MPI.INT.Create_vector(1, 1, 1).Create_resized(0, 4 * SIZE).Commit()
file.Set_view(4 * RANK, MPI.INT, view)
view.Free()
requests = [file.Iwrite_at(i * 1000, mine(RANK, 1)[i * 1000 : (i + 1) * 1000]) for i in range(5)]
MPI.Request.Waitall(requests)
file.Sync()
COMM.Barrier()
found = array.array("i", [0] * N)
request = file.Iread_all(found)
request.Wait()
assert found == mine(RANK, 1)

# In order, through the shared pointer.
file.Set_view(0, MPI.BYTE, MPI.BYTE)
file.Write_ordered(mine(RANK, 2))
assert file.Get_position_shared() == 4 * N * SIZE
COMM.Barrier()
file.Seek_shared(0)
found = array.array("i", [0] * N)
file.Read_ordered(found)
assert found == mine(RANK, 2)

# The end; what fails is an exception.
assert file.Get_size() == 4 * N * SIZE
file.Read_at(4 * N * SIZE - 40, found, status)
assert status.Get_count(MPI.BYTE) == 40
file.Close()
try:
    opened(MPI.MODE_RDONLY, NAME + "-none")
    raise AssertionError("opened what does not exist")
except MPI.Exception as error:
    assert error.Get_error_class() == MPI.ERR_NO_SUCH_FILE, error
if RANK == 0:
    print("mpi4py: 0 failures")
