/* open.c - the life of a file: open, close, delete, and what is the file's as a whole.
 *
 * Collective calls that need the metadata service ask it once: rank 0 does, and tells the others
 * what came of it, an error too.
 */
#include "comm.h"
#include "error.h"
#include "file.h"
#include "request.h"
#include "table.h"
#include "view.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct table files = TABLE_EMPTY;

struct weir_mpi_file *file_find(MPI_File handle)
{
    return table_find(&files, (weir_word)handle);
}

/* What rank 0 found, for all. */
struct outcome {
    int class;
    char text[ERROR_TEXT_SIZE];
};

/* Rank 0's outcome becomes everybody's. */
int file_share_outcome(const struct weir_mpi_file *file, int class)
{
    struct outcome outcome = {.class = class};
    if (file->size == 1)
        return class;
    if (class != MPI_SUCCESS)
        memcpy(outcome.text, error_text, sizeof outcome.text);
    /* As a rule there is nothing to tell but success. */
    comm_broadcast(&outcome.class, 1, MPI_INT, 0, file->comm);
    if (outcome.class == MPI_SUCCESS)
        return MPI_SUCCESS;
    comm_broadcast(outcome.text, sizeof outcome.text, MPI_CHAR, 0, file->comm);
    return error_set(outcome.class, "%s", outcome.text);
}

/* One rank's failure is everybody's; the others learn the class alone. */
int file_agree(const struct weir_mpi_file *file, int class)
{
    int worst = class;
    if (file->size == 1)
        return class;
    comm_reduce_all(&worst, 1, MPI_INT, MPI_MAX, file->comm);
    if (worst != MPI_SUCCESS && class == MPI_SUCCESS)
        return error_set(worst, "%s: it failed on another rank", file->path);
    return class;
}

static int check_amode(int amode)
{
    int ways = amode & (MPI_MODE_RDONLY | MPI_MODE_WRONLY | MPI_MODE_RDWR);
    if (ways != MPI_MODE_RDONLY && ways != MPI_MODE_WRONLY && ways != MPI_MODE_RDWR)
        return error_set(MPI_ERR_AMODE,
                         "open: exactly one of MPI_MODE_RDONLY, _WRONLY and _RDWR is needed");
    if (ways == MPI_MODE_RDONLY && (amode & (MPI_MODE_CREATE | MPI_MODE_EXCL)) != 0)
        return error_set(MPI_ERR_AMODE,
                         "open: MPI_MODE_CREATE and _EXCL do not go with MPI_MODE_RDONLY");
    if (ways == MPI_MODE_RDWR && (amode & MPI_MODE_SEQUENTIAL) != 0)
        return error_set(MPI_ERR_AMODE, "open: MPI_MODE_SEQUENTIAL does not go with MPI_MODE_RDWR");
    return MPI_SUCCESS;
}

static int flags_of(int amode)
{
    int flags = (amode & MPI_MODE_RDWR) != 0     ? O_RDWR
                : (amode & MPI_MODE_WRONLY) != 0 ? O_WRONLY
                                                 : O_RDONLY;
    if ((amode & MPI_MODE_CREATE) != 0)
        flags |= O_CREAT;
    if ((amode & MPI_MODE_EXCL) != 0)
        flags |= O_EXCL;
    return flags;
}

/* Permission bits of a file that is made, as open() of the same process would give it. */
static mode_t permissions(const struct hints *hints)
{
    char line[256];
    unsigned mask = 022;
    if (hints->file_perm >= 0)
        return (mode_t)hints->file_perm;
    /* umask() can only be asked by setting it, which other threads would see. */
    FILE *status = fopen("/proc/self/status", "re");
    while (status != NULL && fgets(line, sizeof line, status) != NULL)
        if (sscanf(line, "Umask: %o", &mask) == 1)
            break;
    if (status != NULL)
        fclose(status);
    return 0666 & ~(mode_t)mask;
}

/* Longest loan: a layout over thousands of targets. */
enum { LOAN_INLINE = 1024, LOAN_MAX = 1 << 20 };

/* What rank 0 tells the others about an opening. */
struct opening {
    int class;
    int amode;
    int own; /* of comm_take */
    struct hints hints;
    MPI_Offset position;
    uint32_t text_length; /* of the story, if it failed */
    uint32_t loan_length;
    char loan[LOAN_INLINE]; /* if it fits; otherwise it comes behind */
};

