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

/* Collective calls on a communicator, whose waits let others run: with more ranks than cores an MPI
 * that waits by looking without end keeps the very rank from running that it waits for. */
void comm_barrier(MPI_Comm comm);
void comm_broadcast(void *buffer, int count, MPI_Datatype type, int root, MPI_Comm comm);
void comm_reduce_all(void *buffer, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm);
/* Only begins it; to be waited for with comm_wait. False: the MPI refused. */
bool comm_begin_reduce(void *buffer, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                       MPI_Request *request);
void comm_scan(const void *from, void *to, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm);
void comm_all_to_all(const void *from, void *to, int count, MPI_Datatype type, MPI_Comm comm);

/* Waits so for one of the driver's own messages. */
void comm_wait(MPI_Request *request);

/* Looks at one for a moment, in which what all ranks are at can come to its end; says whether it has. */
bool comm_look(MPI_Request *request);

/* MPI is about to end: communicators go with it. */
void comm_end(void);

#endif
