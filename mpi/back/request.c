#include "request.h"
#include "error.h"
#include "table.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct pending {
    MPI_Request handle;
    struct weir_mpi_file *file; /* NULL: closed since */
    struct transfer *transfer;  /* NULL: it has ended */
    MPI_Count bytes;
    int class;
    char *text; /* why it failed */
    atomic_int uses;
    pthread_mutex_t lock;
    struct pending *next, **link; /* of all; under all_lock */
};

static struct table requests = TABLE_EMPTY;
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static struct pending *all;

#define KEY(request) ((weir_word)(request))

void request_status(MPI_Status *status, MPI_Count bytes)
{
    if (status == MPI_STATUS_IGNORE)
        return;
    PMPI_Status_set_elements_x(status, MPI_BYTE, bytes);
    PMPI_Status_set_cancelled(status, 0);
}

static void release(struct pending *pending)
{
    if (atomic_fetch_sub(&pending->uses, 1) != 1)
        return;
    pthread_mutex_destroy(&pending->lock);
    free(pending->text);
    free(pending);
}

static int query(void *state, MPI_Status *status)
{
    struct pending *pending = state;
    request_status(status, pending->bytes);
    status->MPI_SOURCE = MPI_UNDEFINED;
    status->MPI_TAG = MPI_UNDEFINED;
    /* An error given here would go to a handler of the MPI's choice: we tell it ourselves. */
    return MPI_SUCCESS;
}

/* The program was told of the end. */
static int forget(void *state)
{
    struct pending *pending = state;
    table_remove(&requests, KEY(pending->handle));
    pthread_mutex_lock(&all_lock);
    *pending->link = pending->next;
    if (pending->next != NULL)
        pending->next->link = pending->link;
    pthread_mutex_unlock(&all_lock);
    atomic_fetch_sub(front->outstanding, 1);
    release(pending);
    return MPI_SUCCESS;
}

/* What was begun is carried out. */
static int cancel(void *state, int complete)
{
    (void)state, (void)complete;
    return MPI_SUCCESS;
}

/* A request for what goes on in transfer, or has ended if that is NULL. */
static int make(struct weir_mpi_file *file, struct transfer *transfer, struct pending **out)
{
    struct pending *pending = calloc(1, sizeof *pending);
    if (pending == NULL)
        return error_set(MPI_ERR_NO_MEM, "begin access to %s: no memory", file->path);
    pending->file = file;
    pending->transfer = transfer;
    atomic_init(&pending->uses, 1);
    pthread_mutex_init(&pending->lock, NULL);
    if (PMPI_Grequest_start(query, forget, cancel, pending, &pending->handle) != MPI_SUCCESS) {
        release(pending);
        return error_set(MPI_ERR_OTHER, "begin access to %s: the MPI gives no more requests",
                         file->path);
    }
    pthread_mutex_lock(&all_lock);
    pending->next = all;
    pending->link = &all;
    if (all != NULL)
        all->link = &pending->next;
    all = pending;
    pthread_mutex_unlock(&all_lock);
    atomic_fetch_add(front->outstanding, 1);
    if (!table_add(&requests, KEY(pending->handle), pending)) {
        PMPI_Grequest_complete(pending->handle);
        GENUINE(Request_free)(&pending->handle);
        return error_set(MPI_ERR_NO_MEM, "begin access to %s: no memory", file->path);
    }
    *out = pending;
    return MPI_SUCCESS;
}

/* Looks whether it has ended, or waits for that. False: it goes on. */
static bool advance(struct pending *pending, bool wait)
{
    bool done = false;
    pthread_mutex_lock(&pending->lock);
    if (pending->transfer == NULL) {
        done = true;
    } else {
        pending->class = transfer_test(pending->transfer, wait, &pending->bytes, &done);
        if (done) {
            pending->transfer = NULL;
            if (pending->class != MPI_SUCCESS)
                pending->text = strdup(error_text);
            PMPI_Grequest_complete(pending->handle);
        }
    }
    pthread_mutex_unlock(&pending->lock);
    return done;
}

