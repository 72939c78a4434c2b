/* Accesses of all ranks together.
 *
 * Lists of extents make most of what two-phase I/O was invented for unnecessary, so each rank goes to
 * the servers by itself, unless the pieces are so small that it is cheaper to exchange data first:
 * then aggregators collect what is theirs of the file, stripe by stripe, and carry it out in larger
 * pieces. They write only what they were given: holes stay what they were, nothing is read to be
 * written back.
 *
 * Nobody asks when nobody needs to: from the first access through a view on all ranks know whether any
 * of their views has small pieces at all (agree.h).
 */
#include "comm.h"
#include "error.h"
#include "represent.h"
#include "transfer.h"
#include "view.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a piece of a list costs client and server, and what it costs to move a byte between ranks,
 * pack, merge and unpack it: in nanoseconds. Only their ratio matters: measured with pieces of 64 B to
 * 1 KiB, lists and exchange met at some 50 bytes. */
#define PIECE_NS 300
#define BYTE_NS 6
/* And a round of exchange, with everybody waiting for the slowest. */
#define ROUND_NS 200000
/* From here on the exchange is never chosen: there is nothing to ask. */
#define COARSE_BYTES (PIECE_NS / BYTE_NS)
/* Where less than one byte in so many of a range is touched, its rounds would be empty. */
#define SPARSE 64
/* An aggregator's share of a round: bytes. */
#define SHARE_MAX (INT64_C(1) << 30)

/* What a rank has to move. */
struct wish {
    int64_t low, high; /* range of the file: [low, high) */
    int64_t bytes, pieces;
    int64_t able; /* its data lie in the file in the order of the data, and it has memory */
};

/* One access of all, as all ranks know it. */
struct together {
    const struct access *access;
    MPI_Comm comm;
    int rank, ranks, aggregators;
    int64_t stripe, share;      /* bytes; what one aggregator takes in a round */
    int64_t low, high;          /* of all */
    const struct flat *tile;
    int64_t displacement;
    struct flat *memory;
    int64_t length;             /* of this rank's data: bytes */
    int class;
    char text[ERROR_TEXT_SIZE];
    int64_t end;                /* where the file ended for a read, as far as seen */
    struct round *round;
};

/* Equal pieces at equal distances: a rank tells an aggregator of them in this form. */
struct run {
    int64_t offset, length, stride, count;
};

/* Grows as it is filled. */
struct runs {
    struct run *array;
    int64_t count, room;
};

/* What one rank sends to one aggregator in one round, or the other way. */
struct parcel {
    struct runs runs;
    unsigned char *data;
    int64_t bytes;
};

static void fail(struct together *all, int class, const char *text)
{
    if (all->class == MPI_SUCCESS) {
        all->class = class;
        snprintf(all->text, sizeof all->text, "%s", text);
    }
}

static void *room(struct together *all, int64_t bytes)
{
    void *memory = malloc(bytes > 0 ? (size_t)bytes : 1);
    if (memory == NULL) {
        fail(all, MPI_ERR_NO_MEM, "collective access: no memory");
    }
    return memory;
}

static int rank_of(const struct together *all, int aggregator)
{
    return (int)((int64_t)aggregator * all->ranks / all->aggregators);
}

static bool is_aggregator(const struct together *all)
{
    for (int i = 0; i < all->aggregators; i++) {
        if (rank_of(all, i) == all->rank) {
            return true;
        }
    }
    return false;
}

static bool add_piece(struct runs *runs, int64_t offset, int64_t length)
{
    if (runs->count > 0) {
        struct run *last = &runs->array[runs->count - 1];
        int64_t end = last->offset + (last->count - 1) * last->stride;
        if (last->count == 1 && last->offset + last->length == offset) {
            last->length += length;
            return true;
        }
        if (last->length == length && (last->count == 1 || offset - end == last->stride)) {
            last->stride = offset - end;
            last->count++;
            return true;
        }
    }
    if (runs->count == runs->room) {
        int64_t grown = runs->room == 0 ? 16 : 2 * runs->room;
        struct run *array = realloc(runs->array, (size_t)grown * sizeof *array);
        if (array == NULL) {
            return false;
        }
        runs->array = array;
        runs->room = grown;
    }
    runs->array[runs->count++] = (struct run){offset, length, 0, 1};
    return true;
}

