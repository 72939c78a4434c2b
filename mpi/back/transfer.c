#include "transfer.h"
#include "error.h"
#include "represent.h"
#include "view.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    SLOTS = 2,         /* batches under way at a time: one is made while the other moves */
    PIECES_FIRST = 32, /* room for pieces that is there without asking for memory */
};
/* Tests make these small. */
#ifndef PIECES_MAX
#define PIECES_MAX 65536 /* of a batch, in the file and in memory */
#endif
#ifndef STAGING_BYTES
#define STAGING_BYTES (4 << 20) /* of a batch that is converted */
#endif
/* Data of a batch: bytes. What is contiguous costs nothing by the piece. */
static const int64_t list_bytes_max = INT64_C(64) << 20;
static const int64_t whole_bytes_max = INT64_C(1) << 30;
/* Shorter ones go on well enough in the kernel's buffers while the program computes. */
#ifndef DRIVEN_BYTES_MIN
#define DRIVEN_BYTES_MIN (512 << 10)
#endif

/* A datatype laid out from somewhere on: of the file or of memory. */
struct side {
    struct flat *flat;
    struct cursor cursor;
    bool begun;
};

/* A run of bytes of the file or of memory, which weir.h and the system give the same form: one list can
 * be made of either. */
union piece {
    weir_extent extent;
    struct iovec memory;
};
_Static_assert(sizeof(union piece) == sizeof(weir_extent) &&
                   sizeof(union piece) == sizeof(struct iovec) &&
                   offsetof(weir_extent, length) == offsetof(struct iovec, iov_len) &&
                   sizeof(void *) == sizeof(uint64_t) && sizeof(size_t) == sizeof(uint64_t),
               "runs of the file and of memory have one form");

/* Where a batch's data lie on one side. */
struct list {
    union piece *pieces, *few; /* few: those that are there without asking for memory */
    int64_t count, room;
};

struct slot {
    enum { SLOT_FREE, SLOT_MOVES, SLOT_ENDED } state; /* ended: its users have not left yet */
    weir_op *op;
    int users;                  /* threads inside a call on the operation */
    int64_t length;             /* bytes of the view's data */
    int64_t native_at, native;  /* the same in bytes of memory's data, where that is converted */
    unsigned char *staging;
};

struct transfer {
    weir_file *file;
    bool write, converts;
    struct side memory, place;
    int64_t position;           /* of the first byte, in the view's data */
    int64_t length;             /* bytes of the view's data, as far as known; see `native` */
    int64_t native;             /* bytes of memory's data */
    int64_t begun, native_begun; /* how far batches have been made */
    int64_t moved;              /* bytes of memory's data */
    bool cut;                   /* the file ended */
    bool finished;
    int class;
    char text[ERROR_TEXT_SIZE];

    struct slot slots[SLOTS]; /* a ring */
    int first, under_way;
    struct transfer *next, **link; /* of those that are driven; link is NULL if not */

    /* The batch that is being made. */
    struct list file_list, memory_list;
    union piece few[2][PIECES_FIRST];
};

/* ---- making batches ---------------------------------------------------------------------- */

static void free_list(struct list *list)
{
    if (list->pieces != list->few) {
        free(list->pieces);
    }
}

static bool grow(struct list *list, int64_t wanted)
{
    if (wanted <= list->room) {
        return true;
    }
    int64_t doubled = 2 * list->room > wanted ? 2 * list->room : wanted;
    doubled = doubled < PIECES_MAX ? doubled : PIECES_MAX;
    union piece *grown = malloc((size_t)doubled * sizeof *grown);
    if (grown == NULL) {
        return false;
    }
    memcpy(grown, list->pieces, (size_t)list->room * sizeof *grown);
    free_list(list);
    list->pieces = grown;
    list->room = doubled;
    return true;
}

/* How many of some runs still have a place in a list. */
static int64_t fitting(const struct strided *runs, int64_t count)
{
    int64_t room = PIECES_MAX - count;
    return runs->count < room ? runs->count : room;
}