int request_begin(const struct access *access, MPI_Request *request)
{
    struct transfer *transfer;
    struct pending *pending;
    *request = MPI_REQUEST_NULL;
    int class = access_begin(access, &transfer);
    if (class != MPI_SUCCESS)
        return class;
    class = make(access->file, transfer, &pending);
    if (class != MPI_SUCCESS) {
        MPI_Count bytes;
        bool done;
        transfer_test(transfer, true, &bytes, &done);
        return class;
    }
    *request = pending->handle;
    return MPI_SUCCESS;
}

int request_ended(struct weir_mpi_file *file, MPI_Count bytes, int class, MPI_Request *request)
{
    struct pending *pending;
    char text[ERROR_TEXT_SIZE];
    strcpy(text, error_text);
    *request = MPI_REQUEST_NULL;
    int made = make(file, NULL, &pending);
    if (made != MPI_SUCCESS)
        return made;
    pending->bytes = bytes;
    pending->class = class;
    if (class != MPI_SUCCESS)
        pending->text = strdup(text);
    PMPI_Grequest_complete(pending->handle);
    *request = pending->handle;
    return MPI_SUCCESS;
}

int request_finish(struct weir_mpi_file *file)
{
    /* One after the other: ending one may free it, and others come and go meanwhile. */
    for (;;) {
        pthread_mutex_lock(&all_lock);
        struct pending *pending = all;
        while (pending != NULL && (pending->file != file || pending->transfer == NULL))
            pending = pending->next;
        if (pending != NULL)
            atomic_fetch_add(&pending->uses, 1);
        pthread_mutex_unlock(&all_lock);
        if (pending == NULL)
            return MPI_SUCCESS;
        advance(pending, true);
        release(pending);
    }
}

void request_orphan(struct weir_mpi_file *file)
{
    pthread_mutex_lock(&all_lock);
    for (struct pending *pending = all; pending != NULL; pending = pending->next)
        if (pending->file == file)
            pending->file = NULL;
    pthread_mutex_unlock(&all_lock);
}

/* ---- the calls that look at requests ------------------------------------------------------ */

/* Those of an array that are ours, kept from being freed while their end is told. */
struct ours {
    int count, room; /* of entries in which; the array's length */
    struct pending *few[16];
    struct pending **which; /* by index; NULL: not ours */
};

static bool hold(struct ours *ours, int count, const MPI_Request *array)
{
    ours->count = 0;
    ours->room = count > 0 ? count : 0;
    ours->which = ours->few;
    if (ours->room > 16)
        ours->which = malloc((size_t)ours->room * sizeof *ours->which);
    /* Without memory the errors cannot be told; the ends still can. */
    for (int index = 0; index < ours->room; index++) {
        struct pending *pending = array[index] == MPI_REQUEST_NULL
                                      ? NULL
                                      : table_find(&requests, KEY(array[index]));
        if (pending != NULL) {
            ours->count++;
            if (ours->which != NULL)
                atomic_fetch_add(&pending->uses, 1);
        }
        if (ours->which != NULL)
            ours->which[index] = pending;
    }
    return ours->count > 0;
}

static void let_go(struct ours *ours)
{
    for (int index = 0; ours->which != NULL && index < ours->room; index++)
        if (ours->which[index] != NULL)
            release(ours->which[index]);
    if (ours->which != ours->few)
        free(ours->which);
}

static void advance_all(const struct ours *ours, const MPI_Request *array, bool wait)
{
    for (int index = 0; index < ours->room; index++) {
        struct pending *pending = ours->which != NULL ? ours->which[index]
                                                      : table_find(&requests, KEY(array[index]));
        if (pending != NULL)
            advance(pending, wait);
    }
}

/* Tells of one that has ended badly; its code, or MPI_SUCCESS. */
static int tell(struct pending *pending)
{
    if (pending == NULL || pending->class == MPI_SUCCESS)
        return MPI_SUCCESS;
    error_set(pending->class, "%s", pending->text != NULL ? pending->text : "access failed");
    return error_raise(pending->file, pending->class);
}