/* Opens as the one who asks the metadata service; *loan is what the others need, to be freed. */
static int open_first(struct weir_mpi_file *file, struct opening *opening, char **loan)
{
    weir_pool *pool;
    int class = check_amode(file->amode);
    if (class == MPI_SUCCESS)
        class = pool_connect(&pool);
    if (class != MPI_SUCCESS)
        return class;
    const weir_layout wish = {sizeof wish, file->hints.striping_unit, file->hints.striping_factor,
                              0};
    class = error_of(weir_open(pool, file->path, flags_of(file->amode), permissions(&file->hints),
                               &wish, &file->data));
    if (class == MPI_SUCCESS && (file->amode & MPI_MODE_APPEND) != 0) {
        struct weir_stat stat;
        class = error_of(weir_fstat(file->data, &stat));
        opening->position = (MPI_Offset)stat.size;
    }
    if (class != MPI_SUCCESS || file->size == 1)
        return class;
    size_t room = LOAN_INLINE;
    ssize_t length;
    while ((*loan = malloc(room)) != NULL &&
           (length = weir_lend(file->data, *loan, room)) == -ERANGE && room < LOAN_MAX) {
        free(*loan);
        room *= 4;
    }
    if (*loan == NULL)
        return error_set(MPI_ERR_NO_MEM, "open %s: no memory", file->path);
    opening->loan_length = length > 0 ? (uint32_t)length : 0;
    return error_of(length);
}

/* All ranks: rank 0's opening, and for the others the file that it lends. The communicator is the
 * program's own, on which we make collective calls alone. */
static int open_all(struct weir_mpi_file *file, MPI_Comm user)
{
    struct opening opening = {.amode = file->amode, .hints = file->hints};
    char *loan = NULL;
    if (file->rank == 0) {
        opening.own = comm_wants_own();
        opening.class = open_first(file, &opening, &loan);
        if (opening.class != MPI_SUCCESS)
            opening.text_length = (uint32_t)strlen(error_text) + 1;
        else if (opening.loan_length <= LOAN_INLINE && loan != NULL)
            memcpy(opening.loan, loan, opening.loan_length);
    }
    if (file->size > 1) {
        comm_broadcast(&opening, sizeof opening, MPI_BYTE, 0, user);
        if (opening.text_length > 0)
            comm_broadcast(error_text, (int)opening.text_length, MPI_BYTE, 0, user);
        if (opening.loan_length > LOAN_INLINE) {
            if (file->rank != 0)
                loan = malloc(opening.loan_length);
            /* Without memory for it there is none for the MPI either. */
            if (loan == NULL)
                return error_set(MPI_ERR_NO_MEM, "open %s: no memory", file->path);
            comm_broadcast(loan, (int)opening.loan_length, MPI_BYTE, 0, user);
        }
    }
    int class = opening.class;
    if (class == MPI_SUCCESS)
        class = comm_take(user, opening.own, &file->comm);
    if (class == MPI_SUCCESS && file->rank != 0) {
        weir_pool *pool;
        if (file->amode != opening.amode)
            class = error_set(MPI_ERR_NOT_SAME, "open %s: the ranks' modes differ", file->path);
        if (class == MPI_SUCCESS)
            class = pool_connect(&pool);
        if (class == MPI_SUCCESS)
            class = error_of(weir_borrow(pool, loan != NULL ? loan : opening.loan,
                                         opening.loan_length, &file->data));
        file->hints = opening.hints;
    }
    free(loan);
    file->position = file->shared_base = opening.position;
    return class;
}

static void discard(struct weir_mpi_file *file)
{
    if (file->handle != MPI_FILE_NULL)
        GENUINE(File_close)(&file->handle);
    weir_close(file->data);
    view_free(file->view);
    if (file->group != MPI_GROUP_NULL)
        PMPI_Group_free(&file->group);
    comm_release(&file->comm);
    pthread_mutex_destroy(&file->lock);
    free(file->path);
    free(file);
}

/* What a rank does for itself. */
static int open_self(struct weir_mpi_file *file, MPI_Comm user)
{
    weir_layout layout = {.struct_size = sizeof layout};
    int class = error_of(weir_flayout(file->data, &layout));
    if (class != MPI_SUCCESS)
        return class;
    file->hints.striping_unit = layout.stripe_size;
    file->hints.striping_factor = layout.stripe_count;
    if (PMPI_Comm_group(user, &file->group) != MPI_SUCCESS)
        return error_set(MPI_ERR_COMM, "open %s: the communicator has no group", file->path);
    class = view_make(0, MPI_BYTE, MPI_BYTE, "native", true, &file->view);
    if (class != MPI_SUCCESS)
        return class;
    if (GENUINE(File_open)(MPI_COMM_SELF, "/dev/null", MPI_MODE_RDWR, MPI_INFO_NULL,
                           &file->handle) != MPI_SUCCESS) {
        file->handle = MPI_FILE_NULL;
        return error_set(MPI_ERR_OTHER,
                         "open %s: the MPI gives no more handles of files; too many are open",
                         file->path);
    }
    error_inherit(file->handle);
    if (!table_add(&files, (weir_word)file->handle, file))
        return error_set(MPI_ERR_NO_MEM, "open %s: no memory", file->path);
    return MPI_SUCCESS;
}