/* ---- a rank's own data ------------------------------------------------------------------- */

/* The access's data from `from` to `to` in one piece: where they lie, or a copy. */
static unsigned char *straighten(struct together *all, int64_t from, int64_t to, bool fill,
                                 unsigned char **copy)
{
    const struct flat *flat = all->memory;
    unsigned char *base = all->access->buffer;
    *copy = NULL;
    if (flat->dense) {
        return base + (flat->shape == NULL ? 0 : flat->shape->at) + from;
    }
    *copy = room(all, to - from);
    struct cursor cursor;
    if (*copy == NULL || !fill) {
        return *copy;
    }
    if (!cursor_begin(&cursor, flat->shape, flat->extent, (int64_t)(intptr_t)base)) {
        fail(all, MPI_ERR_NO_MEM, "collective access: no memory");
        return *copy;
    }
    cursor_seek(&cursor, from);
    for (int64_t at = 0; at < to - from;) {
        struct strided runs = cursor_next(&cursor, to - from - at);
        for (int64_t i = 0; i < runs.count; i++, at += runs.length) {
            memcpy(*copy + at, (void *)(intptr_t)(runs.offset + i * runs.stride),
                   (size_t)runs.length);
        }
    }
    cursor_end(&cursor);
    return *copy;
}

/* Brings such a copy back into its places. */
static void spread(struct together *all, int64_t from, int64_t to, const unsigned char *copy)
{
    const struct flat *flat = all->memory;
    struct cursor cursor;
    if (copy == NULL || !cursor_begin(&cursor, flat->shape, flat->extent,
                                      (int64_t)(intptr_t)all->access->buffer)) {
        return;
    }
    cursor_seek(&cursor, from);
    for (int64_t at = 0; at < to - from;) {
        struct strided runs = cursor_next(&cursor, to - from - at);
        for (int64_t i = 0; i < runs.count; i++, at += runs.length) {
            memcpy((void *)(intptr_t)(runs.offset + i * runs.stride), copy + at,
                   (size_t)runs.length);
        }
    }
    cursor_end(&cursor);
}

/* Which of this rank's data lie before a place in the file. */
static int64_t data_before(const struct together *all, int64_t offset)
{
    const struct shape *shape = all->tile->shape;
    int64_t data = shape_data_before(shape, all->tile->extent, offset - all->displacement) -
                   all->access->position;
    return data < 0 ? 0 : data > all->length ? all->length : data;
}

/* Calls for each piece of this rank's data from `from` to `to`, cut at stripes; false from the
 * function ends it. */
typedef bool piece_function(struct together *all, int aggregator, int64_t offset, int64_t length,
                            int64_t data, void *state);

static bool each_piece(struct together *all, int64_t from, int64_t to, piece_function *call,
                       void *state)
{
    struct cursor cursor;
    bool going = cursor_begin(&cursor, all->tile->shape, all->tile->extent, all->displacement);
    cursor_seek(&cursor, all->access->position + from);
    for (int64_t at = from; going && at < to;) {
        struct strided runs = cursor_next(&cursor, to - at);
        for (int64_t i = 0; going && i < runs.count; i++) {
            int64_t offset = runs.offset + i * runs.stride, left = runs.length;
            while (going && left > 0) {
                int64_t stripe = offset / all->stripe;
                int64_t length = (stripe + 1) * all->stripe - offset;
                length = length < left ? length : left;
                going = call(all, (int)(stripe % all->aggregators), offset, length, at, state);
                offset += length;
                at += length;
                left -= length;
            }
        }
    }
    cursor_end(&cursor);
    return going;
}

static bool list_piece(struct together *all, int aggregator, int64_t offset, int64_t length,
                       int64_t data, void *state)
{
    struct parcel *parcels = state;
    (void)all, (void)data;
    parcels[aggregator].bytes += length;
    return add_piece(&parcels[aggregator].runs, offset, length);
}

/* Moves pieces between this rank's data and its parcels. */
struct packing {
    struct parcel *parcels;
    unsigned char *data; /* from `from` on */
    int64_t from;
    bool out;
};

