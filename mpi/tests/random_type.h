/* random_type.h - random datatypes, nested, each with its type map. */
#ifndef RANDOM_TYPE_H
#define RANDOM_TYPE_H

#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

static bool type_owned(MPI_Datatype type)
{
    int integers, addresses, types, combiner;
    MPI_Type_get_envelope(type, &integers, &addresses, &types, &combiner);
    return combiner != MPI_COMBINER_NAMED && combiner != MPI_COMBINER_F90_REAL &&
           combiner != MPI_COMBINER_F90_COMPLEX && combiner != MPI_COMBINER_F90_INTEGER;
}

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
        if (type_owned(types[i])) {
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
    if (type_owned(of)) {
        MPI_Type_free(&of);
    }
    return type;
}

static void start_random(uint64_t seed)
{
    state = seed * 0x9e3779b97f4a7c15u + 1;
    for (int warm = 0; warm < 4; warm++) {
        next_random();
    }
}

#endif
