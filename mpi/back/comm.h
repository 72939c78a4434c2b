/* comm.h - communicators of our own for collective calls on files.
 *
 * An MPI has few of them (MPICH about two thousand, of which each genuine MPI_File takes one), so all
 * files that are opened with one communicator share one of ours. Only where several threads may make
 * collective calls on different files at once does a file have its own, as long as there are not too
 * many.
 */
#ifndef WEIR_MPI_COMM_H
#define WEIR_MPI_COMM_H

#include "back.h"

/* Collective over user. With own, one that nobody else shares: all ranks must say the same. An MPI
 * error class. */
int comm_take(MPI_Comm user, bool own, MPI_Comm *out);

/* Collective over comm: it was taken once less. */
void comm_release(MPI_Comm *comm);

/* Whether a file that is opened now should have its own. */
bool comm_wants_own(void);

/* MPI is about to end: communicators go with it. */
void comm_end(void);

#endif
