/* transfer.h - one access to a file: a datatype of memory and a place in the file's view. */
#ifndef WEIR_MPI_TRANSFER_H
#define WEIR_MPI_TRANSFER_H

#include "file.h"

struct access {
    struct weir_mpi_file *file;
    bool write;
    MPI_Offset position; /* in bytes of the view's data */
    void *buffer;
    MPI_Count count;
    MPI_Datatype type;
};

/* An access under way. */
struct transfer;

/* Carries out an access. Gives the bytes of data that were moved. An MPI error class. */
int access_run(const struct access *access, MPI_Count *bytes);

/* Begins an access, which goes on by itself. To be ended by transfer_test() that says so. */
int access_begin(const struct access *access, struct transfer **out);

/* Whether it has ended, or waits for that; if so, the transfer is freed. The class is the access's
 * own, MPI_SUCCESS while it goes on. */
int transfer_test(struct transfer *transfer, bool wait, MPI_Count *bytes, bool *done);

/* The same access of all ranks of the file, together (collective.c). */
int access_run_all(const struct access *access, MPI_Count *bytes);

/* Whether a view's pieces are so small that an exchange between ranks may be worth it. */
bool access_is_fine(const struct view *view);

/* Bytes of data in so many of a datatype, as the file's view counts them. */
int access_size(const struct weir_mpi_file *file, MPI_Count count, MPI_Datatype type,
                MPI_Count *bytes);

/* Of `length` bytes of the view's data from the access's position on, how many lie before the end of
 * the file: what a read may touch memory for. The file is asked only where its end may be near. An
 * MPI error class. */
int access_clip(const struct access *access, int64_t length, int64_t *clipped);

/* A write of so many bytes was carried out. */
void access_grown(const struct access *access, int64_t length);

#endif
