/* access.c - the calls that read and write, in all their forms. */
#include "atomic.h"
#include "comm.h"
#include "committed.h"
#include "error.h"
#include "file.h"
#include "request.h"
#include "shared.h"
#include "transfer.h"
#include "view.h"

#include <stdio.h>

/* Which file pointer an access uses. */
enum place { AT, INDIVIDUAL, SHARED, ORDERED };

/* What a call asks for. */
struct call {
    const char *name;
    bool write, collective;
    enum place place;
    MPI_Offset offset; /* AT: in etypes */
};

static int check(const struct weir_mpi_file *file, const struct call *call, MPI_Count count,
                 MPI_Datatype type, MPI_Count *bytes)
{
    const char *path = file->path;
    *bytes = 0;
    if (count < 0)
        return error_set(MPI_ERR_COUNT, "%s %s: the count is negative", call->name, path);
    if (type == MPI_DATATYPE_NULL)
        return error_set(MPI_ERR_TYPE, "%s %s: the datatype is null", call->name, path);
    if (call->write && (file->amode & MPI_MODE_RDONLY) != 0)
        return error_set(MPI_ERR_READ_ONLY, "%s %s: the file is open with MPI_MODE_RDONLY",
                         call->name, path);
    if (!call->write && (file->amode & MPI_MODE_WRONLY) != 0)
        return error_set(MPI_ERR_ACCESS, "%s %s: the file is open with MPI_MODE_WRONLY", call->name,
                         path);
    if ((file->amode & MPI_MODE_SEQUENTIAL) != 0 && call->place < SHARED)
        return error_set(MPI_ERR_UNSUPPORTED_OPERATION,
                         "%s %s: the file is open with MPI_MODE_SEQUENTIAL, which allows the shared "
                         "file pointer alone",
                         call->name, path);
    if (call->place == AT && call->offset < 0)
        return error_set(MPI_ERR_ARG, "%s %s: the offset is negative", call->name, path);
    int class = committed_check(type);
    if (class == MPI_SUCCESS)
        class = access_size(file, count, type, bytes);
    if (class == MPI_SUCCESS && view_etype_size(file->view) > 0 &&
        *bytes % view_etype_size(file->view) != 0)
        class = error_set(MPI_ERR_IO, "%s %s: the data are not a whole number of etypes", call->name,
                          path);
    return class;
}

/* Finds where the access begins, and moves the pointer that it uses behind it. */
static int place_of(struct weir_mpi_file *file, const struct call *call, MPI_Count bytes,
                    MPI_Offset *position)
{
    switch (call->place) {
    case AT:
        *position = call->offset * view_etype_size(file->view);
        return MPI_SUCCESS;
    case INDIVIDUAL:
        pthread_mutex_lock(&file->lock);
        *position = file->position;
        file->position += bytes;
        pthread_mutex_unlock(&file->lock);
        return MPI_SUCCESS;
    case SHARED:
        return shared_advance(file, bytes, position);
    case ORDERED:
        break;
    }
    return shared_advance_all(file, bytes, position);
}

/* Collective. Programs read together what they have just written together, and then write it anew, with no
 * more between the two: in ROMIO all ranks wait for each other there, whatever the standard demands of the
 * program. */
static void wait_for_the_last(struct weir_mpi_file *file, bool write)
{
    enum last_access now = write ? LAST_WRITTEN : LAST_READ;
    if (file->last_together != LAST_NONE && file->last_together != now && file->size > 1)
        comm_barrier(file->comm);
    file->last_together = now;
}

/* A blocking access that may lock what it is about to touch. */
static int run(const struct access *access, MPI_Count length, bool collective, MPI_Count *bytes)
{
    struct weir_mpi_file *file = access->file;
    if (!file->atomic && !collective)
        return access_run(access, bytes);
    if (!file->atomic) {
        wait_for_the_last(file, access->write);
        return access_run_all(access, bytes);
    }
    struct range range;
    int class = atomic_lock(access, length, &range);
    if (class == MPI_SUCCESS)
        class = access_run(access, bytes);
    int unlocked = atomic_unlock(access->file, &range);
    return class != MPI_SUCCESS ? class : unlocked;
}

/* A rank that cannot take part must not leave the others waiting. */
static int stand_in(struct weir_mpi_file *file, const struct call *call, int class)
{
    char text[ERROR_TEXT_SIZE];
    MPI_Count bytes;
    MPI_Offset position = 0;
    if (!call->collective)
        return class;
    snprintf(text, sizeof text, "%s", error_text);
    if (call->place == ORDERED)
        shared_advance_all(file, 0, &position);
    const struct access none = {file, call->write, position, NULL, 0, MPI_BYTE};
    run(&none, 0, true, &bytes);
    return error_set(class, "%s", text);
}

