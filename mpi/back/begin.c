/* begin.c - how a back end is begun by the front library. */
#include "comm.h"
#include "committed.h"
#include "error.h"
#include "file.h"

#include <unistd.h>

const struct weir_mpi_front *front;

#define DEFINE(name) __typeof__(PMPI_##name) *genuine_##name;
GENUINE_CALLS(DEFINE)

static bool owns(weir_word file)
{
    return file_find((MPI_File)file) != NULL;
}

static const struct weir_mpi_back back = {WEIR_MPI_SEAM, owns};

EXPORT weir_mpi_begin_function weir_mpi_begin;

const struct weir_mpi_back *weir_mpi_begin(const struct weir_mpi_front *given)
{
    if (given->seam != WEIR_MPI_SEAM)
        return NULL;
    front = given;
#define FETCH(name)                                                                             \
    if ((genuine_##name = (__typeof__(genuine_##name))given->genuine("PMPI_" #name)) == NULL)   \
        return NULL;
    GENUINE_CALLS(FETCH)
    return &back;
}

int pool_connect(weir_pool **pool)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static weir_pool *connected;
    static pid_t process;
    int result = 0;
    pthread_mutex_lock(&lock);
    /* A child process has no use of its parent's connection. */
    if (connected == NULL || process != getpid()) {
        weir_pool *fresh;
        result = weir_connect(NULL, NULL, &fresh);
        if (result == 0) {
            connected = fresh;
            process = getpid();
        }
    }
    *pool = connected;
    pthread_mutex_unlock(&lock);
    return error_of(result);
}

EXPORT int weir_mpi_Finalize(void);
int weir_mpi_Finalize(void)
{
    comm_end();
    committed_end();
    return GENUINE(Finalize)();
}
