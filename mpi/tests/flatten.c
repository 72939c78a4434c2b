/* flatten.c - random datatypes, nested, flattened, against their type maps and the MPI's own MPI_Pack.
 *
 *   flatten [seed [cases]]
 */
#include "../back/datatype.h"
#include "random_type.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;
/* Checks in which MPI_Pack did not do what the type map says: Open MPI 5.0 has such cases, two in three
 * thousand, with types that others pack rightly. */
static int packed_otherwise;

static void fail(uint64_t seed, const char *what, int64_t got, int64_t wanted)
{
    failures++;
    printf("seed %llu: %s: got %lld, wanted %lld\n", (unsigned long long)seed, what,
           (long long)got, (long long)wanted);
}

/* Copies what the cursor gives, in random bites. */
static bool gather(struct cursor *cursor, const char *memory, char *out, int64_t from, int64_t size)
{
    while (from < size) {
        int64_t bite = pick(0, 3) == 0 ? size - from : pick(1, 50);
        bite = bite < size - from ? bite : size - from;
        struct strided runs = cursor_next(cursor, bite);
        if (runs.length <= 0 || runs.count <= 0 || runs.length * runs.count > bite) {
            return false;
        }
        for (int64_t i = 0; i < runs.count; i++) {
            memcpy(out + from, memory + runs.offset + i * runs.stride, (size_t)runs.length);
            from += runs.length;
        }
    }
    return from == size;
}

static void check(uint64_t seed, MPI_Datatype type, const struct map *map, enum flat_form form)
{
    struct flat *flat;
    int error = flat_get(type, form, &flat);
    if (error != MPI_SUCCESS) {
        fail(seed, "error", error, MPI_SUCCESS);
        return;
    }
    MPI_Count size, low, extent;
    MPI_Type_size_x(type, &size);
    MPI_Type_get_extent_x(type, &low, &extent);
    int count = pick(1, 3);
    if (flat->size != size || flat->low != low || flat->extent != extent) {
        fail(seed, "size", flat->size, size);
    }
    /* Open MPI's bounds of some structures without data are the least and the greatest there are. */
    if (size == 0 || size * count > 1 << 20 || low > 1 << 30 || low < -(1 << 30)) {
        flat_release(flat);
        return;
    }
    const struct shape *shape = flat->shape;
    int64_t least = INT64_MAX, most = INT64_MIN;
    for (int64_t i = 0; i < map->count; i++) {
        least = map->runs[i].at < least ? map->runs[i].at : least;
        int64_t end = map->runs[i].at + map->runs[i].length;
        most = end > most ? end : most;
    }
    if (shape->low != least || shape->high != most) {
        fail(seed, "true lower bound", shape->low, least);
        fail(seed, "true extent", shape->high - shape->low, most - least);
    }
    int64_t reach = (count - 1) * extent;
    int64_t from = shape->low + (reach < 0 ? reach : 0), to = shape->high + (reach > 0 ? reach : 0);
    char *memory = malloc((size_t)(to - from));
    for (int64_t i = 0; i < to - from; i++) {
        memory[i] = (char)next_random();
    }
    int room, position = 0, all = (int)size * count;
    MPI_Pack_size(count, type, MPI_COMM_SELF, &room);
    room = room > all ? room : all;
    char *packed = calloc(1, (size_t)room), *mine = calloc(1, (size_t)all);
    for (int i = 0; i < count; i++) {
        for (int64_t j = 0; j < map->count; j++) {
            memcpy(packed + position, memory - from + i * extent + map->runs[j].at,
                   (size_t)map->runs[j].length);
            position += (int)map->runs[j].length;
        }
    }
    if (position != all) {
        fail(seed, "size of the map", all, position);
    }
    if (!odd) {
        char *theirs = calloc(1, (size_t)room);
        position = 0;
        MPI_Pack(memory - from, count, type, theirs, room, &position, MPI_COMM_SELF);
        if (position != all || memcmp(theirs, packed, (size_t)all) != 0) {
            packed_otherwise++;
        }
        free(theirs);
    }
    struct cursor cursor;
    cursor_begin(&cursor, shape, extent, 0);
    if (!gather(&cursor, memory - from, mine, 0, all) || memcmp(mine, packed, (size_t)all) != 0) {
        fail(seed, "bytes differ, form", form, 0);
    }
    for (int i = 0; i < 4; i++) {
        int64_t at = pick(0, all - 1);
        memset(mine, 0, (size_t)all);
        cursor_seek(&cursor, at);
        if (!gather(&cursor, memory - from, mine, at, all) ||
            memcmp(mine + at, packed + at, (size_t)(all - at)) != 0) {
            fail(seed, "bytes differ after seek to", at, 0);
        }
        if (memory[shape_locate(shape, extent, at) - from] != packed[at]) {
            fail(seed, "wrong place of byte", at, 0);
        }
    }
    /* Order, judged byte by byte. */
    bool ordered = true, disjoint = true;
    int64_t before = INT64_MIN;
    struct cursor again;
    cursor_begin(&again, shape, extent, 0);
    for (int64_t seen = 0, last = INT64_MIN; seen < size;) {
        struct strided run = cursor_next(&again, size - seen);
        for (int64_t i = 0; i < run.count; i++, seen += run.length) {
            int64_t at = run.offset + i * run.stride;
            ordered = ordered && at >= last;
            disjoint = disjoint && at >= before;
            last = at;
            before = at + run.length;
        }
    }
    if ((shape->ordered && !ordered) || (shape->disjoint && !disjoint)) {
        fail(seed, "order", shape->ordered, ordered);
    }
    if (form == FLAT_NATIVE && ordered && disjoint && !shape->disjoint) {
        fail(seed, "disjoint, but not seen so", 0, 1);
    }
    if (disjoint && extent >= shape->high - shape->low) {
        for (int i = 0; i < 4; i++) {
            /* Up to where a further tile would begin. */
            int64_t at = shape->low + pick(0, (int)(count * extent));
            int64_t data = 0;
            while (data < all && shape_locate(shape, extent, data) < at) {
                data++;
            }
            if (shape_data_before(shape, extent, at) != data) {
                fail(seed, "data before a byte", shape_data_before(shape, extent, at), data);
            }
        }
    }
    cursor_end(&again);
    cursor_end(&cursor);
    flat_release(flat);
    free(memory);
    free(packed);
    free(mine);
}

