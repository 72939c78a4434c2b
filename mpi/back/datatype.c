#include "datatype.h"

#include "represent.h"

#include <pthread.h>
#include <stdlib.h>

/* Whether the MPI knows large counts: the one that this was compiled against, and the one that runs, which
 * may be an older one of the same soname. */
#if MPI_VERSION >= 4
#define LARGE_COUNTS 1
#pragma weak PMPI_Type_get_envelope_c
#pragma weak PMPI_Type_get_contents_c
#define large_counts() (PMPI_Type_get_envelope_c != NULL && PMPI_Type_get_contents_c != NULL)
#else
#define LARGE_COUNTS 0
#endif

enum build_form { BUILD_NATIVE, BUILD_TYPED, BUILD_RESIZED };

struct build {
    enum build_form form;
    struct shape_arena *arena;
    flat_sizer *sizer;
    void *state;
};

/* A datatype as it is being built. */
struct built {
    const struct shape *shape;
    int64_t low, extent;
};

/* What MPI tells of how a datatype was made. The numbers are counts, lengths and displacements in the
 * order in which all forms of the constructors have them. */
struct contents {
    int combiner;
    int64_t *numbers;
    int numbers_count;
    int *integers;
    int integers_count;
    bool large; /* the numbers are apart from the integers */
    MPI_Datatype *types;
    int types_count;
};

static int envelope(MPI_Datatype type, MPI_Count counts[4], int *combiner)
{
#if LARGE_COUNTS
    if (large_counts()) {
        return PMPI_Type_get_envelope_c(type, &counts[0], &counts[1], &counts[2], &counts[3],
                                        combiner);
    }
#endif
    int integers, addresses, types;
    int error = PMPI_Type_get_envelope(type, &integers, &addresses, &types, combiner);
    if (error == MPI_SUCCESS) {
        counts[0] = integers;
        counts[1] = addresses;
        counts[2] = 0;
        counts[3] = types;
    }
    return error;
}

static bool is_owned(int combiner)
{
    return combiner != MPI_COMBINER_NAMED && combiner != MPI_COMBINER_F90_REAL &&
           combiner != MPI_COMBINER_F90_COMPLEX && combiner != MPI_COMBINER_F90_INTEGER;
}

bool type_is_named(MPI_Datatype type)
{
    MPI_Count counts[4];
    int combiner = MPI_COMBINER_NAMED;
    return envelope(type, counts, &combiner) != MPI_SUCCESS || !is_owned(combiner);
}

static void contents_free(struct contents *contents)
{
    for (int i = 0; i < contents->types_count; i++) {
        if (!type_is_named(contents->types[i])) {
            PMPI_Type_free(&contents->types[i]);
        }
    }
    free(contents->numbers);
    free(contents->integers);
    free(contents->types);
}

/* Never of size 0, so that NULL means that memory ran out. */
static void *room(MPI_Count count, size_t size)
{
    return calloc(count > 0 ? (size_t)count : 1, size);
}

static int contents_get(MPI_Datatype type, struct contents *out)
{
    MPI_Count n[4]; /* integers, addresses, large counts, types */
    *out = (struct contents){0};
    int error = envelope(type, n, &out->combiner);
    if (error != MPI_SUCCESS || out->combiner == MPI_COMBINER_NAMED) {
        return error;
    }
    MPI_Aint *addresses = room(n[1], sizeof *addresses);
    MPI_Count *large = room(n[2], sizeof *large);
    out->integers = room(n[0], sizeof *out->integers);
    out->types = room(n[3], sizeof(MPI_Datatype));
    out->numbers = room(n[0] + n[1] + n[2], sizeof *out->numbers);
    error = MPI_ERR_NO_MEM;
    if (addresses != NULL && large != NULL && out->integers != NULL && out->types != NULL &&
        out->numbers != NULL) {
        bool done = false;
#if LARGE_COUNTS
        done = large_counts();
        if (done) {
            error = PMPI_Type_get_contents_c(type, n[0], n[1], n[2], n[3], out->integers, addresses,
                                             large, out->types);
        }
#endif
        if (!done) {
            error = PMPI_Type_get_contents(type, (int)n[0], (int)n[1], (int)n[3], out->integers,
                                           addresses, out->types);
        }
    }
    if (error == MPI_SUCCESS) {
        out->types_count = (int)n[3];
        out->integers_count = (int)n[0];
        out->large = n[2] > 0;
        int count = 0;
        for (MPI_Count i = 0; i < n[0] && !out->large; i++) {
            out->numbers[count++] = out->integers[i];
        }
        for (MPI_Count i = 0; i < n[1]; i++) {
            out->numbers[count++] = addresses[i];
        }
        for (MPI_Count i = 0; i < n[2]; i++) {
            out->numbers[count++] = large[i];
        }
        out->numbers_count = count;
    }
    free(addresses);
    free(large);
    return error;
}

