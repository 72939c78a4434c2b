/* front.h - what the front library and a back end know of each other. No mpi.h here. */
#ifndef WEIR_MPI_FRONT_H
#define WEIR_MPI_FRONT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Grows by one whenever anything here changes: libraries of different builds refuse each other. */
#define WEIR_MPI_SEAM 1

/* An argument or handle of MPI, whatever its type: all of them fit into a register. */
typedef uintptr_t weir_word;

/* What the front library gives to a back end. */
struct weir_mpi_front {
    unsigned seam; /* WEIR_MPI_SEAM */
    /* The MPI's own function of this name, past all that stands before it; NULL: it has none. */
    void *(*genuine)(const char *name);
    /* Operations of ours that the program has not yet been told the end of. As long as there are
     * none, the calls on requests go straight to the MPI. Changed by the back end. */
    atomic_long *outstanding;
};

/* What a back end gives to the front library, by the function weir_mpi_begin(). */
struct weir_mpi_back {
    unsigned seam; /* WEIR_MPI_SEAM */
    /* Whether an MPI_File is one of ours. */
    bool (*owns)(weir_word file);
};

/* A back end's only function that is found by its name alone, and not by a call's: gives NULL
 * where the two do not fit. A call MPI_X is served by the back end's function weir_mpi_X. */
typedef const struct weir_mpi_back *weir_mpi_begin_function(const struct weir_mpi_front *front);

#endif