static bool pack_piece(struct together *all, int aggregator, int64_t offset, int64_t length,
                       int64_t data, void *state)
{
    struct packing *packing = state;
    struct parcel *parcel = &packing->parcels[aggregator];
    unsigned char *mine = packing->data + (data - packing->from);
    (void)all, (void)offset;
    memcpy(packing->out ? parcel->data + parcel->bytes : mine,
           packing->out ? mine : parcel->data + parcel->bytes, (size_t)length);
    parcel->bytes += length;
    return true;
}

static void pack(struct together *all, struct packing *packing, int64_t to)
{
    for (int i = 0; i < all->aggregators; i++) {
        packing->parcels[i].bytes = 0;
    }
    each_piece(all, packing->from, to, pack_piece, packing);
}

/* ---- an aggregator's ---------------------------------------------------------------------- */

/* Goes through one rank's pieces, in their order. */
struct source {
    const struct parcel *parcel;
    int64_t run, index; /* the next piece */
    int64_t data;       /* where its bytes are in the parcel */
    int64_t offset;     /* of the next piece in the file; INT64_MAX: there is none */
};

static void look(struct source *source)
{
    const struct runs *runs = &source->parcel->runs;
    source->offset = source->run < runs->count ? runs->array[source->run].offset +
                                                     source->index * runs->array[source->run].stride
                                               : INT64_MAX;
}

static void sink(struct source *sources, int count, int at)
{
    struct source moved = sources[at];
    for (;;) {
        int child = 2 * at + 1;
        if (child >= count) {
            break;
        }
        if (child + 1 < count && sources[child + 1].offset < sources[child].offset) {
            child++;
        }
        if (sources[child].offset >= moved.offset) {
            break;
        }
        sources[at] = sources[child];
        at = child;
    }
    sources[at] = moved;
}

/* The union of what all ranks want, in the file's order. */
struct merged {
    weir_extent *extents;
    int64_t count, room;
    unsigned char *data; /* of all extents, one behind the other */
    int64_t bytes;
};

/* Merges what the ranks sent; with `data` their bytes as well (a write), or else takes them out of
 * the merged data into the parcels (a read, once it has been carried out). */
enum merge { MERGE_PLACES, MERGE_IN, MERGE_OUT };

static void place_piece(struct merged *merged, enum merge way, struct source *source, int64_t length)
{
    weir_extent *last = merged->count > 0 ? &merged->extents[merged->count - 1] : NULL;
    int64_t offset = source->offset;
    int64_t end = last == NULL ? INT64_MIN : (int64_t)(last->offset + last->length);
    unsigned char *theirs =
        source->parcel->data == NULL ? NULL : source->parcel->data + source->data;
    /* What several ranks write, one of them writes: MPI leaves open which. What several ranks read
     * is read once. */
    int64_t known = offset < end ? (end - offset < length ? end - offset : length) : 0;
    if (way == MERGE_OUT) {
        memcpy(theirs, merged->data + merged->bytes - (end - offset), (size_t)known);
    }
    if (known == length) {
        return;
    }
    if (offset <= end && last != NULL) {
        last->length += (uint64_t)(length - known);
    } else {
        merged->extents[merged->count++] = (weir_extent){(uint64_t)offset, (uint64_t)length};
    }
    if (way == MERGE_IN) {
        memcpy(merged->data + merged->bytes, theirs + known, (size_t)(length - known));
    } else if (way == MERGE_OUT) {
        memcpy(theirs + known, merged->data + merged->bytes, (size_t)(length - known));
    }
    merged->bytes += length - known;
}

static bool merge(struct merged *merged, enum merge way, const struct parcel *parcels, int ranks,
                  struct source *sources)
{
    int count = 0;
    for (int i = 0; i < ranks; i++) {
        if (parcels[i].runs.count > 0) {
            sources[count] = (struct source){.parcel = &parcels[i]};
            look(&sources[count++]);
        }
    }
    for (int i = count / 2 - 1; i >= 0; i--) {
        sink(sources, count, i);
    }
    merged->count = 0;
    merged->bytes = 0;
    while (count > 0) {
        struct source *first = &sources[0];
        const struct run *run = &first->parcel->runs.array[first->run];
        if (merged->count == merged->room) {
            int64_t grown = merged->room == 0 ? 64 : 2 * merged->room;
            weir_extent *extents = realloc(merged->extents, (size_t)grown * sizeof *extents);
            if (extents == NULL) {
                return false;
            }
            merged->extents = extents;
            merged->room = grown;
        }
        place_piece(merged, way, first, run->length);
        first->data += run->length;
        if (++first->index == run->count) {
            first->index = 0;
            first->run++;
        }
        look(first);
        if (first->offset == INT64_MAX) {
            *first = sources[--count];
        }
        sink(sources, count, 0);
    }
    return true;
}

