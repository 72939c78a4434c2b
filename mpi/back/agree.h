/* agree.h - what all ranks have to know of each other before they can exchange data. */
#ifndef WEIR_MPI_AGREE_H
#define WEIR_MPI_AGREE_H

#include "back.h"
#include "hints.h"

struct weir_mpi_file;

enum { AGREED = 9 }; /* numbers that are agreed on */

struct agreement {
    bool owed;    /* hints or a view were set of which the ranks have not told each other yet */
    bool pending; /* they are at it, within an access of all */
    bool fine;    /* somebody's view has pieces so small that exchange may be worth it; this rank's own
                   * as long as the others have not been heard */
    MPI_Request request;
    int64_t told[AGREED];
};

/* Hints that are given later, and the view that is set now: until the next access of all together, this
 * rank goes by what it was told itself. */
void agree_later(struct weir_mpi_file *file, MPI_Info info);

/* Collective: begins to tell the others what has not been told yet; says whether all have been heard, if
 * that is within a moment. MPIs carry a reduction on only while somebody looks: ranks that are kept in
 * step, as HDF5 does, are through with it in microseconds when they look before they access the file,
 * and else only when the slowest access has ended. */
bool agree_begin(struct weir_mpi_file *file);

/* Waits until all have been heard. */
void agree_end(struct weir_mpi_file *file);

#endif
