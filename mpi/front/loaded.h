/* loaded.h - the MPI that the process has loaded, and the back end for it. */
#ifndef WEIR_MPI_LOADED_H
#define WEIR_MPI_LOADED_H

#include "front.h"

/* The MPI's own function of this name; NULL: there is no MPI, or it has no such function. */
void *loaded_genuine(const char *name);

/* The soname of the loaded MPI; NULL: none of those that could be known. */
const char *loaded_soname(void);

/* The back end, which is loaded by the first call; NULL: none fits, and *why says so in words, in
 * memory that stays. */
const struct weir_mpi_back *loaded_back(const char **why);

/* The back end if it is loaded already, or NULL. */
const struct weir_mpi_back *loaded_back_already(void);

/* The back end's function for a call; NULL: it has none. */
void *loaded_back_function(const char *call);

/* See struct weir_mpi_front. */
extern atomic_long loaded_outstanding;

#endif
