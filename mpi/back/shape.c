#include "shape.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK_BYTES 2048

struct shape_block {
    struct shape_block *next;
    size_t used, capacity;
    max_align_t bytes[];
};

static void *take(struct shape_arena *arena, size_t bytes)
{
    bytes = (bytes + sizeof(max_align_t) - 1) / sizeof(max_align_t) * sizeof(max_align_t);
    struct shape_block *block = arena->blocks;
    if (block == NULL || block->capacity - block->used < bytes) {
        /* The first block is small: most types are one node. */
        size_t capacity = block == NULL ? 2 * sizeof(struct shape) : BLOCK_BYTES;
        capacity = bytes > capacity ? bytes : capacity;
        block = malloc(sizeof *block + capacity);
        if (block == NULL) {
            arena->failed = true;
            return NULL;
        }
        *block = (struct shape_block){.next = arena->blocks, .capacity = capacity};
        arena->blocks = block;
    }
    void *taken = (char *)block->bytes + block->used;
    block->used += bytes;
    return taken;
}

void shape_arena_free(struct shape_arena *arena)
{
    while (arena->blocks != NULL) {
        struct shape_block *next = arena->blocks->next;
        free(arena->blocks);
        arena->blocks = next;
    }
}

static int64_t add(struct shape_arena *arena, int64_t a, int64_t b)
{
    int64_t sum;
    if (__builtin_add_overflow(a, b, &sum)) {
        arena->failed = true;
        return 0;
    }
    return sum;
}

static int64_t multiply(struct shape_arena *arena, int64_t a, int64_t b)
{
    int64_t product;
    if (__builtin_mul_overflow(a, b, &product)) {
        arena->failed = true;
        return 0;
    }
    return product;
}

static const struct shape *keep(struct shape_arena *arena, struct shape shape)
{
    struct shape *kept = take(arena, sizeof shape);
    if (kept != NULL) {
        *kept = shape;
    }
    return kept;
}

const struct shape *shape_run(struct shape_arena *arena, int64_t at, int64_t length, uint8_t basic)
{
    if (length == 0) {
        return NULL;
    }
    return keep(arena, (struct shape){.kind = SHAPE_RUN,
                                      .basic = basic,
                                      .ordered = true,
                                      .disjoint = true,
                                      .at = at,
                                      .size = length,
                                      .pieces = 1,
                                      .low = at,
                                      .high = add(arena, at, length),
                                      .first = at,
                                      .last = at});
}

const struct shape *shape_shift(struct shape_arena *arena, const struct shape *shape, int64_t by)
{
    if (shape == NULL || by == 0) {
        return shape;
    }
    struct shape moved = *shape;
    moved.at = add(arena, moved.at, by);
    moved.low = add(arena, moved.low, by);
    moved.high = add(arena, moved.high, by);
    moved.first = add(arena, moved.first, by);
    moved.last = add(arena, moved.last, by);
    return keep(arena, moved);
}

const struct shape *shape_repeat(struct shape_arena *arena, const struct shape *child, int64_t count,
                                 int64_t stride)
{
    if (child == NULL || count <= 0) {
        return NULL;
    }
    if (count == 1) {
        return child;
    }
    if (child->kind == SHAPE_RUN && child->size == stride) {
        return shape_run(arena, child->at, multiply(arena, stride, count), child->basic);
    }
    if (child->kind == SHAPE_REPEAT &&
        multiply(arena, child->of.repeat.count, child->of.repeat.stride) == stride) {
        const struct shape *inner =
            shape_shift(arena, child->of.repeat.child, child->at);
        return shape_repeat(arena, inner, multiply(arena, child->of.repeat.count, count),
                            child->of.repeat.stride);
    }
    int64_t reach = multiply(arena, stride, count - 1);
    struct shape shape = {
        .kind = SHAPE_REPEAT,
        .ordered = child->ordered && stride >= child->last - child->first,
        .disjoint = child->disjoint && stride >= child->high - child->low,
        .depth = child->depth + 1,
        .size = multiply(arena, child->size, count),
        .pieces = multiply(arena, child->pieces, count),
        .low = add(arena, child->low, reach < 0 ? reach : 0),
        .high = add(arena, child->high, reach > 0 ? reach : 0),
        .first = child->first,
        .last = add(arena, child->last, reach),
        .of.repeat = {.count = count, .stride = stride, .child = child},
    };
    return keep(arena, shape);
}

