/* random.c - random datatypes in memory and in views, in random calls, held against a model of bytes.
 *
 * The generator makes each datatype together with its type map: which byte of the extent each byte of data is,
 * in order. Nothing is asked of the MPI about the type but to make it.
 */
#include "check.h"

#include <stdlib.h>
#include <string.h>

/* Bytes that one element of a generated type may have, and span. */
enum { map_max = 6000, span_max = 20000 };

struct map {
    MPI_Datatype type;
    long lb, extent; /* as the MPI has them */
    size_t bytes;
    long *places; /* of each byte of data */
};

static void map_free(struct map *map)
{
    if (map->places) MPI_Type_free(&map->type);
    free(map->places);
    map->places = NULL;
}

static struct map basic_map(struct random *random)
{
    static const int sizes[] = {1, 2, 4, 8, 8};
    MPI_Datatype types[] = {MPI_BYTE, MPI_SHORT, MPI_INT, MPI_DOUBLE, MPI_LONG_LONG};
    long i = random_between(random, 0, 4);
    struct map map = {.lb = 0, .extent = sizes[i], .bytes = (size_t)sizes[i], .places = malloc((size_t)sizes[i] * sizeof(long))};
    MPI_Type_dup(types[i], &map.type);
    for (int k = 0; k < sizes[i]; k++) map.places[k] = k;
    return map;
}

/* Puts copies of an element at places, in bytes; what the new type is, is filled in by the caller. */
static struct map copies(const struct map *of, long count, const long *at)
{
    struct map map = {.bytes = of->bytes * (size_t)count, .places = malloc((of->bytes * (size_t)count + 1) * sizeof(long))};
    long lb = 0, ub = 0;
    size_t n = 0;
    for (long i = 0; i < count; i++) {
        for (size_t k = 0; k < of->bytes; k++) map.places[n++] = at[i] + of->places[k];
        long low = at[i] + of->lb, high = low + of->extent;
        if (i == 0 || low < lb) lb = low;
        if (i == 0 || high > ub) ub = high;
    }
    map.lb = lb;
    map.extent = ub - lb;
    return map;
}

/* The whole of an element from its first byte to its last; of what has none, nothing. */
static void true_bounds(const struct map *map, long *low, long *high)
{
    *low = *high = 0;
    for (size_t i = 0; i < map->bytes; i++) {
        if (i == 0 || map->places[i] < *low) *low = map->places[i];
        if (i == 0 || map->places[i] + 1 > *high) *high = map->places[i] + 1;
    }
}

/* A type made of copies of another one. Forward: places ascend and do not overlap, as views need it for writes;
 * otherwise they do not overlap, and may go backwards and lie below zero. */
