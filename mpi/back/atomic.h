/* atomic.h - atomic mode: range locks at the metadata service, taken in this mode alone. */
#ifndef WEIR_MPI_ATOMIC_H
#define WEIR_MPI_ATOMIC_H

#include "transfer.h"

/* Bytes of the file that are locked; with length 0 none are. */
struct range {
    uint64_t offset, length;
};

/* Locks from the first to the last byte of the file that an access of so many bytes touches. */
int atomic_lock(const struct access *access, MPI_Count length, struct range *range);

int atomic_unlock(struct weir_mpi_file *file, const struct range *range);

#endif
