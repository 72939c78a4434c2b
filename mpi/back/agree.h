/* agree.h - what all ranks have to know of each other before they can exchange data. */
#ifndef WEIR_MPI_AGREE_H
#define WEIR_MPI_AGREE_H

#include "back.h"
#include "hints.h"

struct weir_mpi_file;

enum { AGREED = 9 }; /* numbers that are agreed on */

struct agreement {
    bool pending;                /* the ranks are at it; what follows is this rank's word alone */
    bool fine;                   /* somebody's view has pieces so small that exchange may be worth it */
    enum hint cb_read, cb_write; /* while it is pending: what this rank was told */
    MPI_Request request;
    int64_t told[AGREED];
};

/* Collective: hints that are given later, and the view that is set now. Returns at once. */
void agree_begin(struct weir_mpi_file *file, MPI_Info info);

/* Waits until all ranks have begun what this one has, if it has. */
void agree_end(struct weir_mpi_file *file);

/* The same, if that is within a moment. MPIs carry a reduction on only while somebody looks: ranks that
 * are kept in step, as HDF5 does, are through with it in microseconds when they look before they
 * access the file, and else only when the slowest access has ended. */
void agree_soon(struct weir_mpi_file *file);

#endif
