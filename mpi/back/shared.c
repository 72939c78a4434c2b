#include "shared.h"
#include "comm.h"
#include "error.h"

int shared_advance(struct weir_mpi_file *file, MPI_Count bytes, MPI_Offset *position)
{
    uint64_t before = 0;
    int class = error_of(
        weir_counter_add(file->data, file->shared_number, (uint64_t)bytes, &before));
    *position = file->shared_base + (MPI_Offset)before;
    return class;
}

int shared_advance_all(struct weir_mpi_file *file, MPI_Count bytes, MPI_Offset *position)
{
    struct {
        int class;
        MPI_Offset base;
    } told = {MPI_SUCCESS, 0};
    if (file->size == 1)
        return shared_advance(file, bytes, position);
    /* The last rank knows how much it is in all. */
    MPI_Count upto = 0;
    int last = file->size - 1;
    comm_scan(&bytes, &upto, 1, MPI_COUNT, MPI_SUM, file->comm);
    if (file->rank == last)
        told.class = shared_advance(file, upto, &told.base);
    comm_broadcast(&told, sizeof told, MPI_BYTE, last, file->comm);
    *position = told.base + upto - bytes;
    if (told.class != MPI_SUCCESS && file->rank != last)
        return error_set(told.class, "shared file pointer of %s: rank %d could not move it",
                         file->path, last);
    return told.class;
}

void shared_set(struct weir_mpi_file *file, MPI_Offset position)
{
    file->shared_number++;
    file->shared_base = position;
}