static int bounds_of(MPI_Datatype type, int64_t *low, int64_t *extent)
{
    MPI_Count lower, length;
    int error = PMPI_Type_get_extent_x(type, &lower, &length);
    if (error == MPI_SUCCESS) {
        *low = lower;
        *extent = length;
    }
    return error;
}

/* A basic type: a run, or two for a pair. */
static int build_basic(const struct build *build, MPI_Datatype type, const struct contents *contents,
                       struct built *out)
{
    struct shape_arena *arena = build->arena;
    if (build->form == BUILD_RESIZED) {
        int64_t size = 0;
        int error = build->sizer(type, &size, build->state);
        *out = (struct built){shape_run(arena, 0, size, 0), 0, size};
        return error;
    }
    MPI_Count size;
    int error = PMPI_Type_size_x(type, &size);
    error = error != MPI_SUCCESS ? error : bounds_of(type, &out->low, &out->extent);
    if (error != MPI_SUCCESS) {
        return error;
    }
    if (build->form == BUILD_NATIVE && size == out->extent) {
        out->shape = shape_run(arena, 0, size, 0);
        return MPI_SUCCESS;
    }
    struct named named;
    if (contents->combiner == MPI_COMBINER_NAMED) {
        error = named_info(type, &named);
    } else if (contents->combiner == MPI_COMBINER_F90_INTEGER) {
        error = named_info_f90(contents->combiner, 0, contents->integers[0], size, &named);
    } else {
        error = named_info_f90(contents->combiner, contents->integers[0], contents->integers[1],
                               size, &named);
    }
    if (error != MPI_SUCCESS) {
        if (build->form == BUILD_NATIVE) {
            out->shape = shape_run(arena, 0, size, 0);
            return MPI_SUCCESS;
        }
        return error;
    }
    bool typed = build->form == BUILD_TYPED;
    struct basic first = basic_info(named.basic);
    int64_t length = (int64_t)first.native * named.components;
    if (named.second == 0) {
        out->shape = shape_run(arena, 0, size, typed ? named.basic : 0);
        return length == size ? MPI_SUCCESS : MPI_ERR_UNSUPPORTED_DATAREP;
    }
    /* A pair is a C structure: its second member is aligned to its own size. */
    struct basic second = basic_info(named.second);
    int64_t at = (length + second.native - 1) / second.native * second.native;
    struct shape_list list = {0};
    shape_list_add(arena, &list, shape_run(arena, 0, length, typed ? named.basic : 0), 0);
    shape_list_add(arena, &list, shape_run(arena, 0, second.native, typed ? named.second : 0), at);
    out->shape = shape_list_end(arena, &list);
    return MPI_SUCCESS;
}

/* Collects the bounds of blocks of a type. */
struct bounds {
    bool any;
    int64_t low, high;
};

static void bound(struct bounds *bounds, const struct built *of, int64_t at, int64_t count)
{
    int64_t reach, low, high;
    if (count <= 0) {
        return;
    }
    /* Open MPI's bounds of some structures without data are the least and the greatest there are. */
    if (__builtin_mul_overflow(count - 1, of->extent, &reach) ||
        __builtin_add_overflow(at + (reach < 0 ? reach : 0), of->low, &low) ||
        __builtin_add_overflow(at + of->low + (reach > 0 ? reach : 0), of->extent, &high)) {
        return;
    }
    bounds->low = !bounds->any || low < bounds->low ? low : bounds->low;
    bounds->high = !bounds->any || high > bounds->high ? high : bounds->high;
    bounds->any = true;
}

/* Blocks of a type at displacements: all that is indexed or a structure. */
struct blocks {
    struct shape_list list;
    struct bounds bounds;
    const struct shape *block; /* the last one made, of so many */
    int64_t count;
};

static void add_block(const struct build *build, struct blocks *blocks, const struct built *of,
                      int64_t at, int64_t count)
{
    const struct shape *shape = of->shape;
    bound(&blocks->bounds, of, at, count);
    if (shape == NULL || count <= 0) {
        return;
    }
    if (shape->kind == SHAPE_RUN && shape->basic == 0 && shape->size == of->extent) {
        shape_list_add_run(build->arena, &blocks->list, at + shape->at, shape->size * count);
        return;
    }
    if (blocks->block == NULL || blocks->count != count) {
        blocks->block = shape_repeat(build->arena, shape, count, of->extent);
        blocks->count = count;
    }
    shape_list_add(build->arena, &blocks->list, blocks->block, at);
}