/* Open MPI itself takes memory for each element of such a type. */
#ifdef OPEN_MPI
#define DOUBLED 12
#else
#define DOUBLED 24
#endif

/* Regular types of many millions of blocks stay small, deep ones are walked, doubled ones are not
 * walked twice. */
static void check_large(void)
{
    MPI_Datatype type, wide, plane;
    struct flat *flat;
    MPI_Type_vector(50000000, 3, 16, MPI_INT, &type);
    MPI_Type_create_resized(type, 0, (MPI_Aint)50000000 * 64 + 640, &wide);
    MPI_Type_contiguous(9, wide, &plane);
    flat_get(plane, FLAT_NATIVE, &flat);
    if (flat->size != 5400000000 || flat->shape->pieces != 450000000 || flat->shape->depth > 2) {
        fail(0, "vector of vectors", flat->size, 5400000000);
    }
    /* The last int but one of the last block of row 7. */
    int64_t position = INT64_C(8) * 600000000 - 8;
    int64_t wanted = INT64_C(7) * (INT64_C(50000000) * 64 + 640) + INT64_C(49999999) * 64 + 4;
    if (shape_locate(flat->shape, flat->extent, position) != wanted) {
        fail(0, "place", shape_locate(flat->shape, flat->extent, position), wanted);
    }
    flat_release(flat);
    MPI_Type_free(&plane);
    MPI_Type_free(&wide);
    MPI_Type_free(&type);

    MPI_Type_dup(MPI_INT, &type);
    for (int level = 0; level < DOUBLED; level++) {
        MPI_Datatype both[] = {type, type};
        MPI_Aint at[] = {0, (MPI_Aint)24 << level};
        int one[] = {1, 1};
        MPI_Type_create_struct(2, one, at, both, &wide);
        MPI_Type_free(&type);
        type = wide;
    }
    flat_get(type, FLAT_NATIVE, &flat);
    if (flat->size != (int64_t)4 << DOUBLED) {
        fail(0, "doubled again and again", flat->size, (int64_t)4 << DOUBLED);
    }
    flat_release(flat);
    MPI_Type_free(&type);

    MPI_Type_dup(MPI_INT, &type);
    for (int level = 0; level < 2000; level++) {
        MPI_Type_create_resized(type, 0, 8, &wide);
        MPI_Type_free(&type);
        type = wide;
    }
    flat_get(type, FLAT_NATIVE, &flat);
    if (flat->size != 4 || flat->extent != 8) {
        fail(0, "resized 2000 times", flat->extent, 8);
    }
    flat_release(flat);
    MPI_Type_free(&type);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    uint64_t cases = argc > 2 ? strtoull(argv[2], NULL, 0) : 3000;
    /* An MPI may refuse a type; then there is none to compare. */
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    for (uint64_t i = 0; i < cases && failures < 10; i++, seed++) {
        start_random(seed);
        odd = seed % 2;
        struct map map = {0};
        MPI_Datatype type = random_type(pick(0, 4), &map);
        if (!type_is_named(type)) {
            MPI_Type_commit(&type);
        }
        check(seed, type, &map, FLAT_NATIVE);
        check(seed, type, &map, FLAT_TYPED);
        check(seed, type, &map, FLAT_NATIVE);
        if (!type_is_named(type)) {
            MPI_Type_free(&type);
        }
        free(map.runs);
    }
    check_large();
    if ((uint64_t)packed_otherwise > cases / 100) {
        fail(0, "checks in which MPI_Pack differs", packed_otherwise, (int64_t)cases / 100);
    }
    printf("flatten: %llu types, %d failures; %d times MPI_Pack differs\n",
           (unsigned long long)cases, failures, packed_otherwise);
    MPI_Finalize();
    return failures == 0 ? 0 : 1;
}