/* Lists where data from `at` on lies, of bytes_max at most; what touches is one piece. Gives the bytes;
 * -1: no memory. */
static int64_t list_runs(struct list *list, struct cursor *cursor, int64_t at, int64_t bytes_max)
{
    int64_t bytes = 0, count = 0;
    cursor_seek(cursor, at);
    while (bytes < bytes_max && count < PIECES_MAX) {
        struct strided runs = cursor_next(cursor, bytes_max - bytes);
        int64_t taken = fitting(&runs, count);
        if (!grow(list, count + taken)) {
            return -1;
        }
        union piece *pieces = list->pieces;
        for (int64_t i = 0; i < taken; i++) {
            uint64_t offset = (uint64_t)(runs.offset + i * runs.stride);
            weir_extent *last = count > 0 ? &pieces[count - 1].extent : NULL;
            if (last != NULL && last->offset + last->length == offset) {
                last->length += (uint64_t)runs.length;
            } else {
                pieces[count++].extent = (weir_extent){offset, (uint64_t)runs.length};
            }
        }
        bytes += taken * runs.length;
        if (taken < runs.count) {
            break;
        }
    }
    list->count = count;
    return bytes;
}

static int64_t list_file(struct transfer *transfer, int64_t bytes_max)
{
    return list_runs(&transfer->file_list, &transfer->place.cursor,
                     transfer->position + transfer->begun, bytes_max);
}

/* Takes bytes off the end of the list of what lies in the file. */
static void trim(struct transfer *transfer, int64_t bytes)
{
    while (bytes > 0) {
        struct list *list = &transfer->file_list;
        weir_extent *last = &list->pieces[list->count - 1].extent;
        if ((int64_t)last->length > bytes) {
            last->length -= (uint64_t)bytes;
            return;
        }
        bytes -= (int64_t)last->length;
        list->count--;
    }
}

static int no_memory(void)
{
    return error_set(MPI_ERR_NO_MEM, "access: no memory; the rest of it was not carried out");
}

/* Bytes that the next batch should have. */
static int64_t appetite(struct transfer *transfer)
{
    int64_t left = transfer->length - transfer->begun;
    if (left <= list_bytes_max) {
        return left;
    }
    int64_t most = left < whole_bytes_max ? left : whole_bytes_max;
    cursor_seek(&transfer->place.cursor, transfer->position + transfer->begun);
    cursor_seek(&transfer->memory.cursor, transfer->begun);
    struct strided place = cursor_next(&transfer->place.cursor, most);
    struct strided memory = cursor_next(&transfer->memory.cursor, most);
    bool whole = place.count == 1 && place.length == most && memory.count == 1 &&
                 memory.length == most;
    return whole ? most : list_bytes_max;
}

/* Makes the next batch of what is moved as it is. */
static int make_plain(struct transfer *transfer, struct slot *slot)
{
    int64_t wanted = appetite(transfer);
    int64_t listed = list_file(transfer, wanted);
    int64_t found = listed < 0 ? -1 : list_runs(&transfer->memory_list, &transfer->memory.cursor,
                                                transfer->begun, listed);
    if (found < 0) {
        return no_memory();
    }
    trim(transfer, listed - found);
    slot->length = found;
    slot->native = found;
    slot->native_at = transfer->begun;
    return MPI_SUCCESS;
}

/* Makes the next batch of what is converted on the way. */
static int make_converted(struct transfer *transfer, struct slot *slot)
{
    if (slot->staging == NULL && (slot->staging = malloc(STAGING_BYTES)) == NULL) {
        return no_memory();
    }
    struct converted part =
        convert(transfer->write ? CONVERT_WRITE : CONVERT_MEASURE, &transfer->memory.cursor,
                transfer->native_begun, transfer->native, slot->staging, STAGING_BYTES);
    if (part.overflow) {
        return error_set(MPI_ERR_CONVERSION,
                         "write: a number does not fit into its size in external32; it and what is "
                         "behind it were not written");
    }
    int64_t listed = list_file(transfer, part.external);
    if (listed >= 0 && listed < part.external) {
        /* More pieces than a batch has: whole elements of as many. */
        part = convert(CONVERT_MEASURE, &transfer->memory.cursor, transfer->native_begun,
                       transfer->native, slot->staging, listed);
        trim(transfer, listed - part.external);
    }
    if (listed < 0) {
        return no_memory();
    }
    transfer->memory_list.pieces->memory = (struct iovec){slot->staging, (size_t)part.external};
    transfer->memory_list.count = 1;
    slot->length = part.external;
    slot->native_at = transfer->native_begun;
    slot->native = part.native;
    return MPI_SUCCESS;
}