static void end_blocks(const struct build *build, struct blocks *blocks, struct built *out)
{
    out->shape = shape_list_end(build->arena, &blocks->list);
    out->low = blocks->bounds.low;
    out->extent = blocks->bounds.high - blocks->bounds.low;
}

static void build_vector(const struct build *build, const struct built *of, const int64_t numbers[3],
                         int64_t unit, struct built *out)
{
    int64_t count = numbers[0], length = numbers[1], stride = numbers[2] * unit;
    const struct shape *block = shape_repeat(build->arena, of->shape, length, of->extent);
    struct bounds bounds = {0};
    if (count > 0) {
        bound(&bounds, of, 0, length);
        bound(&bounds, of, (count - 1) * stride, length);
    }
    *out = (struct built){shape_repeat(build->arena, block, count, stride), bounds.low,
                          bounds.high - bounds.low};
}

static void build_indexed(const struct build *build, const struct built *of,
                          const struct contents *contents, int64_t unit, bool equal,
                          struct built *out)
{
    const int64_t *numbers = contents->numbers;
    int64_t count = numbers[0];
    const int64_t *lengths = &numbers[1];
    const int64_t *displacements = &numbers[equal ? 2 : 1 + count];
    struct blocks blocks = {0};
    for (int64_t i = 0; i < count; i++) {
        add_block(build, &blocks, of, displacements[i] * unit, lengths[equal ? 0 : i]);
    }
    end_blocks(build, &blocks, out);
}

static int64_t fastest_first(int order, int dimensions, int step)
{
    return order == MPI_ORDER_FORTRAN ? step : dimensions - 1 - step;
}

static void build_subarray(const struct build *build, const struct built *of,
                           const struct contents *contents, struct built *out)
{
    int dimensions = contents->integers[0];
    int order = contents->integers[contents->integers_count - 1];
    const int64_t *sizes = &contents->numbers[contents->large ? 0 : 1];
    const int64_t *subsizes = sizes + dimensions, *starts = subsizes + dimensions;
    const struct shape *shape = of->shape;
    int64_t unit = of->extent;
    for (int step = 0; step < dimensions; step++) {
        int64_t d = fastest_first(order, dimensions, step);
        shape = shape_repeat(build->arena, shape, subsizes[d], unit);
        shape = shape_shift(build->arena, shape, starts[d] * unit);
        unit *= sizes[d];
    }
    *out = (struct built){shape, 0, unit};
}

/* One dimension of a distributed array: `shape` is one element of it. */
static const struct shape *distribute(const struct build *build, const struct shape *shape,
                                      int64_t unit, int64_t size, int distribution, int64_t argument,
                                      int64_t processes, int64_t coordinate)
{
    struct shape_arena *arena = build->arena;
    if (distribution == MPI_DISTRIBUTE_NONE) {
        return shape_repeat(arena, shape, size, unit);
    }
    bool block = distribution == MPI_DISTRIBUTE_BLOCK;
    if (argument == MPI_DISTRIBUTE_DFLT_DARG) {
        argument = block ? (size + processes - 1) / processes : 1;
    }
    int64_t start = coordinate * argument, round = processes * argument;
    if (start >= size) {
        return NULL;
    }
    /* Whole blocks, then what is left of one. A block distribution has one round. */
    int64_t whole = start + argument <= size ? (size - start - argument) / round + 1 : 0;
    whole = block && whole > 1 ? 1 : whole;
    int64_t rest_at = start + whole * round;
    int64_t rest = block && whole == 1 ? 0 : size - rest_at;
    const struct shape *part = shape_repeat(arena, shape, argument, unit);
    struct shape_list list = {0};
    shape_list_add(arena, &list, shape_repeat(arena, part, whole, round * unit), start * unit);
    if (rest > 0) {
        rest = rest < argument ? rest : argument;
        shape_list_add(arena, &list, shape_repeat(arena, shape, rest, unit), rest_at * unit);
    }
    return shape_list_end(arena, &list);
}