/* The list's last entry, if it is a run; its length. */
static int64_t tail_run(const struct shape_list *list)
{
    if (list->count == 0 || list->parts[list->count - 1].child != NULL) {
        return 0;
    }
    return list->size - list->parts[list->count - 1].before;
}

static void push(struct shape_arena *arena, struct shape_list *list, int64_t at, int64_t size,
                 const struct shape *child)
{
    /* One more for the sum. */
    if (list->count + 1 >= list->capacity) {
        int64_t capacity = list->capacity == 0 ? 8 : 2 * list->capacity;
        struct shape_part *parts = realloc(list->parts, (size_t)capacity * sizeof *parts);
        if (parts == NULL) {
            arena->failed = true;
            return;
        }
        list->parts = parts;
        list->capacity = capacity;
    }
    list->parts[list->count++] =
        (struct shape_part){.at = at, .before = list->size, .child = child};
    list->size = add(arena, list->size, size);
}

void shape_list_add_run(struct shape_arena *arena, struct shape_list *list, int64_t at,
                        int64_t length)
{
    if (length <= 0 || arena->failed) {
        return;
    }
    int64_t tail = tail_run(list);
    if (tail > 0 && list->parts[list->count - 1].at + tail == at) {
        list->size = add(arena, list->size, length);
    } else {
        push(arena, list, at, length, NULL);
    }
}

void shape_list_add(struct shape_arena *arena, struct shape_list *list, const struct shape *child,
                    int64_t at)
{
    if (child == NULL || arena->failed) {
        return;
    }
    if (child->kind == SHAPE_RUN && child->basic == 0) {
        shape_list_add_run(arena, list, add(arena, at, child->at), child->size);
    } else {
        push(arena, list, at, child->size, child);
    }
}

static int64_t part_size(const struct shape_part *part)
{
    return part[1].before - part[0].before;
}

static bool same(const struct shape *a, const struct shape *b)
{
    if (a == b) {
        return true;
    }
    /* Equal runs are worth finding; deeper trees that are equal come from one node anyway. */
    return a != NULL && b != NULL && a->kind == SHAPE_RUN && b->kind == SHAPE_RUN &&
           a->basic == b->basic && a->at == b->at && a->size == b->size;
}

static bool regular(const struct shape_part *parts, int64_t count)
{
    int64_t stride = parts[1].at - parts[0].at;
    for (int64_t i = 1; i < count; i++) {
        if (parts[i].at - parts[i - 1].at != stride || !same(parts[i].child, parts[0].child) ||
            part_size(&parts[i]) != part_size(&parts[0])) {
            return false;
        }
    }
    return true;
}

static const struct shape *list_shape(struct shape_arena *arena, const struct shape_list *list)
{
    const struct shape_part *parts = list->parts;
    int64_t count = list->count;
    if (count == 1 || regular(parts, count)) {
        const struct shape *one = parts[0].child;
        one = one != NULL ? one : shape_run(arena, 0, part_size(&parts[0]), 0);
        const struct shape *all =
            count == 1 ? one : shape_repeat(arena, one, count, parts[1].at - parts[0].at);
        return shape_shift(arena, all, parts[0].at);
    }
    size_t bytes = ((size_t)count + 1) * sizeof *parts;
    struct shape_part *kept = take(arena, bytes);
    if (kept == NULL) {
        return NULL;
    }
    memcpy(kept, parts, bytes);
    struct shape shape = {.kind = SHAPE_LIST,
                          .ordered = true,
                          .disjoint = true,
                          .size = list->size,
                          .low = INT64_MAX,
                          .high = INT64_MIN,
                          .of.list = {.count = count, .parts = kept}};
    int64_t end = INT64_MIN;
    for (int64_t i = 0; i < count; i++) {
        const struct shape run = {.ordered = true, .disjoint = true, .pieces = 1,
                                  .high = part_size(&kept[i])};
        const struct shape *child = kept[i].child != NULL ? kept[i].child : &run;
        int64_t at = kept[i].at;
        int64_t low = add(arena, at, child->low), high = add(arena, at, child->high);
        int64_t first = add(arena, at, child->first);
        shape.ordered = shape.ordered && child->ordered && (i == 0 || first >= shape.last);
        shape.disjoint = shape.disjoint && child->disjoint && (i == 0 || low >= end);
        end = high;
        shape.first = i == 0 ? first : shape.first;
        shape.last = add(arena, at, child->last);
        shape.low = low < shape.low ? low : shape.low;
        shape.high = high > shape.high ? high : shape.high;
        shape.pieces = add(arena, shape.pieces, child->pieces);
        if (kept[i].child != NULL && child->depth + 1 > shape.depth) {
            shape.depth = child->depth + 1;
        }
    }
    return keep(arena, shape);
}

