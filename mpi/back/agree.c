/* agree.c - what all ranks have to know of each other before they can exchange data.
 *
 * Whether to exchange must be decided alike everywhere, so hints are rank 0's, and each rank is told
 * whether anybody's view has small pieces. Both go with one reduction, which the next access of all
 * together makes: of two views that are set one after the other, as HDF5 does for each of its
 * accesses, nobody asks about the first.
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

void agree_later(struct weir_mpi_file *file, MPI_Info info)
{
    struct hints said = file->hints;
    int64_t told[HINTS];
    hints_read(info, &said);
    carry(&said, told, true);
    carry(&file->hints, told, false);
    file->agreement.fine = access_is_fine(file->view);
    file->agreement.owed = file->size > 1;
}

static void settle(struct weir_mpi_file *file)
{
    struct agreement *agreement = &file->agreement;
    carry(&file->hints, agreement->told, false);
    agreement->fine = agreement->told[FINE] != 0;
    agreement->pending = false;
}

bool agree_begin(struct weir_mpi_file *file)
{
    struct agreement *agreement = &file->agreement;
    int64_t *told = agreement->told;
    if (!agreement->owed)
        return true;
    agreement->owed = false;
    carry(&file->hints, told, true);
    for (int i = 0; file->rank != 0 && i < HINTS; i++)
        told[i] = INT64_MIN;
    told[FINE] = agreement->fine;
    agreement->pending =
        comm_begin_reduce(told, AGREED, MPI_INT64_T, MPI_MAX, file->comm, &agreement->request);
    if (agreement->pending && comm_look(&agreement->request))
        settle(file);
    return !agreement->pending;
}

void agree_end(struct weir_mpi_file *file)
{
    if (!file->agreement.pending)
        return;
    comm_wait(&file->agreement.request);
    settle(file);
}
