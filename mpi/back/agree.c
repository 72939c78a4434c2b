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

enum { CB_READ, CB_WRITE, DS_READ, DS_WRITE, CB_NODES, CB_BUFFER, IND_RD, IND_WR, FINE };
_Static_assert(FINE + 1 == AGREED, "a number for each");

void agree_begin(struct weir_mpi_file *file, MPI_Info info)
{
    struct agreement *agreement = &file->agreement;
    agree_end(file);
    /* How the file is striped is fixed, and so are the permissions it was made with. */
    struct hints said = file->hints;
    hints_read(info, &said);
    agreement->fine = access_is_fine(file->view);
    agreement->cb_read = said.cb_read;
    agreement->cb_write = said.cb_write;
    int64_t *told = agreement->told;
    told[CB_READ] = said.cb_read;
    told[CB_WRITE] = said.cb_write;
    told[DS_READ] = said.ds_read;
    told[DS_WRITE] = said.ds_write;
    told[CB_NODES] = said.cb_nodes;
    told[CB_BUFFER] = said.cb_buffer_size;
    told[IND_RD] = said.ind_rd_buffer_size;
    told[IND_WR] = said.ind_wr_buffer_size;
    for (int i = 0; file->rank != 0 && i < FINE; i++)
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
    const int64_t *told = agreement->told;
    struct hints *hints = &file->hints;
    hints->cb_read = (enum hint)told[CB_READ];
    hints->cb_write = (enum hint)told[CB_WRITE];
    hints->ds_read = (enum hint)told[DS_READ];
    hints->ds_write = (enum hint)told[DS_WRITE];
    hints->cb_nodes = (int)told[CB_NODES];
    hints->cb_buffer_size = told[CB_BUFFER];
    hints->ind_rd_buffer_size = told[IND_RD];
    hints->ind_wr_buffer_size = told[IND_WR];
    agreement->fine = told[FINE] != 0;
    agreement->pending = false;
}