const struct shape *shape_list_end(struct shape_arena *arena, struct shape_list *list)
{
    const struct shape *shape = NULL;
    if (list->count > 0 && !arena->failed) {
        list->parts[list->count] = (struct shape_part){.before = list->size};
        shape = list_shape(arena, list);
    }
    free(list->parts);
    *list = (struct shape_list){0};
    return shape;
}

bool cursor_begin(struct cursor *cursor, const struct shape *shape, int64_t extent, int64_t base)
{
    cursor->skip = 0;
    cursor->depth = 0;
    cursor->frames = cursor->few;
    cursor->capacity = (int)(sizeof cursor->few / sizeof cursor->few[0]);
    /* Tiles that continue the stride within them are more of the same: long runs of runs. */
    while (shape != NULL && shape->kind == SHAPE_REPEAT &&
           shape->of.repeat.stride == extent / shape->of.repeat.count &&
           extent % shape->of.repeat.count == 0) {
        base += shape->at;
        extent = shape->of.repeat.stride;
        shape = shape->of.repeat.child;
    }
    cursor->tiles = (struct shape){
        .kind = SHAPE_REPEAT,
        .at = base,
        .size = INT64_MAX,
        .of.repeat = {.count = INT64_MAX, .stride = extent, .child = shape},
    };
    if (shape == NULL) {
        return true;
    }
    cursor->tiles.depth = shape->depth + 1;
    if (cursor->tiles.depth + 1 > cursor->capacity) {
        cursor->capacity = cursor->tiles.depth + 1;
        cursor->frames = malloc((size_t)cursor->capacity * sizeof *cursor->frames);
        if (cursor->frames == NULL) {
            cursor->frames = cursor->few;
            return false;
        }
    }
    cursor_seek(cursor, 0);
    return true;
}

void cursor_end(struct cursor *cursor)
{
    if (cursor->frames != cursor->few) {
        free(cursor->frames);
        cursor->frames = cursor->few;
    }
}

/* Where the tiles behind the last one lie may be beyond all numbers; nothing is ever there. */
static int64_t reach(int64_t origin, int64_t index, int64_t stride)
{
    return (int64_t)((uint64_t)origin + (uint64_t)index * (uint64_t)stride);
}

