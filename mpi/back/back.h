/* back.h - what all of a back end stands on: its MPI, the front library, and errors.
 *
 * The front library stands before the MPI's own functions on files and requests, by both names:
 * these are called by GENUINE() alone. All others are called by their PMPI_ names, so that profilers
 * do not see what the program did not do.
 */
#ifndef WEIR_MPI_BACK_H
#define WEIR_MPI_BACK_H

#include "../front/front.h"

#include <mpi.h>
#include <weir.h>

#define EXPORT __attribute__((visibility("default")))

/* The MPI's own functions, past the front library. */
#define GENUINE_CALLS(X)                                                                        \
    X(File_open) X(File_close) X(File_write_at) X(File_create_errhandler) \
    X(Error_string) X(Wait) X(Waitall) X(Waitany) X(Waitsome) X(Test) X(Testall)     \
    X(Testany) X(Testsome) X(Request_get_status) X(Request_free) X(Cancel) X(Finalize)
#define DECLARE(name) extern __typeof__(PMPI_##name) *genuine_##name;
GENUINE_CALLS(DECLARE)
#undef DECLARE
#define GENUINE(name) genuine_##name

extern const struct weir_mpi_front *front;

/* The process's connection to its pool, made by the first call and kept. An MPI error class. */
int pool_connect(weir_pool **pool);

#endif