/* Carries out the union. For a read, notes where the file ended. */
static void carry_out(struct together *all, const struct merged *merged)
{
    if (merged->count == 0 || all->class != MPI_SUCCESS) {
        return;
    }
    struct iovec iov = {merged->data, (size_t)merged->bytes};
    weir_file *file = all->access->file->data;
    size_t count = (size_t)merged->count;
    ssize_t result = all->access->write ? weir_writev_list(file, merged->extents, count, &iov, 1)
                                        : weir_readv_list(file, merged->extents, count, &iov, 1);
    if (result < 0) {
        int class = error_of(result);
        fail(all, class, error_text);
        return;
    }
    for (size_t i = 0; i < count && result < merged->bytes; i++) {
        int64_t length = (int64_t)merged->extents[i].length;
        if (result < length) {
            int64_t end = (int64_t)merged->extents[i].offset + result;
            all->end = end < all->end ? end : all->end;
            return;
        }
        result -= length;
    }
}

/* ---- a round ------------------------------------------------------------------------------ */

enum { TAG_RUNS = 7001, TAG_DATA = 7002, TAG_ANSWER = 7003 };

/* Messages are of less than 2 GiB: no share is larger. */
static void send(const struct together *all, const void *from, int64_t bytes, int to, int tag,
                 MPI_Request *request)
{
    PMPI_Isend(from, (int)bytes, MPI_BYTE, to, tag, all->comm, request);
}

static void receive(const struct together *all, void *into, int64_t bytes, int from, int tag,
                    MPI_Request *request)
{
    PMPI_Irecv(into, (int)bytes, MPI_BYTE, from, tag, all->comm, request);
}

/* Requests that are waited for together. */
struct mail {
    MPI_Request *requests;
    int count;
};

static MPI_Request *next_request(struct mail *mail)
{
    mail->requests[mail->count] = MPI_REQUEST_NULL;
    return &mail->requests[mail->count++];
}

static void wait_for(struct mail *mail)
{
    for (int i = 0; i < mail->count; i++) {
        comm_wait(&mail->requests[i]);
    }
    mail->count = 0;
}

struct round {
    struct parcel *out; /* to each aggregator */
    struct parcel *in;  /* of an aggregator: from each rank; else NULL */
    int64_t *sizes;     /* told to each rank: runs and bytes; then what each rank told */
    struct source *sources; /* one for each rank */
    struct mail mail;
};

/* All that must be had before anything is agreed on. */
static bool prepare(const struct together *all, struct round *round)
{
    *round = (struct round){0};
    round->out = calloc((size_t)all->aggregators, sizeof *round->out);
    round->in = calloc((size_t)all->ranks, sizeof *round->in);
    round->sizes = calloc((size_t)all->ranks * 4, sizeof *round->sizes);
    round->sources = calloc((size_t)all->ranks, sizeof *round->sources);
    round->mail.requests =
        malloc(((size_t)all->ranks + (size_t)all->aggregators) * 2 * sizeof(MPI_Request));
    return round->out != NULL && round->in != NULL && round->sizes != NULL &&
           round->sources != NULL && round->mail.requests != NULL;
}

static void clear_parcels(struct parcel *parcels, int count)
{
    for (int i = 0; parcels != NULL && i < count; i++) {
        free(parcels[i].runs.array);
        free(parcels[i].data);
        parcels[i] = (struct parcel){0};
    }
}

static void finish(const struct together *all, struct round *round)
{
    clear_parcels(round->out, all->aggregators);
    clear_parcels(round->in, all->ranks);
    free(round->out);
    free(round->in);
    free(round->sizes);
    free(round->sources);
    free(round->mail.requests);
}