static void build_darray(const struct build *build, const struct built *of,
                         const struct contents *contents, struct built *out)
{
    const int *integers = contents->integers;
    int processes = integers[0], rank = integers[1], dimensions = integers[2];
    const int64_t *sizes = &contents->numbers[contents->large ? 0 : 3];
    const int *distributions = &integers[contents->large ? 3 : 3 + dimensions];
    const int *arguments = distributions + dimensions, *grid = arguments + dimensions;
    int order = integers[contents->integers_count - 1];
    const struct shape *shape = of->shape;
    int64_t unit = of->extent;
    for (int step = 0; step < dimensions; step++) {
        int64_t d = fastest_first(order, dimensions, step);
        /* Ranks are in row-major order of the grid, whatever the array's order. */
        int below = 1;
        for (int i = (int)d + 1; i < dimensions; i++) {
            below *= grid[i];
        }
        int64_t coordinate = rank % processes / below % grid[d];
        shape = distribute(build, shape, unit, sizes[d], distributions[d], arguments[d], grid[d],
                           coordinate);
        unit *= sizes[d];
    }
    *out = (struct built){shape, 0, unit};
}

static int build_type(const struct build *build, MPI_Datatype type, struct built *out);

static int build_struct(const struct build *build, const struct contents *contents,
                        struct built *out)
{
    int64_t count = contents->numbers[0];
    const int64_t *lengths = &contents->numbers[1], *displacements = lengths + count;
    struct blocks blocks = {0};
    struct built of = {0};
    int error = MPI_SUCCESS;
    for (int64_t i = 0; i < count && error == MPI_SUCCESS; i++) {
        /* A type that comes twice on end is flattened once, or nesting would take exponential
         * time. */
        if (i == 0 || contents->types[i] != contents->types[i - 1]) {
            error = build_type(build, contents->types[i], &of);
            blocks.block = NULL;
        }
        if (error == MPI_SUCCESS) {
            add_block(build, &blocks, &of, displacements[i], lengths[i]);
        }
    }
    end_blocks(build, &blocks, out);
    return error;
}

static int build_derived(const struct build *build, const struct contents *contents,
                         struct built *out)
{
    const int64_t *numbers = contents->numbers;
    struct built of;
    int error = build_type(build, contents->types[0], &of);
    if (error != MPI_SUCCESS) {
        return error;
    }
    switch (contents->combiner) {
    case MPI_COMBINER_DUP:
        *out = of;
        return MPI_SUCCESS;
    case MPI_COMBINER_CONTIGUOUS: {
        struct bounds bounds = {0};
        bound(&bounds, &of, 0, numbers[0]);
        *out = (struct built){shape_repeat(build->arena, of.shape, numbers[0], of.extent),
                              bounds.low, bounds.high - bounds.low};
        return MPI_SUCCESS;
    }
    case MPI_COMBINER_VECTOR:
        build_vector(build, &of, numbers, of.extent, out);
        return MPI_SUCCESS;
    case MPI_COMBINER_HVECTOR:
        build_vector(build, &of, numbers, 1, out);
        return MPI_SUCCESS;
    case MPI_COMBINER_INDEXED:
        build_indexed(build, &of, contents, of.extent, false, out);
        return MPI_SUCCESS;
    case MPI_COMBINER_HINDEXED:
        build_indexed(build, &of, contents, 1, false, out);
        return MPI_SUCCESS;
    case MPI_COMBINER_INDEXED_BLOCK:
        build_indexed(build, &of, contents, of.extent, true, out);
        return MPI_SUCCESS;
    case MPI_COMBINER_HINDEXED_BLOCK:
        build_indexed(build, &of, contents, 1, true, out);
        return MPI_SUCCESS;
    case MPI_COMBINER_SUBARRAY:
        build_subarray(build, &of, contents, out);
        return MPI_SUCCESS;
    case MPI_COMBINER_DARRAY:
        build_darray(build, &of, contents, out);
        return MPI_SUCCESS;
    case MPI_COMBINER_RESIZED:
        *out = (struct built){of.shape, numbers[0], numbers[1]};
        return MPI_SUCCESS;
    default:
        return MPI_ERR_TYPE;
    }
}

static int build_type(const struct build *build, MPI_Datatype type, struct built *out)
{
    struct contents contents;
    *out = (struct built){0};
    int error = contents_get(type, &contents);
    if (error == MPI_SUCCESS) {
        if (!is_owned(contents.combiner)) {
            error = build_basic(build, type, &contents, out);
        } else if (contents.combiner == MPI_COMBINER_STRUCT) {
            error = build_struct(build, &contents, out);
        } else {
            error = build_derived(build, &contents, out);
        }
    }
    /* In memory the MPI itself knows best, padding of structures included. */
    if (error == MPI_SUCCESS && build->form != BUILD_RESIZED) {
        error = bounds_of(type, &out->low, &out->extent);
    }
    contents_free(&contents);
    return error;
}

