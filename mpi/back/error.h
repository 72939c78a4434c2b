/* error.h - what went wrong, and who is told.
 *
 * Inside the back end a function that can fail gives an MPI error class, MPI_SUCCESS if it did not,
 * and leaves the story in words in the thread's error_text. Only the calls that the program makes
 * turn that into an error code and call a handler, by error_raise(): nothing here ever aborts unless
 * the program's handler does.
 */
#ifndef WEIR_MPI_ERROR_H
#define WEIR_MPI_ERROR_H

#include "back.h"

enum { ERROR_TEXT_SIZE = 512 };

/* Story of the thread's last failure. */
extern _Thread_local char error_text[ERROR_TEXT_SIZE];

/* Sets the story, and gives the class. */
int error_set(int class, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The class of a negated error number of weir.h, whose story is taken over. */
int error_of(ssize_t result);

struct weir_mpi_file;

/* Ends a call: gives MPI_SUCCESS, or an error code of the class with the story as its string, after
 * the error handler of the file (NULL: that of MPI_FILE_NULL) was called. The
 * program's own handler of MPI_FILE_NULL may change the code, and so make a success of it. */
int error_raise(struct weir_mpi_file *file, int class);

/* Gives a file the handler that MPI_FILE_NULL has: not every MPI does so when it opens one. */
void error_inherit(MPI_File file);

#endif
