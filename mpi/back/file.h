/* file.h - an open file of the pool, and how it is found by the handle that the program has.
 *
 * The handle is a genuine MPI_File of the MPI's own, open on /dev/null over MPI_COMM_SELF: so that
 * conversions to and from Fortran and error handlers work by themselves. It is the key into a table
 * of these.
 */
#ifndef WEIR_MPI_FILE_H
#define WEIR_MPI_FILE_H

#include "agree.h"
#include "back.h"
#include "hints.h"

#include <pthread.h>

struct transfer;
struct view;

enum last_access { LAST_NONE, LAST_READ, LAST_WRITTEN };

struct weir_mpi_file {
    MPI_File handle; /* the program's */
    char *path;      /* within the pool */
    weir_file *data; /* open by rank 0 of comm, and lent by it to the others */

    MPI_Comm comm; /* ours alone, or MPI_COMM_SELF; see comm.h */
    int rank, size;
    MPI_Group group; /* of the communicator that the file was opened with */
    int amode;
    struct hints hints; /* with the file's own stripe size and count; see agree.h */
    struct agreement agreement;

    struct view *view;
    _Atomic int64_t size_seen; /* the file had so many bytes; forgotten when its size is set */
    MPI_Offset position;    /* individual file pointer, in bytes of the view's data; under lock */
    uint32_t shared_number; /* of the shared file pointer's counter; see shared.h */
    MPI_Offset shared_base; /* added to what it counts: bytes of the view's data */
    bool atomic;            /* MPI_File_set_atomicity */
    enum last_access last_together; /* of the collective accesses */

    struct transfer *split; /* of the split collective that is under way, if one is */
    bool splitting;
    const char *split_name; /* of the call that began it */
    const void *split_buffer;
    MPI_Count split_bytes;
    atomic_long pending;    /* requests that have not ended */
    pthread_mutex_t lock;
};

/* The file behind a handle; NULL: not one of ours. */
struct weir_mpi_file *file_find(MPI_File handle);

/* Collective: rank 0's outcome becomes everybody's. */
int file_share_outcome(const struct weir_mpi_file *file, int class);

/* Collective: one rank's failure is everybody's; the others learn the class alone. */
int file_agree(const struct weir_mpi_file *file, int class);

/* Refuses what does not go with MPI_MODE_SEQUENTIAL. */
int file_check_sequential(const struct weir_mpi_file *file, const char *operation);

/* The file's size now: bytes. */
int file_size(struct weir_mpi_file *file, MPI_Offset *size);

#endif