/* Tells aggregators what this rank has or wants in [from, to) of its data. */
static void list_parcels(struct together *all, struct round *round, int64_t from, int64_t to)
{
    bool listed = all->class == MPI_SUCCESS && each_piece(all, from, to, list_piece, round->out);
    for (int i = 0; i < all->aggregators; i++) {
        struct parcel *parcel = &round->out[i];
        if (listed) {
            parcel->data = room(all, parcel->bytes);
        }
        if (!listed || all->class != MPI_SUCCESS) {
            parcel->runs.count = 0;
            parcel->bytes = 0;
        }
        round->sizes[2 * rank_of(all, i)] = parcel->runs.count;
        round->sizes[2 * rank_of(all, i) + 1] = parcel->bytes;
    }
    if (!listed) {
        fail(all, MPI_ERR_NO_MEM, "collective access: no memory");
    }
}

/* Sends runs, and data of a write, to the aggregators; receives those of all ranks. */
static void exchange(struct together *all, struct round *round)
{
    int64_t *told = round->sizes + 2 * all->ranks;
    bool write = all->access->write;
    comm_all_to_all(round->sizes, told, 2, MPI_INT64_T, all->comm);
    for (int i = 0; i < all->ranks; i++) {
        struct parcel *parcel = &round->in[i];
        int64_t runs = told[2 * i], bytes = told[2 * i + 1];
        if (runs == 0) {
            continue;
        }
        parcel->runs.array = room(all, runs * (int64_t)sizeof(struct run));
        parcel->data = room(all, bytes);
        bool held = parcel->runs.array != NULL && parcel->data != NULL;
        /* Without memory the messages are taken and lost; the error is told at the end. */
        parcel->runs.count = held ? runs : 0;
        parcel->bytes = held ? bytes : 0;
        receive(all, parcel->runs.array, parcel->runs.count * (int64_t)sizeof(struct run), i,
                TAG_RUNS, next_request(&round->mail));
        if (write) {
            receive(all, parcel->data, parcel->bytes, i, TAG_DATA, next_request(&round->mail));
        }
    }
    for (int i = 0; i < all->aggregators; i++) {
        const struct parcel *parcel = &round->out[i];
        if (parcel->runs.count == 0) {
            continue;
        }
        send(all, parcel->runs.array, parcel->runs.count * (int64_t)sizeof(struct run),
             rank_of(all, i), TAG_RUNS, next_request(&round->mail));
        if (write) {
            send(all, parcel->data, parcel->bytes, rank_of(all, i), TAG_DATA,
                 next_request(&round->mail));
        }
    }
    wait_for(&round->mail);
}

/* As an aggregator: carries out what all ranks sent, or reads what they want. */
static void aggregate(struct together *all, struct round *round)
{
    struct merged merged = {0};
    bool write = all->access->write;
    int64_t bytes = 0;
    for (int i = 0; i < all->ranks; i++) {
        bytes += round->in[i].bytes;
    }
    if (bytes > 0) {
        merged.data = room(all, bytes);
        if (merged.data != NULL &&
            !merge(&merged, write ? MERGE_IN : MERGE_PLACES, round->in, all->ranks,
                   round->sources)) {
            fail(all, MPI_ERR_NO_MEM, "collective access: no memory");
        }
        carry_out(all, &merged);
        if (!write && all->class == MPI_SUCCESS) {
            merge(&merged, MERGE_OUT, round->in, all->ranks, round->sources);
        }
    }
    free(merged.extents);
    free(merged.data);
}

/* Brings what was read to the ranks. */
static void answer(struct together *all, struct round *round)
{
    const int64_t *told = round->sizes + 2 * all->ranks;
    for (int i = 0; i < all->aggregators; i++) {
        if (round->out[i].runs.count > 0) {
            receive(all, round->out[i].data, round->out[i].bytes, rank_of(all, i), TAG_ANSWER,
                    next_request(&round->mail));
        }
    }
    for (int i = 0; i < all->ranks; i++) {
        if (told[2 * i] > 0) {
            send(all, round->in[i].data, round->in[i].bytes, i, TAG_ANSWER,
                 next_request(&round->mail));
        }
    }
    wait_for(&round->mail);
}

