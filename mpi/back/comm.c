#include "comm.h"
#include "error.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

/* Files that have a communicator of their own: more share. */
enum { OWN_MAX = 200 };

/* One of ours: counted by the files that use it, and by the communicator that it was made of. */
struct shared {
    MPI_Comm comm;
    atomic_int uses;
};

static int user_key = MPI_KEYVAL_INVALID;  /* on the program's communicator: struct shared */
static int shared_key = MPI_KEYVAL_INVALID; /* on ours: the same */
static atomic_int own_count; /* since the process began */
static atomic_bool ended;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void drop(struct shared *shared)
{
    if (atomic_fetch_sub(&shared->uses, 1) != 1)
        return;
    if (!atomic_load(&ended))
        PMPI_Comm_free(&shared->comm);
    free(shared);
}

static int user_goes(MPI_Comm comm, int key, void *value, void *extra)
{
    (void)comm, (void)key, (void)extra;
    drop(value);
    return MPI_SUCCESS;
}

static bool make_keys(void)
{
    pthread_mutex_lock(&lock);
    if (user_key == MPI_KEYVAL_INVALID)
        PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, user_goes, &user_key, NULL);
    if (shared_key == MPI_KEYVAL_INVALID)
        PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, MPI_COMM_NULL_DELETE_FN, &shared_key, NULL);
    bool made = user_key != MPI_KEYVAL_INVALID && shared_key != MPI_KEYVAL_INVALID;
    pthread_mutex_unlock(&lock);
    return made;
}

/* Not a duplicate: the program's attributes are not to be copied, nor its callbacks called. */
static int make(MPI_Comm user, struct shared **out)
{
    MPI_Group group;
    struct shared *shared = malloc(sizeof *shared);
    if (shared == NULL)
        return error_set(MPI_ERR_NO_MEM, "open: no memory for a communicator");
    PMPI_Comm_group(user, &group);
    int failed = PMPI_Comm_create(user, group, &shared->comm);
    PMPI_Group_free(&group);
    if (failed != MPI_SUCCESS) {
        free(shared);
        return error_set(MPI_ERR_OTHER, "open: the MPI has no more communicators");
    }
    PMPI_Comm_set_errhandler(shared->comm, MPI_ERRORS_RETURN);
    PMPI_Comm_set_attr(shared->comm, shared_key, shared);
    atomic_init(&shared->uses, 1);
    *out = shared;
    return MPI_SUCCESS;
}

int comm_take(MPI_Comm user, bool own, MPI_Comm *out)
{
    struct shared *shared = NULL;
    int size, found = 0, class;
    PMPI_Comm_size(user, &size);
    if (size == 1) {
        *out = MPI_COMM_SELF;
        return MPI_SUCCESS;
    }
    if (!make_keys())
        return error_set(MPI_ERR_OTHER, "open: the MPI has no more attribute keys");
    if (own) {
        if ((class = make(user, &shared)) != MPI_SUCCESS)
            return class;
        atomic_fetch_add(&own_count, 1);
        *out = shared->comm;
        return MPI_SUCCESS;
    }
    PMPI_Comm_get_attr(user, user_key, &shared, &found);
    if (!found) {
        if ((class = make(user, &shared)) != MPI_SUCCESS)
            return class;
        PMPI_Comm_set_attr(user, user_key, shared);
    }
    atomic_fetch_add(&shared->uses, 1);
    *out = shared->comm;
    return MPI_SUCCESS;
}

void comm_release(MPI_Comm *comm)
{
    struct shared *shared;
    int found = 0;
    if (*comm == MPI_COMM_SELF || *comm == MPI_COMM_NULL)
        return;
    PMPI_Comm_get_attr(*comm, shared_key, &shared, &found);
    *comm = MPI_COMM_NULL;
    if (found)
        drop(shared);
}

bool comm_wants_own(void)
{
    int level;
    PMPI_Query_thread(&level);
    return level == MPI_THREAD_MULTIPLE && atomic_load(&own_count) < OWN_MAX;
}

/* Looks before the processor is left to others. A moment's sleep, not a yield: who sleeps is let in
 * at once when he wakes, also among many that compute. */
enum { LOOKS = 300 };

void comm_wait(MPI_Request *request)
{
    const struct timespec moment = {0, 20000};
    int done = 0;
    for (int looks = 0; GENUINE(Test)(request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done;)
        if (++looks >= LOOKS)
            nanosleep(&moment, NULL);
}

/* As long as it takes ranks that are at work some messages to and fro. */
enum { MOMENT_NS = 20000 };

bool comm_look(MPI_Request *request)
{
    struct timespec begun, now;
    int done = 0;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    do {
        if (GENUINE(Test)(request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done)
            return true;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((now.tv_sec - begun.tv_sec) * 1000000000L + now.tv_nsec - begun.tv_nsec < MOMENT_NS);
    return false;
}

void comm_barrier(MPI_Comm comm)
{
    MPI_Request request;
    if (PMPI_Ibarrier(comm, &request) == MPI_SUCCESS)
        comm_wait(&request);
}

void comm_broadcast(void *buffer, int count, MPI_Datatype type, int root, MPI_Comm comm)
{
    MPI_Request request;
    if (PMPI_Ibcast(buffer, count, type, root, comm, &request) == MPI_SUCCESS)
        comm_wait(&request);
}

bool comm_begin_reduce(void *buffer, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                       MPI_Request *request)
{
    return PMPI_Iallreduce(MPI_IN_PLACE, buffer, count, type, op, comm, request) == MPI_SUCCESS;
}

void comm_reduce_all(void *buffer, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    MPI_Request request;
    if (comm_begin_reduce(buffer, count, type, op, comm, &request))
        comm_wait(&request);
}

void comm_scan(const void *from, void *to, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    MPI_Request request;
    if (PMPI_Iscan(from, to, count, type, op, comm, &request) == MPI_SUCCESS)
        comm_wait(&request);
}

void comm_all_to_all(const void *from, void *to, int count, MPI_Datatype type, MPI_Comm comm)
{
    MPI_Request request;
    if (PMPI_Ialltoall(from, count, type, to, count, type, comm, &request) == MPI_SUCCESS)
        comm_wait(&request);
}

void comm_end(void)
{
    atomic_store(&ended, true);
}