static struct map derive(struct random *random, const struct map *of, bool forward)
{
    long count = random_between(random, random_between(random, 0, 9) ? 1 : 0, 5), at[64], low, high;
    int lengths[16], steps[16];
    MPI_Aint places[16];
    MPI_Datatype types[16];
    struct map map;
    true_bounds(of, &low, &high);
    /* What copies may be apart without touching: not less than all that they span. */
    long room = high - low > of->extent ? high - low : of->extent;
    long pitch = of->extent > 0 ? (room + of->extent - 1) / of->extent : 1;
    bool packed = of->extent >= high - low && of->extent > 0;
    long kind = random_between(random, 0, 9);
    /* Blocks of several need elements that may stand side by side. */
    int block = packed ? (int)random_between(random, 1, 3) : 1;
    if (of->extent <= 0) kind = 8;
    switch (kind) {
    case 0: /* contiguous */
        if (!packed) count = count ? 1 : 0;
        for (long i = 0; i < count; i++) at[i] = i * of->extent;
        map = copies(of, count, at);
        MPI_Type_contiguous((int)count, of->type, &map.type);
        break;
    case 1:   /* vector */
    case 2: { /* hvector */
        long n = 0, stride = (block - 1 + pitch + random_between(random, 0, 3)) * of->extent, odd = kind == 2 ? random_between(random, 0, 7) : 0;
        bool backwards = !forward && random_between(random, 0, 2) == 0;
        stride += odd;
        if (backwards) stride = -stride;
        for (long i = 0; i < count; i++) {
            for (int k = 0; k < block; k++) at[n++] = i * stride + k * of->extent;
        }
        map = copies(of, n, at);
        if (kind == 1) MPI_Type_vector((int)count, block, (int)(stride / of->extent), of->type, &map.type);
        else MPI_Type_create_hvector((int)count, block, stride, of->type, &map.type);
        break;
    }
    case 3:   /* indexed */
    case 4:   /* hindexed */
    case 5:   /* indexed block */
    case 6:   /* hindexed block */
    case 7: { /* struct */
        bool in_bytes = kind == 4 || kind == 6 || kind == 7, equal = kind == 5 || kind == 6;
        long next = forward ? random_between(random, 0, 2) : random_between(random, -3, 2), n = 0;
        long unit = in_bytes ? 1 : of->extent;
        next *= unit;
        for (long i = 0; i < count; i++) {
            lengths[i] = equal ? block : packed ? (int)random_between(random, 0, block) : 1;
            steps[i] = (int)(next / unit);
            places[i] = next;
            types[i] = of->type;
            next += ((lengths[i] ? lengths[i] - 1 : 0) * of->extent + pitch * of->extent + unit - 1) / unit * unit + random_between(random, 0, 3) * unit;
        }
        /* In memory the blocks may come in any order. */
        for (long i = forward ? 0 : count - 1; i > 0; i--) {
            long k = random_between(random, 0, i);
            int length = lengths[i], step = steps[i];
            MPI_Aint place = places[i];
            lengths[i] = lengths[k], steps[i] = steps[k], places[i] = places[k];
            lengths[k] = length, steps[k] = step, places[k] = place;
        }
        for (long i = 0; i < count; i++) {
            for (int k = 0; k < lengths[i]; k++) at[n++] = places[i] + k * of->extent;
        }
        map = copies(of, n, at);
        if (kind == 3) MPI_Type_indexed((int)count, lengths, steps, of->type, &map.type);
        if (kind == 4) MPI_Type_create_hindexed((int)count, lengths, places, of->type, &map.type);
        if (kind == 5) MPI_Type_create_indexed_block((int)count, block, steps, of->type, &map.type);
        if (kind == 6) MPI_Type_create_hindexed_block((int)count, block, places, of->type, &map.type);
        if (kind == 7) MPI_Type_create_struct((int)count, lengths, places, types, &map.type);
        break;
    }
    case 9: { /* subarray of two dimensions */
        if (!packed) goto resized;
        int sizes[2], parts[2], starts[2], order = random_between(random, 0, 1) ? MPI_ORDER_C : MPI_ORDER_FORTRAN;
        long n = 0;
        for (int i = 0; i < 2; i++) {
            sizes[i] = (int)random_between(random, 1, 5);
            parts[i] = (int)random_between(random, 1, sizes[i]);
            starts[i] = (int)random_between(random, 0, sizes[i] - parts[i]);
        }
        int slow = order == MPI_ORDER_C ? 0 : 1, fast = 1 - slow;
        for (int i = 0; i < parts[slow]; i++) {
            for (int k = 0; k < parts[fast]; k++) at[n++] = ((long)(starts[slow] + i) * sizes[fast] + starts[fast] + k) * of->extent;
        }
        map = copies(of, n, at);
        map.lb = 0;
        map.extent = (long)sizes[0] * sizes[1] * of->extent;
        MPI_Type_create_subarray(2, sizes, parts, starts, order, of->type, &map.type);
        break;
    }
    default:
    resized:
        at[0] = 0;
        map = copies(of, 1, at);
        map.lb = forward ? low - random_between(random, 0, low > 8 ? 8 : low > 0 ? low : 0) : low - random_between(random, 0, 9);
        map.extent = high - map.lb + random_between(random, 0, 20);
        if (map.extent <= 0) map.extent = 1;
        MPI_Type_create_resized(of->type, map.lb, map.extent, &map.type);
        break;
    }
    /* An MPI may pad any type so that its elements are aligned. This one is not padded. */
    MPI_Aint lb, extent;
    MPI_Type_get_extent(map.type, &lb, &extent);
    if (lb == map.lb && extent > map.extent) {
        MPI_Datatype padded = map.type;
        MPI_Type_create_resized(padded, map.lb, map.extent, &map.type);
        MPI_Type_free(&padded);
    }
    return map;
}

