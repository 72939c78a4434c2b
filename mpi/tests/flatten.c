/* flatten.c - random datatypes, nested, flattened, against their type maps and the MPI's own MPI_Pack.
 *
 *   flatten [seed [cases]]
 */
#include "../back/datatype.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state;

static uint64_t next_random(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* From low to high, both included. */
static int pick(int low, int high)
{
    return low + (int)(next_random() % (uint64_t)(high - low + 1));
}

/* What a type map says, element by element: made beside the datatype, from the definitions alone. */
struct map {
    int64_t count, capacity;
    struct {
        int64_t at, length;
    } *runs;
};

static void map_add(struct map *map, int64_t at, int64_t length)
{
    if (map->count == map->capacity) {
        map->capacity = map->capacity == 0 ? 8 : 2 * map->capacity;
        map->runs = realloc(map->runs, (size_t)map->capacity * sizeof map->runs[0]);
    }
    map->runs[map->count].at = at;
    map->runs[map->count++].length = length;
}

static void map_block(struct map *map, const struct map *of, int64_t at, int64_t count,
                      int64_t extent)
{
    for (int64_t i = 0; i < count; i++) {
        for (int64_t j = 0; j < of->count; j++) {
            map_add(map, at + i * extent + of->runs[j].at, of->runs[j].length);
        }
    }
}

static int64_t extent_of(MPI_Datatype type)
{
    MPI_Count low, extent;
    MPI_Type_get_extent_x(type, &low, &extent);
    return extent;
}

/* Odd types, of zero counts and negative strides, are checked against the map alone: MPICH 4.0 and
 * Open MPI 4.1 pack some of them wrongly, or crash. */
static bool odd;

static int from(int low, int high)
{
    return odd ? pick(low, high) : pick(low < 1 ? 1 : low, high);
}

static MPI_Datatype random_basic(struct map *map)
{
    const struct {
        MPI_Datatype type;
        int first, at, second;
    } types[] = {/* Their padding is not always copied. */
                 {MPI_LONG_DOUBLE_INT, 16, 16, 4},
                 {MPI_LONG_DOUBLE, 16, 0, 0},
                 {MPI_BYTE, 1, 0, 0},        {MPI_CHAR, 1, 0, 0},       {MPI_SHORT, 2, 0, 0},
                 {MPI_INT, 4, 0, 0},         {MPI_DOUBLE, 8, 0, 0},     {MPI_FLOAT_INT, 4, 4, 4},
                 {MPI_DOUBLE_INT, 8, 8, 4},  {MPI_LONG_INT, 8, 8, 4},   {MPI_SHORT_INT, 2, 4, 4},
                 {MPI_2INT, 8, 0, 0},        {MPI_C_DOUBLE_COMPLEX, 16, 0, 0}};
    int i = pick(odd ? 0 : 2, (int)(sizeof types / sizeof types[0]) - 1);
    map_add(map, 0, types[i].first);
    if (types[i].second > 0) {
        map_add(map, types[i].at, types[i].second);
    }
    return types[i].type;
}

static MPI_Datatype random_f90(struct map *map)
{
    MPI_Datatype type;
    switch (pick(0, 2)) {
    case 0:
        MPI_Type_create_f90_integer(pick(1, 18), &type);
        break;
    case 1:
        MPI_Type_create_f90_real(pick(1, 15), MPI_UNDEFINED, &type);
        break;
    default:
        MPI_Type_create_f90_complex(pick(1, 15), MPI_UNDEFINED, &type);
    }
    map_add(map, 0, extent_of(type));
    return type;
}

#define PARTS_MAX 5
#define DIMENSIONS 3

static MPI_Datatype random_type(int depth, struct map *map);

/* An array: which of its elements belong to the type is asked of each. */
struct array {
    int dimensions, order, sizes[DIMENSIONS];
    bool distributed;
    int subsizes[DIMENSIONS], starts[DIMENSIONS];
    int distributions[DIMENSIONS], arguments[DIMENSIONS], grid[DIMENSIONS], coordinates[DIMENSIONS];
};

static bool belongs(const struct array *array, int d, int index)
{
    if (!array->distributed) {
        return index >= array->starts[d] && index < array->starts[d] + array->subsizes[d];
    }
    int argument = array->arguments[d], size = array->sizes[d], processes = array->grid[d];
    switch (array->distributions[d]) {
    case MPI_DISTRIBUTE_BLOCK:
        if (argument == MPI_DISTRIBUTE_DFLT_DARG) {
            argument = (size + processes - 1) / processes;
        }
        return index / argument == array->coordinates[d];
    case MPI_DISTRIBUTE_CYCLIC:
        argument = argument == MPI_DISTRIBUTE_DFLT_DARG ? 1 : argument;
        return index / argument % processes == array->coordinates[d];
    default:
        return true;
    }
}

static void map_array(struct map *map, const struct map *of, const struct array *array,
                      int64_t extent)
{
    int64_t elements = 1;
    for (int d = 0; d < array->dimensions; d++) {
        elements *= array->sizes[d];
    }
    for (int64_t element = 0; element < elements; element++) {
        int64_t rest = element;
        bool mine = true;
        for (int step = 0; step < array->dimensions; step++) {
            int d = array->order == MPI_ORDER_C ? array->dimensions - 1 - step : step;
            mine = mine && belongs(array, d, (int)(rest % array->sizes[d]));
            rest /= array->sizes[d];
        }
        if (mine) {
            map_block(map, of, element * extent, 1, extent);
        }
    }
}

static MPI_Datatype random_array(MPI_Datatype of, const struct map *child, struct map *map,
                                 bool large)
{
    struct array array = {.dimensions = pick(1, DIMENSIONS), .distributed = pick(0, 1)};
    int processes = 1, rank = 0;
    for (int d = 0; d < array.dimensions; d++) {
        array.sizes[d] = pick(1, 6);
        array.subsizes[d] = pick(1, array.sizes[d]);
        array.starts[d] = pick(0, array.sizes[d] - array.subsizes[d]);
        array.grid[d] = pick(1, 3);
        array.arguments[d] = MPI_DISTRIBUTE_DFLT_DARG;
        switch (pick(0, 2)) {
        case 0:
            array.distributions[d] = MPI_DISTRIBUTE_NONE;
            array.grid[d] = 1;
            break;
        case 1: {
            array.distributions[d] = MPI_DISTRIBUTE_BLOCK;
            int least = (array.sizes[d] + array.grid[d] - 1) / array.grid[d];
            if (pick(0, 1)) {
                array.arguments[d] = least + pick(0, 2);
            }
            break;
        }
        default:
            array.distributions[d] = MPI_DISTRIBUTE_CYCLIC;
            if (pick(0, 1)) {
                array.arguments[d] = pick(1, 3);
            }
        }
        array.coordinates[d] = pick(0, array.grid[d] - 1);
        rank = rank * array.grid[d] + array.coordinates[d];
        processes *= array.grid[d];
    }
    array.order = pick(0, 1) ? MPI_ORDER_C : MPI_ORDER_FORTRAN;
    MPI_Datatype type = MPI_DATATYPE_NULL;
    if (large) {
#if MPI_VERSION >= 4
        MPI_Count sizes[DIMENSIONS], subsizes[DIMENSIONS], starts[DIMENSIONS];
        for (int d = 0; d < array.dimensions; d++) {
            sizes[d] = array.sizes[d];
            subsizes[d] = array.subsizes[d];
            starts[d] = array.starts[d];
        }
        if (array.distributed) {
            MPI_Type_create_darray_c(processes, rank, array.dimensions, sizes, array.distributions,
                                     array.arguments, array.grid, array.order, of, &type);
        } else {
            MPI_Type_create_subarray_c(array.dimensions, sizes, subsizes, starts, array.order, of,
                                       &type);
        }
#endif
    } else if (array.distributed) {
        MPI_Type_create_darray(processes, rank, array.dimensions, array.sizes, array.distributions,
                               array.arguments, array.grid, array.order, of, &type);
    } else {
        MPI_Type_create_subarray(array.dimensions, array.sizes, array.subsizes, array.starts,
                                 array.order, of, &type);
    }
    if (type == MPI_DATATYPE_NULL) {
        MPI_Type_dup(of, &type);
        map_block(map, child, 0, 1, 0);
    } else {
        map_array(map, child, &array, extent_of(of));
    }
    return type;
}

static MPI_Datatype random_struct(int depth, struct map *map)
{
    int count = from(0, PARTS_MAX), lengths[PARTS_MAX], next = 0;
    MPI_Aint displacements[PARTS_MAX];
    MPI_Datatype types[PARTS_MAX], type;
    for (int i = 0; i < count; i++) {
        struct map child = {0};
        lengths[i] = from(0, 3);
        types[i] = random_type(depth - 1, &child);
        MPI_Count low, size;
        MPI_Type_get_true_extent_x(types[i], &low, &size);
        displacements[i] = odd ? pick(-60, 200) : next - (int)low;
        next += (int)((lengths[i] - 1) * extent_of(types[i]) + size) + pick(0, 20);
        map_block(map, &child, displacements[i], lengths[i], extent_of(types[i]));
        free(child.runs);
    }
    MPI_Type_create_struct(count, lengths, displacements, types, &type);
    for (int i = 0; i < count; i++) {
        if (!type_is_named(types[i])) {
            MPI_Type_free(&types[i]);
        }
    }
    return type;
}

/* Numbers of all the widths in which constructors want them. */
struct numbers {
    int count, length, stride;
    int lengths[PARTS_MAX], displacements[PARTS_MAX];
    MPI_Aint bytes[PARTS_MAX];
    MPI_Count lengths_large[PARTS_MAX], displacements_large[PARTS_MAX], bytes_large[PARTS_MAX];
};

static struct numbers random_numbers(int64_t extent)
{
    struct numbers n = {.count = from(0, PARTS_MAX), .length = from(0, 3)};
    n.stride = odd ? pick(-5, 6) : n.length + pick(0, 4);
    int next = 0;
    for (int i = 0; i < PARTS_MAX; i++) {
        n.lengths[i] = from(0, 3);
        n.displacements[i] = odd ? pick(-4, 12) : next;
        n.bytes[i] = odd ? pick(-80, 160) : (MPI_Aint)(next * extent) + pick(0, 7);
        next += 4 + pick(0, 3);
        n.lengths_large[i] = n.lengths[i];
        n.displacements_large[i] = n.displacements[i];
        n.bytes_large[i] = n.bytes[i];
    }
    return n;
}

enum { DUP, CONTIGUOUS, VECTOR, HVECTOR, INDEXED, HINDEXED, BLOCK, HBLOCK, RESIZED, ARRAY, STRUCT,
       KINDS };

static MPI_Datatype construct(int kind, const struct numbers *n, MPI_Aint low, MPI_Aint size,
                              MPI_Datatype of)
{
    MPI_Datatype type;
    MPI_Aint step = (MPI_Aint)(n->stride * extent_of(of));
    switch (kind) {
    case CONTIGUOUS:
        MPI_Type_contiguous(n->count, of, &type);
        break;
    case VECTOR:
        MPI_Type_vector(n->count, n->length, n->stride, of, &type);
        break;
    case HVECTOR:
        MPI_Type_create_hvector(n->count, n->length, step + n->count, of, &type);
        break;
    case INDEXED:
        MPI_Type_indexed(n->count, n->lengths, n->displacements, of, &type);
        break;
    case HINDEXED:
        MPI_Type_create_hindexed(n->count, n->lengths, n->bytes, of, &type);
        break;
    case BLOCK:
        MPI_Type_create_indexed_block(n->count, n->length, n->displacements, of, &type);
        break;
    case HBLOCK:
        MPI_Type_create_hindexed_block(n->count, n->length, n->bytes, of, &type);
        break;
    case RESIZED:
        MPI_Type_create_resized(of, low, size, &type);
        break;
    default:
        MPI_Type_dup(of, &type);
    }
    return type;
}

#if MPI_VERSION >= 4
static MPI_Datatype construct_large(int kind, const struct numbers *n, MPI_Count low, MPI_Count size,
                                    MPI_Datatype of)
{
    MPI_Datatype type;
    MPI_Count step = n->stride * extent_of(of);
    switch (kind) {
    case CONTIGUOUS:
        MPI_Type_contiguous_c(n->count, of, &type);
        break;
    case VECTOR:
        MPI_Type_vector_c(n->count, n->length, n->stride, of, &type);
        break;
    case HVECTOR:
        MPI_Type_create_hvector_c(n->count, n->length, step + n->count, of, &type);
        break;
    case INDEXED:
        MPI_Type_indexed_c(n->count, n->lengths_large, n->displacements_large, of, &type);
        break;
    case HINDEXED:
        MPI_Type_create_hindexed_c(n->count, n->lengths_large, n->bytes_large, of, &type);
        break;
    case BLOCK:
        MPI_Type_create_indexed_block_c(n->count, n->length, n->displacements_large, of, &type);
        break;
    case HBLOCK:
        MPI_Type_create_hindexed_block_c(n->count, n->length, n->bytes_large, of, &type);
        break;
    case RESIZED:
        MPI_Type_create_resized_c(of, low, size, &type);
        break;
    default:
        MPI_Type_dup(of, &type);
    }
    return type;
}
#else
static MPI_Datatype construct_large(int kind, const struct numbers *n, MPI_Count low, MPI_Count size,
                                    MPI_Datatype of)
{
    return construct(kind, n, (MPI_Aint)low, (MPI_Aint)size, of);
}
#endif

static void map_type(struct map *map, const struct map *child, int kind, const struct numbers *n,
                     int64_t extent)
{
    int64_t step = n->stride * extent + (kind == HVECTOR ? n->count : 0);
    switch (kind) {
    case CONTIGUOUS:
        map_block(map, child, 0, n->count, extent);
        return;
    case VECTOR:
    case HVECTOR:
        for (int i = 0; i < n->count; i++) {
            map_block(map, child, i * step, n->length, extent);
        }
        return;
    case INDEXED:
    case HINDEXED:
    case BLOCK:
    case HBLOCK:
        for (int i = 0; i < n->count; i++) {
            bool bytes = kind == HINDEXED || kind == HBLOCK;
            int length = kind == INDEXED || kind == HINDEXED ? n->lengths[i] : n->length;
            map_block(map, child, bytes ? n->bytes[i] : n->displacements[i] * extent, length,
                      extent);
        }
        return;
    default:
        map_block(map, child, 0, 1, extent);
    }
}

static MPI_Datatype random_type(int depth, struct map *map)
{
    if (depth == 0 || pick(0, 9) == 0) {
        return pick(0, 7) == 0 ? random_f90(map) : random_basic(map);
    }
    int kind = pick(0, KINDS - 1);
    if (kind == STRUCT) {
        return random_struct(depth, map);
    }
    struct map child = {0};
    MPI_Datatype of = random_type(depth - 1, &child), type;
    MPI_Count low, size;
    MPI_Type_get_true_extent_x(of, &low, &size);
    bool large = MPI_VERSION >= 4 && pick(0, 2) == 0;
    if (kind == ARRAY) {
        type = random_array(of, &child, map, large);
    } else {
        struct numbers n = random_numbers(extent_of(of));
        if (odd) {
            low = pick(-20, 20);
            size = pick(0, 200);
        } else {
            size += pick(0, 30);
        }
        type = large ? construct_large(kind, &n, low, size, of)
                     : construct(kind, &n, (MPI_Aint)low, (MPI_Aint)size, of);
        map_type(map, &child, kind, &n, extent_of(of));
    }
    free(child.runs);
    if (!type_is_named(of)) {
        MPI_Type_free(&of);
    }
    return type;
}

static int failures;

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
            fail(seed, "MPI_Pack differs", position, all);
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
        state = seed * 0x9e3779b97f4a7c15u + 1;
        for (int warm = 0; warm < 4; warm++) {
            next_random();
        }
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
    printf("flatten: %llu types, %d failures\n", (unsigned long long)cases, failures);
    MPI_Finalize();
    return failures == 0 ? 0 : 1;
}