/* Tells of those of a list of indices that ended badly. */
static int tell_some(const struct ours *ours, int count, const int *indices, MPI_Status *statuses,
                     int result)
{
    bool failed = false;
    if (ours->which == NULL || result != MPI_SUCCESS)
        return result;
    for (int at = 0; at < count; at++) {
        struct pending *pending = ours->which[indices != NULL ? indices[at] : at];
        failed |= pending != NULL && pending->class != MPI_SUCCESS;
    }
    if (!failed)
        return result;
    for (int at = 0; at < count; at++) {
        int code = tell(ours->which[indices != NULL ? indices[at] : at]);
        if (statuses != MPI_STATUSES_IGNORE)
            statuses[at].MPI_ERROR = code;
    }
    return MPI_ERR_IN_STATUS;
}

/* Between looks at requests some of which are the MPI's and some ours. */
static void pause_between(int *looks)
{
    const struct timespec moment = {0, 20000};
    if (++*looks < 100)
        sched_yield();
    else
        nanosleep(&moment, NULL);
}

EXPORT int weir_mpi_Wait(MPI_Request *request, MPI_Status *status);
int weir_mpi_Wait(MPI_Request *request, MPI_Status *status)
{
    struct ours ours;
    int result;
    if (!hold(&ours, 1, request))
        return GENUINE(Wait)(request, status);
    advance_all(&ours, request, true);
    result = GENUINE(Wait)(request, status);
    if (result == MPI_SUCCESS)
        result = tell(ours.which[0]);
    let_go(&ours);
    return result;
}

EXPORT int weir_mpi_Test(MPI_Request *request, int *flag, MPI_Status *status);
int weir_mpi_Test(MPI_Request *request, int *flag, MPI_Status *status)
{
    struct ours ours;
    int result;
    if (!hold(&ours, 1, request))
        return GENUINE(Test)(request, flag, status);
    advance_all(&ours, request, false);
    result = GENUINE(Test)(request, flag, status);
    if (result == MPI_SUCCESS && *flag)
        result = tell(ours.which[0]);
    let_go(&ours);
    return result;
}

EXPORT int weir_mpi_Waitall(int count, MPI_Request *array, MPI_Status *statuses);
int weir_mpi_Waitall(int count, MPI_Request *array, MPI_Status *statuses)
{
    struct ours ours;
    /* Ours need nothing of other ranks: to wait for them first cannot hold up the others for ever. */
    bool any = hold(&ours, count, array);
    if (any)
        advance_all(&ours, array, true);
    int result = GENUINE(Waitall)(count, array, statuses);
    if (any)
        result = tell_some(&ours, ours.room, NULL, statuses, result);
    let_go(&ours);
    return result;
}

EXPORT int weir_mpi_Testall(int count, MPI_Request *array, int *flag, MPI_Status *statuses);
int weir_mpi_Testall(int count, MPI_Request *array, int *flag, MPI_Status *statuses)
{
    struct ours ours;
    bool any = hold(&ours, count, array);
    if (any)
        advance_all(&ours, array, false);
    int result = GENUINE(Testall)(count, array, flag, statuses);
    if (any && *flag)
        result = tell_some(&ours, ours.room, NULL, statuses, result);
    let_go(&ours);
    return result;
}

EXPORT int weir_mpi_Testany(int count, MPI_Request *array, int *index, int *flag,
                            MPI_Status *status);
int weir_mpi_Testany(int count, MPI_Request *array, int *index, int *flag, MPI_Status *status)
{
    struct ours ours;
    bool any = hold(&ours, count, array);
    if (any)
        advance_all(&ours, array, false);
    int result = GENUINE(Testany)(count, array, index, flag, status);
    if (any && result == MPI_SUCCESS && *flag && *index != MPI_UNDEFINED && ours.which != NULL)
        result = tell(ours.which[*index]);
    let_go(&ours);
    return result;
}

EXPORT int weir_mpi_Testsome(int count, MPI_Request *array, int *ended, int *indices,
                             MPI_Status *statuses);