/* A type of a few levels. Its elements may stand side by side: the extent holds all of it. */
static struct map generate(struct random *random, bool forward)
{
    struct map map = basic_map(random);
    long depth = random_between(random, 0, 4), low, high;
    for (long i = 0; i < depth; i++) {
        struct map next = derive(random, &map, forward);
        true_bounds(&next, &low, &high);
        MPI_Aint lb, extent;
        MPI_Type_get_extent(next.type, &lb, &extent);
        /* Open MPI 4.1 makes some types of others with a lower bound wrongly: not held against whoever uses them. */
        bool made = lb == next.lb && extent == next.extent;
        if (!made || next.bytes == 0 || next.bytes > map_max || high > span_max || low < -span_max) {
            map_free(&next);
            break;
        }
        map_free(&map);
        map = next;
    }
    true_bounds(&map, &low, &high);
    if (map.extent < high - low || (forward && map.lb > low)) {
        struct map next = copies(&map, 1, (long[]){0});
        next.lb = low;
        next.extent = high - low;
        MPI_Type_create_resized(map.type, next.lb, next.extent, &next.type);
        map_free(&map);
        map = next;
    }
    MPI_Type_commit(&map.type);
    return map;
}

/* Where byte number n of a sequence of such elements is. */
static long place_of(const struct map *map, long long n)
{
    return (long)(n / (long long)map->bytes) * map->extent + map->places[n % (long long)map->bytes];
}

/* A file as it should be: bytes, and how far it reaches. */
struct model {
    unsigned char *bytes;
    long size;
};
enum { model_max = 1 << 20 };

/* A view of a rank: an etype whose elements, tiled, are the ranks' in turn, or a region of its own. */
struct view {
    struct map map; /* of the filetype, tiled already */
    struct map etype;
    long displacement;
};

static struct view make_view(struct random *random, bool tiled, long where, bool random_etype)
{
    struct view view;
    /* The same type on all ranks where it is tiled. */
    struct map map = generate(random, true);
    long low, high;
    true_bounds(&map, &low, &high);
    view.etype = basic_map(random);
    if (!random_etype || map.bytes % view.etype.bytes) {
        map_free(&view.etype);
        view.etype = (struct map){.lb = 0, .extent = 1, .bytes = 1, .places = calloc(1, sizeof(long))};
        MPI_Type_dup(MPI_BYTE, &view.etype.type);
    }
    if (tiled) {
        /* Rank r has the r-th of each row of as many as there are ranks. */
        struct map next = copies(&map, 1, (long[]){0});
        next.lb = map.lb;
        next.extent = map.extent * size;
        MPI_Type_create_resized(map.type, next.lb, next.extent, &next.type);
        MPI_Type_commit(&next.type);
        view.displacement = where + rank * map.extent;
        map_free(&map);
        map = next;
    } else {
        view.displacement = where;
    }
    view.map = map;
    return view;
}

enum ways { ways_blocking = 4, ways_all = 10 };

/* One access of n memory elements at a position in etypes, one way or another; the collective ones by all ranks. */
static void access_file(MPI_File file, bool write, long way, MPI_Offset position, void *buffer, int count, MPI_Datatype type, MPI_Status *status)
{
    MPI_Request request = MPI_REQUEST_NULL;
    if (way % 2) OK(MPI_File_seek(file, position, MPI_SEEK_SET));
    if (write) {
        switch (way) {
        case 0: OK(MPI_File_write_at(file, position, buffer, count, type, status)); return;
        case 1: OK(MPI_File_write(file, buffer, count, type, status)); return;
        case 2: OK(MPI_File_write_at_all(file, position, buffer, count, type, status)); return;
        case 3: OK(MPI_File_write_all(file, buffer, count, type, status)); return;
        case 4: OK(MPI_File_iwrite_at(file, position, buffer, count, type, &request)); break;
        case 5: OK(MPI_File_iwrite(file, buffer, count, type, &request)); break;
        case 6: OK(MPI_File_iwrite_at_all(file, position, buffer, count, type, &request)); break;
        case 7: OK(MPI_File_iwrite_all(file, buffer, count, type, &request)); break;
        case 8:
            OK(MPI_File_write_at_all_begin(file, position, buffer, count, type));
            OK(MPI_File_write_at_all_end(file, buffer, status));
            return;
        default:
            OK(MPI_File_write_all_begin(file, buffer, count, type));
            OK(MPI_File_write_all_end(file, buffer, status));
            return;
        }
    } else {
        switch (way) {
        case 0: OK(MPI_File_read_at(file, position, buffer, count, type, status)); return;
        case 1: OK(MPI_File_read(file, buffer, count, type, status)); return;
        case 2: OK(MPI_File_read_at_all(file, position, buffer, count, type, status)); return;
        case 3: OK(MPI_File_read_all(file, buffer, count, type, status)); return;
        case 4: OK(MPI_File_iread_at(file, position, buffer, count, type, &request)); break;
        case 5: OK(MPI_File_iread(file, buffer, count, type, &request)); break;
        case 6: OK(MPI_File_iread_at_all(file, position, buffer, count, type, &request)); break;
        case 7: OK(MPI_File_iread_all(file, buffer, count, type, &request)); break;
        case 8:
            OK(MPI_File_read_at_all_begin(file, position, buffer, count, type));
            OK(MPI_File_read_at_all_end(file, buffer, status));
            return;
        default:
            OK(MPI_File_read_all_begin(file, buffer, count, type));
            OK(MPI_File_read_all_end(file, buffer, status));
            return;
        }
    }
    OK(MPI_Wait(&request, status));
}