static int prepare(MPI_File handle, const struct call *call, void *buffer, MPI_Count count,
                   MPI_Datatype type, struct access *access, MPI_Count *length)
{
    struct weir_mpi_file *file = file_find(handle);
    *access = (struct access){file, call->write, 0, buffer, count, type};
    int class = check(file, call, count, type, length);
    return class;
}

static int blocking(MPI_File handle, struct call call, void *buffer, MPI_Count count,
                    MPI_Datatype type, MPI_Status *status)
{
    struct access access;
    MPI_Count length, bytes = 0;
    int class = prepare(handle, &call, buffer, count, type, &access, &length);
    if (class != MPI_SUCCESS)
        return error_raise(access.file, stand_in(access.file, &call, class));
    class = place_of(access.file, &call, length, &access.position);
    if (class == MPI_SUCCESS)
        class = run(&access, length, call.collective, &bytes);
    request_status(status, bytes);
    return error_raise(access.file, class);
}

/* Nothing is asked of the other ranks by a nonblocking collective access: it is as good done alone. */
static int nonblocking(MPI_File handle, struct call call, void *buffer, MPI_Count count,
                       MPI_Datatype type, MPI_Request *request)
{
    struct access access;
    MPI_Count length, bytes = 0;
    *request = MPI_REQUEST_NULL;
    int class = prepare(handle, &call, buffer, count, type, &access, &length);
    if (class == MPI_SUCCESS)
        class = place_of(access.file, &call, length, &access.position);
    if (class != MPI_SUCCESS)
        return error_raise(access.file, class);
    if (access.file->atomic) {
        /* Its lock is to be given back when it has ended, which may be nobody's turn for long. */
        class = run(&access, length, false, &bytes);
        class = request_ended(access.file, bytes, class, request);
    } else {
        class = request_begin(&access, request);
    }
    return error_raise(access.file, class);
}

static int begin_split(MPI_File handle, struct call call, void *buffer, MPI_Count count,
                       MPI_Datatype type)
{
    struct access access;
    MPI_Count length;
    int class = prepare(handle, &call, buffer, count, type, &access, &length);
    struct weir_mpi_file *file = access.file;
    if (file->splitting)
        return error_raise(file, error_set(MPI_ERR_IO, "%s %s: %s has not been ended yet", call.name,
                                           file->path, file->split_name));
    if (!file->atomic)
        wait_for_the_last(file, call.write);
    if (class != MPI_SUCCESS) {
        MPI_Offset position;
        if (call.place == ORDERED)
            shared_advance_all(file, 0, &position);
        return error_raise(file, class);
    }
    class = place_of(file, &call, length, &access.position);
    file->split = NULL;
    file->split_bytes = 0;
    if (class == MPI_SUCCESS && file->atomic)
        class = run(&access, length, false, &file->split_bytes);
    else if (class == MPI_SUCCESS)
        class = access_begin(&access, &file->split);
    if (class == MPI_SUCCESS) {
        file->splitting = true;
        file->split_name = call.name;
        file->split_buffer = buffer;
    }
    return error_raise(file, class);
}

static int end_split(MPI_File handle, const char *name, const char *begun_by, const void *buffer,
                     MPI_Status *status)
{
    struct weir_mpi_file *file = file_find(handle);
    bool done;
    (void)buffer;
    if (!file->splitting || __builtin_strcmp(file->split_name, begun_by) != 0)
        return error_raise(file, error_set(MPI_ERR_IO, "%s %s: %s is not under way", name,
                                           file->path, begun_by));
    int class = MPI_SUCCESS;
    if (file->split != NULL)
        class = transfer_test(file->split, true, &file->split_bytes, &done);
    file->split = NULL;
    file->splitting = false;
    request_status(status, file->split_bytes);
    return error_raise(file, class);
}

/* One function for each call, with counts of int and of MPI_Count. */
#define CALL(name, write, collective, place, offset) \
    (struct call){name, write, collective, place, offset}
#define OFFSET_yes MPI_Offset offset,
#define OFFSET_no