int weir_mpi_Testsome(int count, MPI_Request *array, int *ended, int *indices,
                      MPI_Status *statuses)
{
    struct ours ours;
    bool any = hold(&ours, count, array);
    if (any)
        advance_all(&ours, array, false);
    int result = GENUINE(Testsome)(count, array, ended, indices, statuses);
    if (any && *ended != MPI_UNDEFINED)
        result = tell_some(&ours, *ended, indices, statuses, result);
    let_go(&ours);
    return result;
}

EXPORT int weir_mpi_Waitany(int count, MPI_Request *array, int *index, MPI_Status *status);
int weir_mpi_Waitany(int count, MPI_Request *array, int *index, MPI_Status *status)
{
    struct ours ours;
    bool any = hold(&ours, count, array);
    let_go(&ours);
    if (!any)
        return GENUINE(Waitany)(count, array, index, status);
    for (int looks = 0;; pause_between(&looks)) {
        int flag = 0;
        int result = weir_mpi_Testany(count, array, index, &flag, status);
        if (result != MPI_SUCCESS || flag)
            return result;
    }
}

EXPORT int weir_mpi_Waitsome(int count, MPI_Request *array, int *ended, int *indices,
                             MPI_Status *statuses);
int weir_mpi_Waitsome(int count, MPI_Request *array, int *ended, int *indices,
                      MPI_Status *statuses)
{
    struct ours ours;
    bool any = hold(&ours, count, array);
    let_go(&ours);
    if (!any)
        return GENUINE(Waitsome)(count, array, ended, indices, statuses);
    for (int looks = 0;; pause_between(&looks)) {
        int result = weir_mpi_Testsome(count, array, ended, indices, statuses);
        if (result != MPI_SUCCESS || *ended != 0)
            return result;
    }
}

EXPORT int weir_mpi_Request_get_status(MPI_Request request, int *flag, MPI_Status *status);
int weir_mpi_Request_get_status(MPI_Request request, int *flag, MPI_Status *status)
{
    struct ours ours;
    if (hold(&ours, 1, &request))
        advance_all(&ours, &request, false);
    let_go(&ours);
    return GENUINE(Request_get_status)(request, flag, status);
}

/* Calls of MPI 4.1, which the MPI's header may not have. */
static void advance_array(int count, const MPI_Request *array)
{
    struct ours ours;
    if (hold(&ours, count, array))
        advance_all(&ours, array, false);
    let_go(&ours);
}

EXPORT int weir_mpi_Request_get_status_all(int count, const MPI_Request *array, int *flag,
                                           MPI_Status *statuses);
int weir_mpi_Request_get_status_all(int count, const MPI_Request *array, int *flag,
                                    MPI_Status *statuses)
{
    int (*genuine)(int, const MPI_Request *, int *, MPI_Status *) =
        front->genuine("PMPI_Request_get_status_all");
    advance_array(count, array);
    return genuine != NULL ? genuine(count, array, flag, statuses) : MPI_ERR_OTHER;
}

EXPORT int weir_mpi_Request_get_status_any(int count, const MPI_Request *array, int *index,
                                           int *flag, MPI_Status *status);
int weir_mpi_Request_get_status_any(int count, const MPI_Request *array, int *index, int *flag,
                                    MPI_Status *status)
{
    int (*genuine)(int, const MPI_Request *, int *, int *, MPI_Status *) =
        front->genuine("PMPI_Request_get_status_any");
    advance_array(count, array);
    return genuine != NULL ? genuine(count, array, index, flag, status) : MPI_ERR_OTHER;
}

EXPORT int weir_mpi_Request_get_status_some(int count, const MPI_Request *array, int *ended,
                                            int *indices, MPI_Status *statuses);
int weir_mpi_Request_get_status_some(int count, const MPI_Request *array, int *ended,
                                     int *indices, MPI_Status *statuses)
{
    int (*genuine)(int, const MPI_Request *, int *, int *, MPI_Status *) =
        front->genuine("PMPI_Request_get_status_some");
    advance_array(count, array);
    return genuine != NULL ? genuine(count, array, ended, indices, statuses) : MPI_ERR_OTHER;
}