EXPORT int weir_mpi_File_open(MPI_Comm comm, const char *path, int amode, MPI_Info info,
                              MPI_File *out);
int weir_mpi_File_open(MPI_Comm comm, const char *path, int amode, MPI_Info info, MPI_File *out)
{
    int inter = 0;
    *out = MPI_FILE_NULL;
    if (comm == MPI_COMM_NULL || PMPI_Comm_test_inter(comm, &inter) != MPI_SUCCESS || inter)
        return error_raise(NULL, error_set(MPI_ERR_COMM, "open %s: not an intracommunicator", path));
    struct weir_mpi_file *file = calloc(1, sizeof *file);
    if (file == NULL || (file->path = strdup(path)) == NULL) {
        free(file);
        return error_raise(NULL, error_set(MPI_ERR_NO_MEM, "open %s: no memory", path));
    }
    file->handle = MPI_FILE_NULL;
    file->comm = MPI_COMM_NULL;
    file->group = MPI_GROUP_NULL;
    file->amode = amode;
    file->hints = hints_default;
    hints_read(info, &file->hints);
    pthread_mutex_init(&file->lock, NULL);
    PMPI_Comm_rank(comm, &file->rank);
    PMPI_Comm_size(comm, &file->size);
    int class = open_all(file, comm);
    /* If rank 0 failed, or communicators have run out, all know it. */
    if (file->comm != MPI_COMM_NULL) {
        if (class == MPI_SUCCESS)
            class = open_self(file, comm);
        class = file_agree(file, class);
    }
    if (class != MPI_SUCCESS) {
        table_remove(&files, (weir_word)file->handle);
        discard(file);
        return error_raise(NULL, class);
    }
    *out = file->handle;
    return MPI_SUCCESS;
}

EXPORT int weir_mpi_File_close(MPI_File *handle);
int weir_mpi_File_close(MPI_File *handle)
{
    struct weir_mpi_file *file = file_find(*handle);
    /* Nobody's writes may be under way when rank 0 settles the file and ends what it has lent. */
    int class = file_agree(file, request_finish(file));
    int closed = MPI_SUCCESS;
    weir_pool *pool;
    if (file->rank != 0)
        closed = error_of(weir_close(file->data));
    if (file->rank == 0) {
        closed = error_of(weir_close(file->data));
        if ((file->amode & MPI_MODE_DELETE_ON_CLOSE) != 0 && pool_connect(&pool) == MPI_SUCCESS) {
            int gone = error_of(weir_unlink(pool, file->path));
            closed = closed == MPI_SUCCESS ? gone : closed;
        }
    }
    closed = file_share_outcome(file, closed);
    file->data = NULL;
    request_orphan(file);
    class = class == MPI_SUCCESS ? closed : class;
    /* The handler goes with the handle. */
    int code = error_raise(file, class);
    table_remove(&files, (weir_word)file->handle);
    discard(file);
    *handle = MPI_FILE_NULL;
    return code;
}

EXPORT int weir_mpi_File_delete(const char *path, MPI_Info info);
int weir_mpi_File_delete(const char *path, MPI_Info info)
{
    weir_pool *pool;
    (void)info;
    int class = pool_connect(&pool);
    if (class == MPI_SUCCESS)
        class = error_of(weir_unlink(pool, path));
    return error_raise(NULL, class);
}

static int check_writable(const struct weir_mpi_file *file, const char *operation)
{
    if ((file->amode & MPI_MODE_RDONLY) != 0)
        return error_set(MPI_ERR_READ_ONLY, "%s %s: the file is open with MPI_MODE_RDONLY",
                         operation, file->path);
    return MPI_SUCCESS;
}

int file_check_sequential(const struct weir_mpi_file *file, const char *operation)
{
    if ((file->amode & MPI_MODE_SEQUENTIAL) != 0)
        return error_set(MPI_ERR_UNSUPPORTED_OPERATION,
                         "%s %s: the file is open with MPI_MODE_SEQUENTIAL", operation, file->path);
    return MPI_SUCCESS;
}

/* What set_size and preallocate may not be asked for. */
static int check_resize(const struct weir_mpi_file *file, const char *operation, MPI_Offset size)
{
    int class = check_writable(file, operation);
    if (class == MPI_SUCCESS)
        class = file_check_sequential(file, operation);
    if (class == MPI_SUCCESS && size < 0)
        class = error_set(MPI_ERR_ARG, "%s %s: %lld is negative", operation, file->path,
                          (long long)size);
    return class;
}

