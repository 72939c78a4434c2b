/* agree.c - what all ranks have to know of each other before they can exchange data.
 *
 * Whether to exchange must be decided alike everywhere, so hints are rank 0's, and each rank is told
 * whether anybody's view has small pieces. Both go with one reduction, which is begun when a view is
 * set and ended when somebody wants to know: a program that sets a view for every access, as HDF5
 * does, never waits for it.
 */
#include "agree.h"
#include "comm.h"
#include "file.h"
#include "transfer.h"

#include <limits.h>

enum { HINTS = AGREED - 1, FINE = HINTS };

/* Rank 0's hints, to or from the numbers that are told. How the file is striped is fixed, and so are the
 * permissions that it was made with. */
static void carry(struct hints *hints, int64_t told[HINTS], bool out)
{
    int n = 0;
#define CARRY(hint)                                                                                  \
    if (out)                                                                                         \
        told[n++] = hints->hint;                                                                     \
    else                                                                                             \
        hints->hint = (__typeof__(hints->hint))told[n++]
    CARRY(cb_read);
    CARRY(cb_write);
    CARRY(ds_read);
    CARRY(ds_write);
    CARRY(cb_nodes);
    CARRY(cb_buffer_size);
    CARRY(ind_rd_buffer_size);
    CARRY(ind_wr_buffer_size);
#undef CARRY
}

void agree_begin(struct weir_mpi_file *file, MPI_Info info)
{
    struct agreement *agreement = &file->agreement;
    agree_end(file);
    struct hints said = file->hints;
    hints_read(info, &said);
    agreement->fine = access_is_fine(file->view);
    agreement->cb_read = said.cb_read;
    agreement->cb_write = said.cb_write;
    int64_t *told = agreement->told;
    carry(&said, told, true);
    for (int i = 0; file->rank != 0 && i < HINTS; i++)
        told[i] = INT64_MIN;
    told[FINE] = agreement->fine;
    agreement->request = MPI_REQUEST_NULL;
    agreement->pending =
        file->size == 1 ||
        comm_begin_reduce(told, AGREED, MPI_INT64_T, MPI_MAX, file->comm, &agreement->request);
}

void agree_end(struct weir_mpi_file *file)
{
    struct agreement *agreement = &file->agreement;
    if (!agreement->pending)
        return;
    if (file->size > 1)
        comm_wait(&agreement->request);
    carry(&file->hints, agreement->told, false);
    agreement->fine = agreement->told[FINE] != 0;
    agreement->pending = false;
}

void agree_soon(struct weir_mpi_file *file)
{
    struct agreement *agreement = &file->agreement;
    if (agreement->pending && (file->size == 1 || comm_look(&agreement->request)))
        agree_end(file);
}