static int make_batch(struct transfer *transfer, struct slot *slot)
{
    int class = transfer->converts ? make_converted(transfer, slot) : make_plain(transfer, slot);
    if (class == MPI_SUCCESS) {
        transfer->begun += slot->length;
        transfer->native_begun += slot->native;
    }
    return class;
}

/* ---- carrying them out ------------------------------------------------------------------- */

static void fail(struct transfer *transfer, int class)
{
    if (transfer->class == MPI_SUCCESS) {
        transfer->class = class;
        memcpy(transfer->text, error_text, sizeof transfer->text);
    }
}

static bool contiguous(const struct transfer *transfer)
{
    return transfer->file_list.count == 1 && transfer->memory_list.count == 1;
}

static int submit(struct transfer *transfer, struct slot *slot)
{
    const weir_extent *extents = &transfer->file_list.pieces->extent;
    const struct iovec *iov = &transfer->memory_list.pieces->memory;
    size_t extent_count = (size_t)transfer->file_list.count;
    size_t iov_count = (size_t)transfer->memory_list.count;
    int error;
    if (contiguous(transfer)) {
        error = transfer->write ? weir_submit_write(transfer->file, iov->iov_base, iov->iov_len,
                                                    extents->offset, &slot->op)
                                : weir_submit_read(transfer->file, iov->iov_base, iov->iov_len,
                                                   extents->offset, &slot->op);
    } else {
        error = transfer->write
                    ? weir_submit_writev_list(transfer->file, extents, extent_count, iov, iov_count,
                                              &slot->op)
                    : weir_submit_readv_list(transfer->file, extents, extent_count, iov, iov_count,
                                             &slot->op);
    }
    return error_of(error);
}

/* The only batch there is: without an operation. */
static ssize_t move_now(struct transfer *transfer)
{
    const weir_extent *extents = &transfer->file_list.pieces->extent;
    const struct iovec *iov = &transfer->memory_list.pieces->memory;
    size_t extent_count = (size_t)transfer->file_list.count;
    size_t iov_count = (size_t)transfer->memory_list.count;
    if (contiguous(transfer)) {
        return transfer->write
                   ? weir_pwrite(transfer->file, iov->iov_base, iov->iov_len, extents->offset)
                   : weir_pread(transfer->file, iov->iov_base, iov->iov_len, extents->offset);
    }
    return transfer->write ? weir_writev_list(transfer->file, extents, extent_count, iov, iov_count)
                           : weir_readv_list(transfer->file, extents, extent_count, iov, iov_count);
}

/* Takes note of how a batch ended. */
static void account(struct transfer *transfer, const struct slot *slot, ssize_t result)
{
    if (result < 0) {
        fail(transfer, error_of(result));
        return;
    }
    if (transfer->cut || transfer->class != MPI_SUCCESS) {
        /* What lies behind the end or a failure does not count. */
        return;
    }
    transfer->cut = result < slot->length;
    int64_t native = transfer->converts && transfer->cut ? 0 : result;
    if (transfer->converts && !transfer->write) {
        struct converted part =
            convert(CONVERT_READ, &transfer->memory.cursor, slot->native_at,
                    slot->native_at + slot->native, slot->staging, result);
        native = part.native;
    } else if (transfer->converts) {
        native = slot->native;
    }
    transfer->moved += native;
}

static void free_slot(struct slot *slot)
{
    weir_op_free(slot->op);
    slot->op = NULL;
    slot->state = SLOT_FREE;
}

