/* committed.h - whether a program may use a datatype in an access. */
#ifndef WEIR_MPI_COMMITTED_H
#define WEIR_MPI_COMMITTED_H

#include "back.h"

/* MPI_SUCCESS, or MPI_ERR_TYPE for a datatype that was never committed. */
int committed_check(MPI_Datatype type);

/* Before MPI_Finalize. */
void committed_end(void);

#endif