#define BLOCKING(name, at, constant, write, collective, place, offset, counts)                  \
    EXPORT int weir_mpi_File_##name(MPI_File file, OFFSET_##at constant void *buffer, counts count,      \
                                    MPI_Datatype type, MPI_Status *status);                     \
    int weir_mpi_File_##name(MPI_File file, OFFSET_##at constant void *buffer, counts count,             \
                             MPI_Datatype type, MPI_Status *status)                             \
    {                                                                                           \
        return blocking(file, CALL(#name, write, collective, place, offset), (void *)buffer,    \
                        count, type, status);                                                   \
    }
#define NONBLOCKING(name, at, constant, write, collective, place, offset, counts)               \
    EXPORT int weir_mpi_File_##name(MPI_File file, OFFSET_##at constant void *buffer, counts count,      \
                                    MPI_Datatype type, MPI_Request *request);                   \
    int weir_mpi_File_##name(MPI_File file, OFFSET_##at constant void *buffer, counts count,             \
                             MPI_Datatype type, MPI_Request *request)                           \
    {                                                                                           \
        return nonblocking(file, CALL(#name, write, collective, place, offset), (void *)buffer, \
                           count, type, request);                                               \
    }
#define SPLIT_BEGIN(name, at, constant, write, place, offset, suffix, counts)                   \
    EXPORT int weir_mpi_File_##name##_begin##suffix(MPI_File file, OFFSET_##at constant void *buffer,    \
                                                    counts count, MPI_Datatype type);           \
    int weir_mpi_File_##name##_begin##suffix(MPI_File file, OFFSET_##at constant void *buffer,           \
                                             counts count, MPI_Datatype type)                   \
    {                                                                                           \
        return begin_split(file, CALL(#name "_begin", write, true, place, offset),              \
                           (void *)buffer, count, type);                                        \
    }
#define SPLIT_END(name, constant)                                                               \
    EXPORT int weir_mpi_File_##name##_end(MPI_File file, constant void *buffer,                 \
                                          MPI_Status *status);                                  \
    int weir_mpi_File_##name##_end(MPI_File file, constant void *buffer, MPI_Status *status)    \
    {                                                                                           \
        return end_split(file, #name "_end", #name "_begin", buffer, status);                   \
    }
#define BOTH(form, name, ...)               \
    form(name, __VA_ARGS__, int)            \
    form(name##_c, __VA_ARGS__, MPI_Count)
#define SPLIT(name, at, constant, write, place, offset)                          \
    SPLIT_BEGIN(name, at, constant, write, place, offset, , int)                 \
    SPLIT_BEGIN(name, at, constant, write, place, offset, _c, MPI_Count)         \
    SPLIT_END(name, constant)

BOTH(BLOCKING, read_at, yes, , false, false, AT, offset)
BOTH(BLOCKING, read_at_all, yes, , false, true, AT, offset)
BOTH(BLOCKING, write_at, yes, const, true, false, AT, offset)
BOTH(BLOCKING, write_at_all, yes, const, true, true, AT, offset)
BOTH(BLOCKING, read, no, , false, false, INDIVIDUAL, 0)
BOTH(BLOCKING, read_all, no, , false, true, INDIVIDUAL, 0)
BOTH(BLOCKING, write, no, const, true, false, INDIVIDUAL, 0)
BOTH(BLOCKING, write_all, no, const, true, true, INDIVIDUAL, 0)
BOTH(BLOCKING, read_shared, no, , false, false, SHARED, 0)
BOTH(BLOCKING, write_shared, no, const, true, false, SHARED, 0)
BOTH(BLOCKING, read_ordered, no, , false, true, ORDERED, 0)
BOTH(BLOCKING, write_ordered, no, const, true, true, ORDERED, 0)

BOTH(NONBLOCKING, iread_at, yes, , false, false, AT, offset)
BOTH(NONBLOCKING, iread_at_all, yes, , false, false, AT, offset)
BOTH(NONBLOCKING, iwrite_at, yes, const, true, false, AT, offset)
BOTH(NONBLOCKING, iwrite_at_all, yes, const, true, false, AT, offset)
BOTH(NONBLOCKING, iread, no, , false, false, INDIVIDUAL, 0)
BOTH(NONBLOCKING, iread_all, no, , false, false, INDIVIDUAL, 0)
BOTH(NONBLOCKING, iwrite, no, const, true, false, INDIVIDUAL, 0)
BOTH(NONBLOCKING, iwrite_all, no, const, true, false, INDIVIDUAL, 0)
BOTH(NONBLOCKING, iread_shared, no, , false, false, SHARED, 0)
BOTH(NONBLOCKING, iwrite_shared, no, const, true, false, SHARED, 0)

SPLIT(read_at_all, yes, , false, AT, offset)
SPLIT(write_at_all, yes, const, true, AT, offset)
SPLIT(read_all, no, , false, INDIVIDUAL, 0)
SPLIT(write_all, no, const, true, INDIVIDUAL, 0)
SPLIT(read_ordered, no, , false, ORDERED, 0)
SPLIT(write_ordered, no, const, true, ORDERED, 0)