/* Notes what has ended, and begins what can be begun. */
static void advance(struct transfer *transfer)
{
    while (!transfer->finished) {
        bool changed = false;
        if (transfer->under_way > 0) {
            struct slot *slot = &transfer->slots[transfer->first];
            ssize_t result = 0;
            int ended = weir_poll(slot->op, &result);
            if (ended != 0) {
                account(transfer, slot, ended < 0 ? ended : result);
                slot->state = SLOT_ENDED;
                if (slot->users == 0) {
                    free_slot(slot);
                }
                transfer->first = (transfer->first + 1) % SLOTS;
                transfer->under_way--;
                changed = true;
            }
        }
        bool more = transfer->native_begun < transfer->native && !transfer->cut &&
                    transfer->class == MPI_SUCCESS;
        struct slot *next = &transfer->slots[(transfer->first + transfer->under_way) % SLOTS];
        if (more && transfer->under_way < SLOTS && next->state == SLOT_FREE) {
            int class = make_batch(transfer, next);
            class = class == MPI_SUCCESS ? submit(transfer, next) : class;
            if (class == MPI_SUCCESS) {
                next->state = SLOT_MOVES;
                transfer->under_way++;
            } else {
                fail(transfer, class);
            }
            changed = true;
        }
        transfer->finished = !more && transfer->under_way == 0;
        if (!changed) {
            return;
        }
    }
}

/* ---- beginning and ending a transfer ----------------------------------------------------- */

static void end(struct transfer *transfer)
{
    for (int i = 0; i < SLOTS; i++) {
        free(transfer->slots[i].staging);
    }
    free_list(&transfer->file_list);
    free_list(&transfer->memory_list);
    struct side *sides[] = {&transfer->memory, &transfer->place};
    for (int i = 0; i < 2; i++) {
        if (sides[i]->begun) {
            cursor_end(&sides[i]->cursor);
        }
        flat_release(sides[i]->flat);
    }
}

static bool begin_side(struct side *side, struct flat *flat, int64_t base)
{
    side->flat = flat;
    side->begun = cursor_begin(&side->cursor, flat->shape, flat->extent, base);
    return side->begun;
}

static int too_much(void)
{
    return error_set(MPI_ERR_COUNT, "access: more bytes than can be counted; nothing was moved");
}

static int check_place(const struct access *access)
{
    const struct shape *shape = access->file->view->tile->shape;
    if (access->write && shape == NULL) {
        return error_set(MPI_ERR_ARG, "write %s: the view's filetype has no data; nothing was written",
                         access->file->path);
    }
    if (access->write && !shape->disjoint) {
        return error_set(MPI_ERR_ARG,
                         "write %s: the view's filetype overlaps itself; nothing was written",
                         access->file->path);
    }
    return MPI_SUCCESS;
}

int access_clip(const struct access *access, int64_t length, int64_t *clipped)
{
    struct weir_mpi_file *file = access->file;
    const struct view *view = file->view;
    const struct flat *tile = view->tile;
    *clipped = length;
    if (length == 0 || tile->shape == NULL || tile->extent < tile->shape->high - tile->shape->low) {
        return MPI_SUCCESS;
    }
    int64_t end = view_byte_offset(view, access->position + length - 1) + 1;
    if (end <= atomic_load_explicit(&file->size_seen, memory_order_relaxed)) {
        return MPI_SUCCESS;
    }
    struct weir_stat stat;
    int error = weir_fstat(file->data, &stat);
    if (error < 0) {
        return error_of(error);
    }
    int64_t size = (int64_t)stat.size;
    atomic_store_explicit(&file->size_seen, size, memory_order_relaxed);
    if (end > size) {
        int64_t before = view_position(view, size) - access->position;
        *clipped = before < 0 ? 0 : before < length ? before : length;
    }
    return MPI_SUCCESS;
}