/* What one rank accesses: memory elements, and where in its view. */
struct choice {
    struct map memory;
    int count;
    long long bytes, at; /* at: in bytes of data of the view, a multiple of the etype's */
    unsigned char *buffer, *origin; /* origin: the address given to the call */
    size_t buffer_size;
};

static struct choice choose(const struct view *view, long most)
{
    struct choice choice;
    long low, high;
    do {
        choice.memory = generate(&own, false);
        choice.count = (int)random_between(&own, 0, 30);
        while (choice.count > 0 && (long long)choice.memory.bytes * choice.count > most) choice.count /= 2;
        choice.bytes = (long long)choice.memory.bytes * choice.count;
        /* A whole number of etypes, as the standard wants it. */
        if (choice.bytes % (long long)view->etype.bytes == 0) break;
        map_free(&choice.memory);
    } while (true);
    choice.at = random_between(&own, 0, 3000) * (long long)view->etype.bytes;
    true_bounds(&choice.memory, &low, &high);
    long span = choice.memory.extent * (choice.count ? choice.count - 1 : 0) + high;
    choice.buffer_size = (size_t)(span - (low < 0 ? low : 0)) + 64;
    choice.buffer = malloc(choice.buffer_size);
    choice.origin = choice.buffer + (low < 0 ? -low : 0);
    return choice;
}

static void choice_free(struct choice *choice)
{
    map_free(&choice->memory);
    free(choice->buffer);
}

