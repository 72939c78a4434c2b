/* shared.h - the shared file pointer: a counter at the metadata service, which adds and gives what
 * was there before in one step.
 *
 * The counter belongs to the opening. Setting a view or the pointer begins another one, under the
 * next number, which is at zero without anybody being asked.
 */
#ifndef WEIR_MPI_SHARED_H
#define WEIR_MPI_SHARED_H

#include "file.h"

/* Moves it by so many bytes of the view's data; gives where it was. */
int shared_advance(struct weir_mpi_file *file, MPI_Count bytes, MPI_Offset *position);

/* Collective: as if each rank had done so in the order of ranks; one request for all. */
int shared_advance_all(struct weir_mpi_file *file, MPI_Count bytes, MPI_Offset *position);

/* Collective, with the same position everywhere. */
void shared_set(struct weir_mpi_file *file, MPI_Offset position);

#endif