void access_grown(const struct access *access, int64_t length)
{
    struct weir_mpi_file *file = access->file;
    if (length <= 0 || file->view->tile->shape == NULL) {
        return;
    }
    int64_t end = view_byte_offset(file->view, access->position + length - 1) + 1;
    int64_t seen = atomic_load_explicit(&file->size_seen, memory_order_relaxed);
    while (seen < end && !atomic_compare_exchange_weak_explicit(&file->size_seen, &seen, end,
                                                                memory_order_relaxed,
                                                                memory_order_relaxed)) {
    }
}

/* Sets everything up, without moving anything. The transfer is to be ended in any case. */
static int begin(struct transfer *transfer, const struct access *access)
{
    const struct view *view = access->file->view;
    const struct representation *representation = view->representation;
    struct flat *flat;
    /* Not all of it is cleared: most of it is room. */
    memset(transfer, 0, offsetof(struct transfer, few));
    transfer->file_list = (struct list){transfer->few[0], transfer->few[0], 0, PIECES_FIRST};
    transfer->memory_list = (struct list){transfer->few[1], transfer->few[1], 0, PIECES_FIRST};
    transfer->file = access->file->data;
    transfer->write = access->write;
    transfer->position = access->position;
    transfer->converts = representation->how == REPRESENT_EXTERNAL32;
    transfer->finished = true;
    int class = flat_get(access->type, transfer->converts ? FLAT_TYPED : FLAT_NATIVE, &flat);
    if (class != MPI_SUCCESS) {
        return error_set(class, "access %s: the datatype cannot be used; nothing was moved",
                         access->file->path);
    }
    int64_t native;
    if (__builtin_mul_overflow(flat->size, (int64_t)access->count, &native)) {
        flat_release(flat);
        return too_much();
    }
    if (native == 0 || (view->tile->shape == NULL && !access->write)) {
        flat_release(flat);
        return MPI_SUCCESS;
    }
    bool room = begin_side(&transfer->memory, flat, (int64_t)(intptr_t)access->buffer);
    class = check_place(access);
    if (class != MPI_SUCCESS) {
        return class;
    }
    room = room && begin_side(&transfer->place, flat_share(view->tile), view->displacement);
    if (!room) {
        return no_memory();
    }
    /* What is converted comes out of a buffer of our own, and touches no memory behind the end. */
    if (!access->write && !transfer->converts) {
        class = access_clip(access, native, &native);
    }
    transfer->native = native;
    transfer->length = native;
    transfer->finished = native == 0 || class != MPI_SUCCESS;
    return class;
}

static int outcome(const struct transfer *transfer, MPI_Count *bytes)
{
    *bytes = transfer->moved;
    if (transfer->class != MPI_SUCCESS) {
        return error_set(transfer->class, "%s", transfer->text);
    }
    return MPI_SUCCESS;
}

/* Carries out what was begun. */
static void run(struct transfer *transfer)
{
    if (transfer->finished) {
        return;
    }
    /* If the first batch is all there is, it needs no operation. */
    struct slot *slot = &transfer->slots[0];
    int class = make_batch(transfer, slot);
    if (class != MPI_SUCCESS) {
        fail(transfer, class);
        return;
    }
    if (transfer->native_begun == transfer->native) {
        account(transfer, slot, move_now(transfer));
        transfer->finished = true;
        return;
    }
    class = submit(transfer, slot);
    if (class != MPI_SUCCESS) {
        fail(transfer, class);
        return;
    }
    slot->state = SLOT_MOVES;
    transfer->under_way = 1;
    for (;;) {
        advance(transfer);
        if (transfer->finished) {
            return;
        }
        weir_wait(transfer->slots[transfer->first].op, -1, NULL);
    }
}

/* ---- representations of a program's own -------------------------------------------------- */

static bool program_converts(const struct access *access)
{
    const struct representation *how = access->file->view->representation;
    return how->how == REPRESENT_BY_PROGRAM && (access->write ? how->write : how->read) != NULL;
}

/* The program converts all of it at once: how much of a datatype lies in how many bytes, nobody but
 * it could tell. */