/* The entry of a list in which the byte of data `position` lies. */
static int64_t find(const struct shape *list, int64_t position)
{
    const struct shape_part *parts = list->of.list.parts;
    int64_t low = 0, high = list->of.list.count;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (parts[middle].before <= position) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Enters nodes from `node` down to a run. Entries of lists that are plain runs have no frame. */
static void descend(struct cursor *cursor, const struct shape *node, int64_t origin,
                    int64_t position)
{
    while (node != NULL && node->kind != SHAPE_RUN) {
        struct shape_frame *frame = &cursor->frames[cursor->depth++];
        *frame = (struct shape_frame){.node = node, .origin = reach(origin, 1, node->at)};
        if (node->kind == SHAPE_REPEAT) {
            const struct shape *child = node->of.repeat.child;
            frame->index = position / child->size;
            position -= frame->index * child->size;
            origin = reach(frame->origin, frame->index, node->of.repeat.stride);
            node = child;
        } else {
            frame->index = position == 0 ? 0 : find(node, position);
            const struct shape_part *part = &node->of.list.parts[frame->index];
            position -= part->before;
            origin = frame->origin + part->at;
            node = part->child;
        }
    }
    cursor->skip = position;
}

void cursor_seek(struct cursor *cursor, int64_t position)
{
    if (cursor->tiles.of.repeat.child == NULL) {
        return;
    }
    cursor->depth = 0;
    descend(cursor, &cursor->tiles, 0, position);
}

/* Goes on behind `count` whole children of the innermost frame. */
static void advance(struct cursor *cursor, int64_t count)
{
    cursor->skip = 0;
    for (;;) {
        struct shape_frame *frame = &cursor->frames[cursor->depth - 1];
        const struct shape *node = frame->node;
        frame->index += count;
        if (node->kind == SHAPE_REPEAT) {
            if (frame->index < node->of.repeat.count) {
                descend(cursor, node->of.repeat.child,
                        reach(frame->origin, frame->index, node->of.repeat.stride), 0);
                return;
            }
        } else if (frame->index < node->of.list.count) {
            const struct shape_part *part = &node->of.list.parts[frame->index];
            descend(cursor, part->child, frame->origin + part->at, 0);
            return;
        }
        cursor->depth--;
        count = 1;
    }
}

struct strided cursor_next(struct cursor *cursor, int64_t bytes_max)
{
    const struct shape_frame *frame = &cursor->frames[cursor->depth - 1];
    const struct shape *node = frame->node;
    int64_t offset, length, skip = cursor->skip;
    uint8_t basic = 0;
    if (node->kind == SHAPE_REPEAT) {
        const struct shape *run = node->of.repeat.child;
        int64_t stride = node->of.repeat.stride, left = node->of.repeat.count - frame->index;
        offset = reach(frame->origin, frame->index, stride) + run->at + skip;
        length = run->size;
        basic = run->basic;
        if (length == stride) {
            /* The tiles of a contiguous type. */
            int64_t whole = left > bytes_max / length + 1 ? bytes_max : left * length - skip;
            int64_t given = whole < bytes_max ? whole : bytes_max;
            int64_t passed = (skip + given) / length;
            if (passed > 0) {
                advance(cursor, passed);
            }
            cursor->skip = (skip + given) % length;
            return (struct strided){offset, given, given, 1, basic};
        }
        int64_t count = bytes_max / length < left ? bytes_max / length : left;
        if (skip == 0 && count > 1) {
            advance(cursor, count);
            return (struct strided){offset, length, stride, count, basic};
        }
    } else {
        const struct shape_part *part = &node->of.list.parts[frame->index];
        offset = frame->origin + part->at + skip;
        length = part_size(part);
        if (part->child != NULL) {
            offset += part->child->at;
            basic = part->child->basic;
        }
    }
    length -= skip;
    if (length > bytes_max) {
        cursor->skip += bytes_max;
        length = bytes_max;
    } else {
        advance(cursor, 1);
    }
    return (struct strided){offset, length, length, 1, basic};
}

int64_t shape_locate(const struct shape *shape, int64_t extent, int64_t position)
{
    int64_t origin = position / shape->size * extent;
    position %= shape->size;
    while (shape != NULL && shape->kind != SHAPE_RUN) {
        origin += shape->at;
        if (shape->kind == SHAPE_REPEAT) {
            const struct shape *child = shape->of.repeat.child;
            origin += position / child->size * shape->of.repeat.stride;
            position %= child->size;
            shape = child;
        } else {
            const struct shape_part *part = &shape->of.list.parts[find(shape, position)];
            origin += part->at;
            position -= part->before;
            shape = part->child;
        }
    }
    return origin + (shape != NULL ? shape->at : 0) + position;
}

static int64_t within(const struct shape *shape, int64_t offset)
{
    offset -= shape->at;
    if (shape->kind == SHAPE_RUN) {
        return offset <= 0 ? 0 : offset < shape->size ? offset : shape->size;
    }
    int64_t data = 0;
    if (shape->kind == SHAPE_REPEAT) {
        const struct shape *child = shape->of.repeat.child;
        int64_t stride = shape->of.repeat.stride, count = shape->of.repeat.count;
        /* Children that end at or before the offset are in whole; with overlap, the next few may
         * have some as well. */
        int64_t whole = 0;
        if (stride > 0 && offset >= child->high) {
            whole = (offset - child->high) / stride + 1;
            whole = whole < count ? whole : count;
        }
        data = whole * child->size;
        for (int64_t i = whole; i < count && offset - i * stride > child->low; i++) {
            data += within(child, offset - i * stride);
        }
        return data;
    }
    const struct shape_part *parts = shape->of.list.parts;
    for (int64_t i = 0; i < shape->of.list.count; i++) {
        if (parts[i].child != NULL) {
            data += within(parts[i].child, offset - parts[i].at);
        } else {
            int64_t size = part_size(&parts[i]), ahead = offset - parts[i].at;
            data += ahead <= 0 ? 0 : ahead < size ? ahead : size;
        }
    }
    return data;
}

int64_t shape_data_before(const struct shape *shape, int64_t extent, int64_t offset)
{
    if (shape == NULL || offset <= shape->low) {
        return 0;
    }
    int64_t whole = 0;
    if (extent > 0 && offset >= shape->high) {
        whole = (offset - shape->high) / extent + 1;
    }
    int64_t data = whole * shape->size;
    /* An extent shorter than the type's bytes makes tiles lie in each other. */
    for (int64_t tile = whole;; tile++) {
        int64_t ahead = offset - tile * extent;
        if (ahead <= shape->low || extent <= 0) {
            return data;
        }
        data += within(shape, ahead);
    }
}