EXPORT int weir_mpi_File_set_size(MPI_File handle, MPI_Offset size);
int weir_mpi_File_set_size(MPI_File handle, MPI_Offset size)
{
    struct weir_mpi_file *file = file_find(handle);
    int class = check_resize(file, "set size of", size);
    if (class != MPI_SUCCESS)
        return error_raise(file, class);
    file->size_seen = 0;
    /* What others wrote before they came here is cut too, and what they write afterwards is not. */
    if (file->size > 1)
        comm_barrier(file->comm);
    if (file->rank == 0)
        class = error_of(weir_ftruncate(file->data, (uint64_t)size));
    return error_raise(file, file_share_outcome(file, class));
}

int file_size(struct weir_mpi_file *file, MPI_Offset *size)
{
    struct weir_stat stat;
    int class = error_of(weir_fstat(file->data, &stat));
    *size = class == MPI_SUCCESS ? (MPI_Offset)stat.size : 0;
    return class;
}

/* Whether the file is so long. A target knows, if it may be read; else the metadata service is asked. */
static int reaches(struct weir_mpi_file *file, MPI_Offset size, bool *reached)
{
    char last;
    MPI_Offset now = 0;
    int class = MPI_SUCCESS;
    if (size == 0) {
        *reached = true;
    } else if ((file->amode & MPI_MODE_RDWR) != 0) {
        ssize_t got = weir_pread(file->data, &last, 1, (uint64_t)size - 1);
        *reached = got > 0;
        class = error_of(got);
    } else {
        class = file_size(file, &now);
        *reached = now >= size;
    }
    return class;
}

EXPORT int weir_mpi_File_preallocate(MPI_File handle, MPI_Offset size);
int weir_mpi_File_preallocate(MPI_File handle, MPI_Offset size)
{
    struct weir_mpi_file *file = file_find(handle);
    int class = check_resize(file, "preallocate", size);
    if (class != MPI_SUCCESS)
        return error_raise(file, class);
    if (file->size > 1)
        comm_barrier(file->comm);
    /* Memory is taken when it is written: what is promised here is the size. */
    if (file->rank == 0) {
        bool reached = false;
        class = reaches(file, size, &reached);
        if (class == MPI_SUCCESS && !reached)
            class = error_of(weir_ftruncate(file->data, (uint64_t)size));
    }
    return error_raise(file, file_share_outcome(file, class));
}

EXPORT int weir_mpi_File_get_size(MPI_File handle, MPI_Offset *size);
int weir_mpi_File_get_size(MPI_File handle, MPI_Offset *size)
{
    struct weir_mpi_file *file = file_find(handle);
    return error_raise(file, file_size(file, size));
}

EXPORT int weir_mpi_File_get_group(MPI_File handle, MPI_Group *group);
int weir_mpi_File_get_group(MPI_File handle, MPI_Group *group)
{
    struct weir_mpi_file *file = file_find(handle);
    /* A handle of its own, which the program frees. */
    int got = PMPI_Group_union(file->group, MPI_GROUP_EMPTY, group);
    return error_raise(file, got == MPI_SUCCESS
                                 ? MPI_SUCCESS
                                 : error_set(MPI_ERR_GROUP, "group of %s: the MPI refused",
                                             file->path));
}

EXPORT int weir_mpi_File_get_amode(MPI_File handle, int *amode);
int weir_mpi_File_get_amode(MPI_File handle, int *amode)
{
    *amode = file_find(handle)->amode;
    return MPI_SUCCESS;
}

EXPORT int weir_mpi_File_set_info(MPI_File handle, MPI_Info info);
int weir_mpi_File_set_info(MPI_File handle, MPI_Info info)
{
    struct weir_mpi_file *file = file_find(handle);
    agree_later(file, info);
    return MPI_SUCCESS;
}

EXPORT int weir_mpi_File_get_info(MPI_File handle, MPI_Info *info);
int weir_mpi_File_get_info(MPI_File handle, MPI_Info *info)
{
    struct weir_mpi_file *file = file_find(handle);
    return error_raise(file, hints_show(&file->hints, info));
}

EXPORT int weir_mpi_File_sync(MPI_File handle);
int weir_mpi_File_sync(MPI_File handle)
{
    struct weir_mpi_file *file = file_find(handle);
    int class = check_writable(file, "sync");
    if (class != MPI_SUCCESS)
        return error_raise(file, class);
    /* Bytes are the pool's when a write returns; of what others wrote, whoever comes last here has
     * seen all that came before, so that one of us makes it safe for all. */
    class = file_agree(file, request_finish(file));
    if (class == MPI_SUCCESS && file->rank == 0)
        class = error_of(weir_fsync(file->data));
    return error_raise(file, file_share_outcome(file, class));
}