static void run_round(struct together *all, int64_t low, int64_t high)
{
    struct round *round = all->round;
    int64_t from = all->length == 0 ? 0 : data_before(all, low);
    int64_t to = all->length == 0 ? 0 : data_before(all, high);
    unsigned char *copy = NULL, *data = NULL;
    bool write = all->access->write;
    memset(round->sizes, 0, (size_t)all->ranks * 4 * sizeof *round->sizes);
    if (from < to && all->class == MPI_SUCCESS) {
        data = straighten(all, from, to, write, &copy);
    }
    list_parcels(all, round, from, to);
    if (all->class != MPI_SUCCESS) {
        data = NULL;
    }
    struct packing packing = {round->out, data, from, write};
    if (write && data != NULL) {
        pack(all, &packing, to);
    }
    exchange(all, round);
    if (is_aggregator(all)) {
        aggregate(all, round);
    }
    if (!write) {
        answer(all, round);
        if (data != NULL) {
            pack(all, &packing, to);
            spread(all, from, to, copy);
        }
    }
    free(copy);
    clear_parcels(round->out, all->aggregators);
    clear_parcels(round->in, all->ranks);
}

/* ---- the choice --------------------------------------------------------------------------- */

/* Whether the exchange is worth it. Collective; all ranks come to the same answer. */
static bool choose(struct together *all, const struct wish *mine, enum hint hint)
{
    int64_t range[3] = {mine->low, -mine->high, mine->able}, sums[2] = {mine->bytes, mine->pieces};
    MPI_Request summed;
    bool begun = comm_begin_reduce(sums, 2, MPI_INT64_T, MPI_SUM, all->comm, &summed);
    comm_reduce_all(range, 3, MPI_INT64_T, MPI_MIN, all->comm);
    if (begun) {
        comm_wait(&summed);
    }
    int64_t bytes = sums[0], pieces = sums[1], span = -range[1] - range[0];
    all->low = range[0];
    all->high = -range[1];
    if (!range[2] || bytes == 0 || span / SPARSE > bytes) {
        return false;
    }
    if (hint == HINT_ENABLE) {
        return true;
    }
    int64_t rounds = span / (all->share * all->aggregators) + 1;
    /* Where ranks leave holes between them, pieces stay pieces. */
    double dense = (double)bytes / (double)span;
    double after = (double)pieces * (dense < 1 ? 1 - dense : 0);
    double lists = (double)pieces * PIECE_NS;
    double exchanged = after * PIECE_NS + (double)bytes * BYTE_NS +
                       (double)rounds * ROUND_NS;
    /* Aggregators share the exchange as the ranks share the lists, if there are as many. */
    return exchanged * all->ranks / all->aggregators < lists;
}

static struct wish wish_of(const struct together *all, bool able)
{
    const struct flat *tile = all->tile;
    struct wish wish = {INT64_MAX, 0, all->length, 0, able};
    if (all->length > 0) {
        int64_t position = all->access->position;
        wish.low = all->displacement + shape_locate(tile->shape, tile->extent, position);
        wish.high = all->displacement +
                    shape_locate(tile->shape, tile->extent, position + all->length - 1) + 1;
        bool whole = tile->dense;
        wish.pieces = whole ? 1
                            : (int64_t)((double)all->length / (double)tile->shape->size *
                                        (double)tile->shape->pieces) +
                                  1;
    }
    return wish;
}

bool access_is_fine(const struct view *view)
{
    const struct shape *shape = view->tile->shape;
    return shape != NULL && !view->tile->dense && shape->size / shape->pieces < COARSE_BYTES;
}

static void setup(struct together *all, const struct access *access)
{
    const struct weir_mpi_file *file = access->file;
    const struct hints *hints = &file->hints;
    *all = (struct together){.access = access,
                             .comm = file->comm,
                             .rank = file->rank,
                             .ranks = file->size,
                             .tile = file->view->tile,
                             .displacement = file->view->displacement,
                             .class = MPI_SUCCESS,
                             .end = INT64_MAX};
    int targets = hints->striping_factor > 0 ? (int)hints->striping_factor : 1;
    all->aggregators = hints->cb_nodes > 0 ? hints->cb_nodes : 2 * targets;
    all->aggregators = all->aggregators < file->size ? all->aggregators : file->size;
    /* Stripes go to aggregators in turn: with a multiple or a part of the targets each of them has
     * few servers to talk to. */
    if (hints->cb_nodes <= 0 && all->aggregators > targets) {
        all->aggregators -= all->aggregators % targets;
    }
    all->stripe = hints->striping_unit > 0 ? (int64_t)hints->striping_unit : 1 << 20;
    int64_t share = hints->cb_buffer_size < SHARE_MAX ? hints->cb_buffer_size : SHARE_MAX;
    all->share = share / all->stripe * all->stripe;
    all->share = all->share < all->stripe ? all->stripe : all->share;
}