static int run_converted_by_program(const struct access *access, MPI_Count *bytes)
{
    const struct representation *how = access->file->view->representation;
    const char *path = access->file->path;
    struct flat *outside;
    int64_t elements, total, length;
    MPI_Count size = 0;
    *bytes = 0;
    int class = representation_flatten(how, access->type, &outside);
    if (class != MPI_SUCCESS) {
        return error_set(class, "access %s: the representation %s has no size for the datatype", path,
                         how->name);
    }
    int64_t each = outside->size;
    flat_release(outside);
    class = representation_elements(access->type, &elements);
    if (class == MPI_SUCCESS) {
        class = PMPI_Type_size_x(access->type, &size);
    }
    if (class != MPI_SUCCESS) {
        return error_set(class, "access %s: the datatype cannot be used", path);
    }
    if (__builtin_mul_overflow(elements, (int64_t)access->count, &total) ||
        __builtin_mul_overflow(each, (int64_t)access->count, &length)) {
        return too_much();
    }
    if (length == 0 || total == 0) {
        return MPI_SUCCESS;
    }
    void *staging = malloc((size_t)length);
    if (staging == NULL) {
        return no_memory();
    }
    if (access->write && representation_convert(how, true, access->buffer, access->type, total,
                                                staging) != MPI_SUCCESS) {
        free(staging);
        return error_set(MPI_ERR_CONVERSION, "write %s: the conversion function of %s failed", path,
                         how->name);
    }
    struct access plain = *access;
    plain.buffer = staging;
    plain.count = length;
    plain.type = MPI_BYTE;
    struct transfer transfer;
    class = begin(&transfer, &plain);
    if (class == MPI_SUCCESS) {
        run(&transfer);
        class = outcome(&transfer, bytes);
    }
    end(&transfer);
    int64_t got = *bytes * total / length;
    if (class == MPI_SUCCESS && !access->write && got > 0 &&
        representation_convert(how, false, access->buffer, access->type, got, staging) !=
            MPI_SUCCESS) {
        class = error_set(MPI_ERR_CONVERSION, "read %s: the conversion function of %s failed", path,
                          how->name);
    }
    *bytes = got * (size * access->count) / total;
    free(staging);
    return class;
}

/* ---- the interface ----------------------------------------------------------------------- */

int access_size(const struct weir_mpi_file *file, MPI_Count count, MPI_Datatype type,
                MPI_Count *bytes)
{
    struct flat *flat;
    int64_t length = 0;
    int class = type == MPI_DATATYPE_NULL
                    ? MPI_ERR_TYPE
                    : representation_flatten(file->view->representation, type, &flat);
    if (class != MPI_SUCCESS) {
        return error_set(class, "access %s: the datatype cannot be used in the view's representation",
                         file->path);
    }
    bool fits = !__builtin_mul_overflow(flat->size, (int64_t)count, &length);
    flat_release(flat);
    *bytes = length;
    return fits ? MPI_SUCCESS : too_much();
}

int access_run(const struct access *access, MPI_Count *bytes)
{
    if (program_converts(access)) {
        return run_converted_by_program(access, bytes);
    }
    struct transfer transfer;
    *bytes = 0;
    int class = begin(&transfer, access);
    if (class == MPI_SUCCESS) {
        run(&transfer);
        class = outcome(&transfer, bytes);
        if (access->write && !transfer.converts) {
            access_grown(access, transfer.moved);
        } else if (transfer.cut) {
            /* Somebody has cut it. */
            access->file->size_seen = 0;
        }
    }
    end(&transfer);
    return class;
}

/* Drives long transfers while the program computes; knows nothing of MPI. */
static struct {
    pthread_mutex_t lock; /* also over all that is in transfers that were begun */
    pthread_cond_t wake, left;
    struct transfer *all;
    bool started;
} driver = {.lock = PTHREAD_MUTEX_INITIALIZER,
            .wake = PTHREAD_COND_INITIALIZER,
            .left = PTHREAD_COND_INITIALIZER};

enum { DRIVEN_MAX = 64, LOOK_AGAIN_MS = 20 };

static void leave(struct slot *slot)
{
    if (--slot->users == 0) {
        if (slot->state == SLOT_ENDED) {
            free_slot(slot);
        }
        pthread_cond_broadcast(&driver.left);
    }
}

