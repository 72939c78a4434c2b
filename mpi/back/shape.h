/* shape.h - where the bytes of a datatype lie, in a compact form, and a cursor over them.
 *
 * A shape is a small tree: a run of bytes, a shape repeated at a stride, or a list of shapes at
 * displacements. It keeps the order of the type map. A vector of a million blocks is one node; only
 * what is irregular takes memory in proportion. Nothing in here knows of MPI, so that a thread which
 * may not call MPI can walk shapes.
 */
#ifndef WEIR_MPI_SHAPE_H
#define WEIR_MPI_SHAPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum shape_kind { SHAPE_RUN, SHAPE_REPEAT, SHAPE_LIST };

struct shape;

/* An entry of a list. */
struct shape_part {
    int64_t at;                /* displacement within the list: bytes */
    int64_t before;            /* bytes of data in the entries before it */
    const struct shape *child; /* NULL: a run of bytes, up to the next entry's `before` */
};

/* Immutable once made. The empty shape is NULL, and never a part of another. */
struct shape {
    enum shape_kind kind;
    uint8_t basic;       /* of a run: what its bytes are (represent.h); 0 where nobody asks */
    bool ordered;        /* no run begins before the one before it in the type map */
    bool disjoint;       /* ordered, and no run begins before the end of the one before it */
    int depth;           /* levels of nodes below this one */
    int64_t at;          /* displacement from the origin that the node above gives: bytes */
    int64_t size;        /* bytes of data */
    int64_t pieces;      /* runs, neighbours that touch counted apart */
    int64_t low, high;   /* lowest byte, and one past the highest, from the origin above */
    int64_t first, last; /* where the first and the last run of the type map begin, likewise */
    union {
        struct {
            int64_t count, stride;
            const struct shape *child;
        } repeat;
        struct {
            int64_t count;
            const struct shape_part *parts; /* count + 1: the last one holds the sum */
        } list;
    } of;
};

/* Owns the nodes of one tree. */
struct shape_arena {
    struct shape_block *blocks;
    bool failed; /* memory ran out, or a size is beyond 63 bits: what was made is of no use */
};

void shape_arena_free(struct shape_arena *arena);

const struct shape *shape_run(struct shape_arena *arena, int64_t at, int64_t length, uint8_t basic);
/* `child`, count times, each `stride` bytes (which may be negative) behind the one before. */
const struct shape *shape_repeat(struct shape_arena *arena, const struct shape *child, int64_t count,
                                 int64_t stride);
const struct shape *shape_shift(struct shape_arena *arena, const struct shape *shape, int64_t by);

/* Collects the entries of a list; runs that touch are joined. Start with zeros. */
struct shape_list {
    struct shape_part *parts;
    int64_t count, capacity;
    int64_t size;
};

void shape_list_add(struct shape_arena *arena, struct shape_list *list, const struct shape *child,
                    int64_t at);
/* The same for plain bytes, without a node of their own. */
void shape_list_add_run(struct shape_arena *arena, struct shape_list *list, int64_t at,
                        int64_t length);
/* Makes the list a shape, and empties it. */
const struct shape *shape_list_end(struct shape_arena *arena, struct shape_list *list);

/* Runs at a regular stride: `count` times `length` bytes. */
struct strided {
    int64_t offset, length, stride, count;
    uint8_t basic;
};

struct shape_frame {
    const struct shape *node;
    int64_t index;
    int64_t origin; /* with the node's own displacement */
};

/* A place in a shape that is laid out again and again, `extent` apart, from `base` on. Data is
 * counted in bytes through all of these tiles. */
struct cursor {
    struct shape tiles;
    int64_t skip; /* bytes of the current run that have been given */
    int depth;    /* frames in use; 0 if there is no data at all */
    int capacity;
    struct shape_frame *frames;
    struct shape_frame few[8];
};

/* At position 0. Fails (false) only for want of memory. */
bool cursor_begin(struct cursor *cursor, const struct shape *shape, int64_t extent, int64_t base);
void cursor_end(struct cursor *cursor);
void cursor_seek(struct cursor *cursor, int64_t position);
/* The next runs, of bytes_max bytes at most in all (at least 1). Not to be called on an empty shape. */
struct strided cursor_next(struct cursor *cursor, int64_t bytes_max);

/* The byte at `position`, from the base. */
int64_t shape_locate(const struct shape *shape, int64_t extent, int64_t position);
/* How many bytes of data lie in tiles before the byte `offset`; for an ordered shape. */
int64_t shape_data_before(const struct shape *shape, int64_t extent, int64_t offset);

#endif