/* Two-phase. Gives the bytes of this rank's data that were moved. */
static int run_together(struct together *all, MPI_Count *bytes)
{
    int64_t window = all->share * all->aggregators;
    int64_t start = all->low / window * window;
    for (; start < all->high; start += window) {
        run_round(all, start, start + window);
    }
    /* Where the file ended, and whether anybody failed. */
    int64_t outcome[2] = {all->class == MPI_SUCCESS ? 0 : -all->class, all->end};
    comm_reduce_all(outcome, 2, MPI_INT64_T, MPI_MIN, all->comm);
    if (outcome[0] != 0) {
        return all->class != MPI_SUCCESS
                   ? error_set(all->class, "%s", all->text)
                   : error_set((int)-outcome[0], "collective access to %s: it failed on another rank",
                               all->access->file->path);
    }
    if (all->access->write) {
        access_grown(all->access, all->length);
    }
    *bytes = all->length == 0 || outcome[1] == INT64_MAX ? all->length
                                                         : data_before(all, outcome[1]);
    return MPI_SUCCESS;
}

/* Collective, once the ranks know of each other: what access_run_all is about. */
static int exchange_or_not(const struct access *access, enum hint hint, MPI_Count *bytes)
{
    struct weir_mpi_file *file = access->file;
    struct together all;
    struct round round;
    setup(&all, access);
    const struct shape *shape = all.tile->shape;
    bool able = file->view->representation->how == REPRESENT_AS_MEMORY && shape != NULL &&
                shape->disjoint && all.tile->extent >= shape->high - shape->low &&
                flat_get(access->type, FLAT_NATIVE, &all.memory) == MPI_SUCCESS &&
                !__builtin_mul_overflow(all.memory->size, (int64_t)access->count, &all.length);
    /* A rank that moves nothing has nothing that could be out of order. */
    able = able || access->count == 0;
    all.length = able && shape != NULL && access->count > 0 ? all.length : 0;
    if (!access->write && all.length > 0 &&
        access_clip(access, all.length, &all.length) != MPI_SUCCESS) {
        fail(&all, MPI_ERR_IO, error_text);
    }
    able = prepare(&all, &round) && able;
    all.round = &round;
    struct wish mine = wish_of(&all, able);
    int class = choose(&all, &mine, hint) ? run_together(&all, bytes) : access_run(access, bytes);
    finish(&all, &round);
    flat_release(all.memory);
    return class;
}

int access_run_all(const struct access *access, MPI_Count *bytes)
{
    struct weir_mpi_file *file = access->file;
    const enum hint *hint = access->write ? &file->hints.cb_write : &file->hints.cb_read;
    *bytes = 0;
    if (file->size == 1) {
        return access_run(access, bytes);
    }
    /* As long as the others have not been heard, a rank that would not gain from an exchange does not
     * wait for them: its own access is under way meanwhile. */
    bool alone = !agree_begin(file) && !file->agreement.fine && *hint != HINT_ENABLE;
    int class = alone ? access_run(access, bytes) : MPI_SUCCESS;
    char text[ERROR_TEXT_SIZE];
    if (class != MPI_SUCCESS) {
        snprintf(text, sizeof text, "%s", error_text);
    }
    agree_end(file);
    bool exchange =
        *hint == HINT_ENABLE || (*hint == HINT_AUTOMATIC && file->agreement.fine);
    if (!exchange) {
        return alone ? class : access_run(access, bytes);
    }
    if (!alone) {
        return exchange_or_not(access, *hint, bytes);
    }
    /* With nothing of its own it may still be needed to collect what others have. */
    struct access none = *access;
    MPI_Count nothing;
    none.count = 0;
    int others = exchange_or_not(&none, *hint, &nothing);
    return class == MPI_SUCCESS ? others : error_set(class, "%s", text);
}