static void *drive(void *unused)
{
    struct slot *slots[DRIVEN_MAX];
    weir_op *ops[DRIVEN_MAX];
    (void)unused;
    pthread_mutex_lock(&driver.lock);
    for (;;) {
        size_t count = 0;
        for (struct transfer *transfer = driver.all; transfer != NULL; transfer = transfer->next) {
            advance(transfer);
            /* Of each the oldest batch, which is the next to be accounted for. */
            if (transfer->under_way > 0 && count < DRIVEN_MAX) {
                slots[count] = &transfer->slots[transfer->first];
                slots[count]->users++;
                ops[count] = slots[count]->op;
                count++;
            }
        }
        if (count == 0) {
            pthread_cond_wait(&driver.wake, &driver.lock);
            continue;
        }
        pthread_mutex_unlock(&driver.lock);
        weir_wait_any(ops, count, LOOK_AGAIN_MS);
        pthread_mutex_lock(&driver.lock);
        for (size_t i = 0; i < count; i++) {
            leave(slots[i]);
        }
    }
    return NULL;
}

/* Under the lock. Without a thread the transfer goes on when it is waited for. */
static void have_driven(struct transfer *transfer)
{
    if (!driver.started) {
        pthread_t thread;
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        driver.started = pthread_create(&thread, &attributes, drive, NULL) == 0;
        pthread_attr_destroy(&attributes);
    }
    transfer->next = driver.all;
    transfer->link = &driver.all;
    if (driver.all != NULL) {
        driver.all->link = &transfer->next;
    }
    driver.all = transfer;
    pthread_cond_signal(&driver.wake);
}

int access_begin(const struct access *access, struct transfer **out)
{
    *out = NULL;
    struct transfer *transfer = malloc(sizeof *transfer);
    if (transfer == NULL) {
        return no_memory();
    }
    int class;
    if (program_converts(access)) {
        struct access none = *access;
        MPI_Count bytes;
        none.count = 0;
        class = run_converted_by_program(access, &bytes);
        class = class == MPI_SUCCESS ? begin(transfer, &none) : class;
        transfer->moved = bytes;
    } else {
        class = begin(transfer, access);
    }
    if (class != MPI_SUCCESS) {
        if (!program_converts(access)) {
            end(transfer);
        }
        free(transfer);
        return class;
    }
    pthread_mutex_lock(&driver.lock);
    advance(transfer);
    if (!transfer->finished && transfer->native >= DRIVEN_BYTES_MIN) {
        have_driven(transfer);
    }
    pthread_mutex_unlock(&driver.lock);
    *out = transfer;
    return MPI_SUCCESS;
}

int transfer_test(struct transfer *transfer, bool wait, MPI_Count *bytes, bool *done)
{
    pthread_mutex_lock(&driver.lock);
    advance(transfer);
    while (wait && !transfer->finished) {
        struct slot *slot = &transfer->slots[transfer->first];
        if (transfer->under_way == 0) {
            /* The driver has not left the operations that have ended. */
            pthread_cond_wait(&driver.left, &driver.lock);
        } else {
            slot->users++;
            pthread_mutex_unlock(&driver.lock);
            weir_wait(slot->op, -1, NULL);
            pthread_mutex_lock(&driver.lock);
            leave(slot);
        }
        advance(transfer);
    }
    *done = transfer->finished;
    if (!transfer->finished) {
        pthread_mutex_unlock(&driver.lock);
        return MPI_SUCCESS;
    }
    if (transfer->link != NULL) {
        *transfer->link = transfer->next;
        if (transfer->next != NULL) {
            transfer->next->link = transfer->link;
        }
    }
    for (int i = 0; i < SLOTS; i++) {
        while (transfer->slots[i].users > 0) {
            pthread_cond_wait(&driver.left, &driver.lock);
        }
    }
    pthread_mutex_unlock(&driver.lock);
    int class = outcome(transfer, bytes);
    end(transfer);
    free(transfer);
    return class;
}
