/* committed.c - MPI has no call that tells whether a datatype is committed. The MPI's own MPI_File_write_at
 * of none of it, on a file of ours whose errors are returned, refuses one that is not.
 */
#include "committed.h"
#include "datatype.h"
#include "error.h"

#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static MPI_File probe; /* /dev/null, once opened is set */
static bool opened;

/* Whether the MPI refuses it. Where no file can be had to ask with, nothing is refused. */
static bool refused(MPI_Datatype type)
{
    char nothing;
    int error = MPI_SUCCESS, class = MPI_SUCCESS;
    pthread_mutex_lock(&lock);
    if (!opened && GENUINE(File_open)(MPI_COMM_SELF, "/dev/null", MPI_MODE_RDWR, MPI_INFO_NULL,
                                      &probe) == MPI_SUCCESS) {
        PMPI_File_set_errhandler(probe, MPI_ERRORS_RETURN);
        opened = true;
    }
    if (opened)
        error = GENUINE(File_write_at)(probe, 0, &nothing, 0, type, MPI_STATUS_IGNORE);
    pthread_mutex_unlock(&lock);
    return error != MPI_SUCCESS && PMPI_Error_class(error, &class) == MPI_SUCCESS &&
           class == MPI_ERR_TYPE;
}

int committed_check(MPI_Datatype type)
{
    struct flat *flat;
    /* What is wrong with it otherwise is for others to say. */
    if (type == MPI_DATATYPE_NULL || flat_get(type, FLAT_NATIVE, &flat) != MPI_SUCCESS)
        return MPI_SUCCESS;
    bool known = __atomic_load_n(&flat->committed, __ATOMIC_RELAXED) != 0;
    if (!known && (type_is_named(type) || !refused(type))) {
        __atomic_store_n(&flat->committed, 1, __ATOMIC_RELAXED);
        known = true;
    }
    flat_release(flat);
    return known ? MPI_SUCCESS : error_set(MPI_ERR_TYPE, "access: the datatype was not committed");
}

void committed_end(void)
{
    pthread_mutex_lock(&lock);
    if (opened)
        GENUINE(File_close)(&probe);
    opened = false;
    pthread_mutex_unlock(&lock);
}