static void accesses(bool collective_too, long ways_count)
{
    const char *name = path("a");
    MPI_File file = created(MPI_COMM_WORLD, name);
    struct model model = {calloc(1, model_max), 0};
    unsigned char *scratch = malloc(model_max), *sum = malloc(model_max);
    if (file == MPI_FILE_NULL) return;
    for (int turn = 0; turn < rounds; turn++) {
        long way = random_between(&common, 0, ways_count - 1);
        if (!collective_too) way %= 2;
        bool tiled = random_between(&common, 0, 1), etyped = random_between(&common, 0, 1);
        /* Regions of the ranks' own, or one for all, tiled. */
        long region = model_max / 2 / size, where = random_between(&common, 0, 5000);
        struct view view = make_view(tiled ? &common : &own, tiled, tiled ? where : where + rank * region, etyped);
        OK(MPI_File_set_view(file, view.displacement, view.etype.type, view.map.type, "native", MPI_INFO_NULL));

        long reach = tiled ? model_max / 2 : region;
        long most = (long)((reach - 20000) / view.map.extent * (long)view.map.bytes);
        struct choice choice = choose(&view, most > 40000 ? 40000 : most > 0 ? most : 0);
        long long last = (long long)most - choice.bytes;
        if (last < 0) last = 0;
        if (choice.at > last) choice.at = last / (long long)view.etype.bytes * (long long)view.etype.bytes;
        random_fill(&own, choice.buffer, choice.buffer_size);
        /* The mask tells what this rank wrote, the bytes what. */
        memset(scratch, 0, model_max);
        long written_to = 0;
        unsigned char *mine = calloc(1, model_max);
        for (long long i = 0; i < choice.bytes; i++) {
            long place = view.displacement + place_of(&view.map, choice.at + i);
            mine[place] = choice.origin[place_of(&choice.memory, i)];
            scratch[place] = 0xff;
            if (place + 1 > written_to) written_to = place + 1;
        }
        MPI_Status status;
        access_file(file, true, way, choice.at / (long long)view.etype.bytes, choice.origin, choice.count, choice.memory.type, &status);
        int count = -1;
        MPI_Get_elements(&status, MPI_BYTE, &count);
        EQUAL(count, choice.bytes);
        choice_free(&choice);
        settle(file);

        /* Everybody's writes into everybody's model. */
        MPI_Allreduce(MPI_IN_PLACE, &written_to, 1, MPI_LONG, MPI_MAX, MPI_COMM_WORLD);
        MPI_Allreduce(mine, sum, (int)written_to, MPI_BYTE, MPI_BOR, MPI_COMM_WORLD);
        MPI_Allreduce(MPI_IN_PLACE, scratch, (int)written_to, MPI_BYTE, MPI_BOR, MPI_COMM_WORLD);
        for (long i = 0; i < written_to; i++) model.bytes[i] = scratch[i] ? sum[i] : model.bytes[i];
        if (written_to > model.size) model.size = written_to;
        free(mine);
        MPI_Offset size_now = -1;
        OK(MPI_File_get_size(file, &size_now));
        EQUAL(size_now, model.size);
        if (rank == turn % size) HOLDS(name, 0, model.bytes, (size_t)model.size);

        /* Back through another view, another memory; also past the end. */
        map_free(&view.map);
        map_free(&view.etype);
        view = make_view(&own, false, random_between(&own, 0, 5000), random_between(&own, 0, 1));
        OK(MPI_File_set_view(file, view.displacement, view.etype.type, view.map.type, "native", MPI_INFO_NULL));
        way = random_between(&common, 0, ways_count - 1);
        if (!collective_too) way %= 2;
        choice = choose(&view, 40000);
        memset(choice.buffer, 0xa5, choice.buffer_size);
        unsigned char *expected = malloc(choice.buffer_size);
        memset(expected, 0xa5, choice.buffer_size);
        long long there = 0;
        for (; there < choice.bytes; there++) {
            long place = view.displacement + place_of(&view.map, choice.at + there);
            if (place >= model.size) break;
            expected[choice.origin - choice.buffer + place_of(&choice.memory, there)] = model.bytes[place];
        }
        access_file(file, false, way, choice.at / (long long)view.etype.bytes, choice.origin, choice.count, choice.memory.type, &status);
        MPI_Get_elements(&status, MPI_BYTE, &count);
        /* ROMIO tells of, and fills in, what is not there: not held against plain MPIs. */
        if (driver || there == choice.bytes) {
            EQUAL(count, there);
            if (!SAME(choice.buffer, expected, choice.buffer_size)) {
                fail(__FILE__, __LINE__, "turn %d: by way %ld, %d elements of %zu bytes", turn, way, choice.count, choice.memory.bytes);
            }
        }
        free(expected);
        choice_free(&choice);
        map_free(&view.map);
        map_free(&view.etype);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    free(model.bytes), free(scratch), free(sum);
    OK(MPI_File_close(&file));
    removed(name);
}

static void independent(void)
{
    accesses(false, 2);
}
static void collective(void)
{
    accesses(true, ways_blocking);
}
static void every_way(void)
{
    accesses(true, ways_all);
}

/* The generator itself: what MPI says of size and extent, and MPI_Pack's order of bytes. */
static void generator(void)
{
    int odd = 0;
    for (int turn = 0; turn < 10 * rounds; turn++) {
        struct map map = generate(&own, turn % 2);
        MPI_Aint lb, extent;
        int bytes, position = 0;
        long low, high;
        MPI_Type_get_extent(map.type, &lb, &extent);
        MPI_Type_size(map.type, &bytes);
        EQUAL(bytes, map.bytes);
        EQUAL(extent, map.extent);
        EQUAL(lb, map.lb);
        true_bounds(&map, &low, &high);
        unsigned char *memory = malloc((size_t)(high - low) + 1), *packed = malloc((size_t)bytes + 1);
        random_fill(&own, memory, (size_t)(high - low));
        MPI_Pack(memory - low, 1, map.type, packed, bytes, &position, MPI_COMM_SELF);
        for (int i = 0; i < bytes; i++) {
            if (packed[i] == memory[map.places[i] - low]) continue;
            odd++;
            break;
        }
        free(memory), free(packed);
        map_free(&map);
    }
    /* MPI_Pack of some MPIs is wrong about a few nestings; a generator that was wrong would be so about many. */
    if (odd) note("%d of %d types are packed otherwise", odd, 10 * rounds);
    CHECK(odd <= rounds / 2, "%d types are packed otherwise", odd);
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        {"generator", generator}, {"independent", independent}, {"collective", collective}, {"every_way", every_way}, {NULL, NULL},
    };
    return check_main(argc, argv, cases);
}