static int flatten(MPI_Datatype type, enum build_form form, flat_sizer *sizer, void *state,
                   struct flat **out)
{
    struct flat *flat = calloc(1, sizeof *flat);
    if (flat == NULL) {
        return MPI_ERR_NO_MEM;
    }
    flat->references = 1;
    struct build build = {form, &flat->arena, sizer, state};
    struct built built;
    int error = build_type(&build, type, &built);
    if (error == MPI_SUCCESS && flat->arena.failed) {
        error = MPI_ERR_NO_MEM;
    }
    if (error != MPI_SUCCESS) {
        flat_release(flat);
        return error;
    }
    const struct shape *shape = built.shape;
    flat->shape = shape;
    flat->size = shape == NULL ? 0 : shape->size;
    flat->low = built.low;
    flat->extent = built.extent;
    flat->dense = shape == NULL || (shape->kind == SHAPE_RUN && shape->size == built.extent);
    *out = flat;
    return MPI_SUCCESS;
}

struct flat *flat_share(struct flat *flat)
{
    __atomic_add_fetch(&flat->references, 1, __ATOMIC_RELAXED);
    return flat;
}

void flat_release(struct flat *flat)
{
    if (flat != NULL && __atomic_sub_fetch(&flat->references, 1, __ATOMIC_ACQ_REL) == 0) {
        shape_arena_free(&flat->arena);
        free(flat);
    }
}

/* What is kept with datatypes. Predefined ones are few and live for ever: they have a table. */
#define NAMED_KEPT_MAX 96

static struct {
    pthread_mutex_t lock;
    bool keyvals_made;
    int keyvals[2];
    int named_count[2];
    struct {
        MPI_Datatype type;
        struct flat *flat;
    } named[2][NAMED_KEPT_MAX];
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int forget(MPI_Datatype type, int keyval, void *value, void *state)
{
    (void)type;
    (void)keyval;
    (void)state;
    flat_release(value);
    return MPI_SUCCESS;
}

static int make_keyvals(void)
{
    int error = MPI_SUCCESS;
    for (int form = 0; form < 2 && error == MPI_SUCCESS && !kept.keyvals_made; form++) {
        error = PMPI_Type_create_keyval(MPI_TYPE_NULL_COPY_FN, forget, &kept.keyvals[form], NULL);
    }
    kept.keyvals_made = error == MPI_SUCCESS;
    return error;
}

static struct flat *recall_named(MPI_Datatype type, enum flat_form form)
{
    for (int i = 0; i < kept.named_count[form]; i++) {
        if (kept.named[form][i].type == type) {
            return kept.named[form][i].flat;
        }
    }
    return NULL;
}

static int recall(MPI_Datatype type, enum flat_form form, struct flat **out)
{
    struct flat *named = recall_named(type, form);
    if (named != NULL) {
        *out = flat_share(named);
        return MPI_SUCCESS;
    }
    int error = make_keyvals();
    void *value = NULL;
    int found = 0;
    if (error == MPI_SUCCESS) {
        error = PMPI_Type_get_attr(type, kept.keyvals[form], &value, &found);
    }
    if (error == MPI_SUCCESS && found) {
        *out = flat_share(value);
        return MPI_SUCCESS;
    }
    if (error == MPI_SUCCESS) {
        error = flatten(type, form == FLAT_NATIVE ? BUILD_NATIVE : BUILD_TYPED, NULL, NULL, out);
    }
    if (error != MPI_SUCCESS) {
        return error;
    }
    if (!type_is_named(type)) {
        /* That it cannot be kept is no reason to fail. */
        if (PMPI_Type_set_attr(type, kept.keyvals[form], *out) == MPI_SUCCESS) {
            flat_share(*out);
        }
    } else if (kept.named_count[form] < NAMED_KEPT_MAX) {
        int i = kept.named_count[form]++;
        kept.named[form][i].type = type;
        kept.named[form][i].flat = flat_share(*out);
    }
    return MPI_SUCCESS;
}

int flat_get(MPI_Datatype type, enum flat_form form, struct flat **out)
{
    *out = NULL;
    if (type == MPI_DATATYPE_NULL) {
        return MPI_ERR_TYPE;
    }
    pthread_mutex_lock(&kept.lock);
    int error = recall(type, form, out);
    pthread_mutex_unlock(&kept.lock);
    return error;
}

int flat_resized(MPI_Datatype type, flat_sizer *sizer, void *state, struct flat **out)
{
    *out = NULL;
    return type == MPI_DATATYPE_NULL ? MPI_ERR_TYPE
                                     : flatten(type, BUILD_RESIZED, sizer, state, out);
}
