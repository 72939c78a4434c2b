/* request.h - nonblocking accesses as requests of the MPI.
 *
 * A request is a generalized one. No call of MPI may come from a thread of ours, so that it is
 * completed inside the program's next call that looks at it, which the front library lets us see.
 */
#ifndef WEIR_MPI_REQUEST_H
#define WEIR_MPI_REQUEST_H

#include "file.h"
#include "transfer.h"

/* Begins an access; the request is the program's to wait for. An MPI error class. */
int request_begin(const struct access *access, MPI_Request *request);

/* A request that has ended already, with so many bytes or an error. */
int request_ended(struct weir_mpi_file *file, MPI_Count bytes, int class, MPI_Request *request);

/* Waits for all accesses of this file that are under way; the class of one that failed and of which
 * the program will not be told any more. */
int request_finish(struct weir_mpi_file *file);

/* The file is closed: errors that are told later go to no handler of it. */
void request_orphan(struct weir_mpi_file *file);

/* Sets a status to so many bytes. */
void request_status(MPI_Status *status, MPI_Count bytes);

#endif
