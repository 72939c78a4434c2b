/* engine.c - the back end's views and transfers on a pool, without the front library: random views
 * and datatypes against a model that moves single bytes.
 *
 *   engine [seed [cases]]        with WEIR_POOL set
 */
#include "../back/error.h"
#include "../back/transfer.h"
#include "../back/view.h"
#include "random_type.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <wchar.h>

_Thread_local char error_text[ERROR_TEXT_SIZE];

int error_set(int class, const char *format, ...)
{
    char text[ERROR_TEXT_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    memcpy(error_text, text, sizeof text);
    return class;
}

int error_of(ssize_t result)
{
    return result >= 0 ? MPI_SUCCESS : error_set(MPI_ERR_IO, "%s", weir_error_text());
}

static int failures;
static uint64_t seed;

static void fail(const char *what, long long got, long long wanted)
{
    failures++;
    printf("seed %llu: %s: got %lld, wanted %lld (%s)\n", (unsigned long long)seed, what, got, wanted,
           error_text);
}

/* A type map laid out byte by byte. */
struct bytes {
    int64_t size, extent, low, high;
    bool ascending; /* no byte at or before the one before it */
    int64_t *at;
};

static struct bytes lay_out(const struct map *map, MPI_Datatype type)
{
    struct bytes bytes = {.extent = extent_of(type), .low = INT64_MAX, .high = INT64_MIN, .ascending = true};
    for (int64_t i = 0; i < map->count; i++) {
        bytes.size += map->runs[i].length;
    }
    bytes.at = malloc((size_t)(bytes.size + 1) * sizeof *bytes.at);
    int64_t next = 0;
    for (int64_t i = 0; i < map->count; i++) {
        for (int64_t j = 0; j < map->runs[i].length; j++) {
            int64_t at = map->runs[i].at + j;
            bytes.ascending = bytes.ascending && at >= bytes.high;
            bytes.low = at < bytes.low ? at : bytes.low;
            bytes.high = at + 1 > bytes.high ? at + 1 : bytes.high;
            bytes.at[next++] = at;
        }
    }
    return bytes;
}

static int64_t place(const struct bytes *bytes, int64_t position)
{
    return position / bytes->size * bytes->extent + bytes->at[position % bytes->size];
}

enum { FILE_MAX = 1 << 22, MEMORY_MAX = 1 << 20 };
static unsigned char model[FILE_MAX];
static int64_t model_size;
static unsigned char memory[MEMORY_MAX], before[MEMORY_MAX];

static int carry_out(const struct access *access, MPI_Count *bytes)
{
    struct transfer *transfer;
    bool done = false;
    if (pick(0, 1)) {
        return access_run(access, bytes);
    }
    int class = access_begin(access, &transfer);
    while (class == MPI_SUCCESS && !done) {
        class = transfer_test(transfer, pick(0, 1), bytes, &done);
    }
    return class;
}

static void one_access(struct weir_mpi_file *file, const struct bytes *tile)
{
    struct map map = {0};
    MPI_Datatype type = random_type(pick(0, 3), &map);
    struct bytes mine = lay_out(&map, type);
    int64_t count = mine.size > 0 ? pick(0, 4) : 0;
    int64_t length = count * mine.size, reach = count > 0 ? count * mine.extent : 0;
    /* Where the data lie in memory, with room before for what is below the origin. */
    int64_t origin = mine.size > 0 && mine.low < 0 ? -mine.low : 0;
    /* Memory that is there twice cannot be read into. */
    if (mine.size > 0 && (!mine.ascending || mine.extent < mine.high - mine.low)) {
        count = length = 0;
    }
    if (mine.size > 0 && (origin + reach + mine.high > MEMORY_MAX || mine.size > 100000)) {
        count = length = 0;
    }
    struct access access = {.file = file,
                            .write = pick(0, 1),
                            .position = pick(0, (int)(3 * tile->size)),
                            .buffer = memory + origin,
                            .count = count,
                            .type = type};
    int64_t displacement = file->view->displacement;
    if (length > 0 && displacement + place(tile, access.position + length) >= FILE_MAX) {
        access.count = count = length = 0;
    }
    for (size_t i = 0; i < sizeof memory; i += 8) {
        uint64_t word = next_random();
        memcpy(memory + i, &word, sizeof word);
    }
    memcpy(before, memory, sizeof memory);
    MPI_Count bytes = -1, size;
    int class = access_size(file, count, type, &size);
    if (class != MPI_SUCCESS || size != length) {
        fail("access_size", size, length);
    }
    class = carry_out(&access, &bytes);
    int64_t wanted = 0;
    for (int64_t i = 0; i < length; i++) {
        int64_t offset = displacement + place(tile, access.position + i);
        unsigned char *cell = &memory[origin + place(&mine, i)];
        if (access.write) {
            model[offset] = *cell;
            model_size = offset + 1 > model_size ? offset + 1 : model_size;
            wanted++;
        } else if (offset < model_size) {
            wanted++;
            if (*cell != model[offset]) {
                fail("byte read", *cell, model[offset]);
                break;
            }
            *cell = before[origin + place(&mine, i)];
        }
    }
    if (class != MPI_SUCCESS || bytes != wanted) {
        fail(access.write ? "bytes written" : "bytes read", bytes, wanted);
    }
    if (memcmp(memory, before, sizeof memory) != 0) {
        fail("memory beside the data was changed", access.write, 0);
    }
    free(mine.at);
    free(map.runs);
    if (type_owned(type)) {
        MPI_Type_free(&type);
    }
}

static bool one_view(struct weir_mpi_file *file)
{
    struct map map = {0};
    odd = false;
    MPI_Datatype type = random_type(pick(0, 4), &map);
    struct bytes tile = lay_out(&map, type);
    bool usable = tile.size > 0 && tile.size < 20000 && tile.high < 100000 && tile.low >= 0 &&
                  tile.ascending && tile.extent >= tile.high - tile.low;
    int class = MPI_SUCCESS;
    if (usable) {
        class = view_make(pick(0, 1000), MPI_BYTE, type, "native", false, &file->view);
        if (class != MPI_SUCCESS) {
            fail("view", class, MPI_SUCCESS);
        }
        usable = class == MPI_SUCCESS;
    }
    if (usable) {
        for (int i = 0; i < 12 && failures == 0; i++) {
            one_access(file, &tile);
        }
        int64_t at = pick(0, (int)(2 * tile.size));
        MPI_Offset offset = view_byte_offset(file->view, at);
        if (offset != file->view->displacement + place(&tile, at)) {
            fail("byte offset", offset, file->view->displacement + place(&tile, at));
        }
        if (view_position(file->view, offset) != at) {
            fail("position", view_position(file->view, offset), at);
        }
        view_free(file->view);
    }
    free(tile.at);
    free(map.runs);
    if (type_owned(type)) {
        MPI_Type_free(&type);
    }
    return usable;
}

/* What is told of external32, number by number. */
static void check_external(struct weir_mpi_file *file)
{
    struct {
        int first;
        long second;
        short third;
        long double fourth;
        double complex_number[2];
        wchar_t fifth;
        char text[3];
    } out = {0x01020304, -2, 0x0506, -1.5L, {1.0, -2.0}, 0x263a, "ab"}, in;
    static const unsigned char wanted[] = {
        1,    2,    3, 4, 0xff, 0xff, 0xff, 0xfe, 5, 6, 0xbf, 0xff, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0,    0,    0x3f, 0xf0, 0, 0, 0, 0, 0, 0, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0x26, 0x3a, 'a', 'b', 0};
    int lengths[] = {1, 1, 1, 1, 1, 1, 3};
    MPI_Aint at[] = {(char *)&out.first - (char *)&out,  (char *)&out.second - (char *)&out,
                     (char *)&out.third - (char *)&out,  (char *)&out.fourth - (char *)&out,
                     (char *)&out.complex_number - (char *)&out, (char *)&out.fifth - (char *)&out,
                     (char *)&out.text - (char *)&out};
    MPI_Datatype types[] = {MPI_INT, MPI_LONG, MPI_SHORT, MPI_LONG_DOUBLE, MPI_C_DOUBLE_COMPLEX,
                            MPI_WCHAR, MPI_CHAR},
                 type;
    MPI_Type_create_struct(7, lengths, at, types, &type);
    unsigned char raw[sizeof wanted];
    MPI_Count bytes = 0, size = 0;
    struct access access = {file, true, 3, &out, 1, type};
    view_make(5, MPI_BYTE, MPI_BYTE, "external32", true, &file->view);
    access_size(file, 1, type, &size);
    if (size != sizeof wanted) {
        fail("size in external32", size, sizeof wanted);
    }
    int class = access_run(&access, &bytes);
    MPI_Count native;
    MPI_Type_size_x(type, &native);
    if (class != MPI_SUCCESS || bytes != native) {
        fail("written in external32", bytes, native);
    }
    ssize_t got = weir_pread(file->data, raw, sizeof raw, 8);
    for (size_t i = 0; i < sizeof wanted && got == sizeof raw; i++) {
        if (raw[i] != wanted[i]) {
            fail("byte of external32", (long long)(i << 8 | raw[i]), (long long)(i << 8 | wanted[i]));
        }
    }
    memset(&in, 0, sizeof in);
    access = (struct access){file, false, 3, &in, 1, type};
    class = access_run(&access, &bytes);
    if (class != MPI_SUCCESS || bytes != native || in.first != out.first || in.second != out.second ||
        in.third != out.third || in.fourth != out.fourth || in.fifth != out.fifth ||
        in.complex_number[1] != -2.0 || memcmp(in.text, out.text, 3) != 0) {
        fail("read from external32", bytes, native);
    }
    out.second = 1L << 40;
    access.write = true;
    access.buffer = &out;
    if (access_run(&access, &bytes) != MPI_ERR_CONVERSION) {
        fail("a long that does not fit", 0, MPI_ERR_CONVERSION);
    }
    /* Numbers of all kinds, and of the edges, there and back. */
    long double edges[] = {0.0L,      -0.0L,       1.0L / 3,    3.6e-4951L,
                           1.1e4932L, __builtin_infl(), 3.3e-4932L, -7e300L},
                back[8];
    access = (struct access){file, true, 0, edges, 8, MPI_LONG_DOUBLE};
    access_run(&access, &bytes);
    access = (struct access){file, false, 0, back, 8, MPI_LONG_DOUBLE};
    access_run(&access, &bytes);
    for (int i = 0; i < 8; i++) {
        if (memcmp(&edges[i], &back[i], 10) != 0) {
            fail("long double there and back", i, 0);
        }
    }
    MPI_Count extent = 0;
    view_type_extent(file->view, MPI_LONG, &extent);
    if (extent != 4) {
        fail("extent of a long in external32", extent, 4);
    }
    view_free(file->view);

    /* Vectors of ints in a view of every second one: many batches where they are made small. */
    static int many[20000], again[20000];
    MPI_Datatype stride, second;
    MPI_Type_vector(5000, 2, 4, MPI_INT, &stride);
    MPI_Type_create_resized(MPI_INT, 0, 8, &second);
    for (int i = 0; i < 20000; i++) {
        many[i] = i * 7919;
        again[i] = many[i] ^ (i % 4 < 2 ? -1 : 0);
    }
    view_make(0, MPI_INT, second, "external32", true, &file->view);
    access = (struct access){file, true, 0, many, 1, stride};
    access_run(&access, &bytes);
    access = (struct access){file, false, 0, again, 1, stride};
    struct transfer *transfer;
    bool done;
    access_begin(&access, &transfer);
    class = transfer_test(transfer, true, &bytes, &done);
    if (class != MPI_SUCCESS || bytes != 40000 || memcmp(many, again, sizeof many) != 0) {
        fail("vectors in external32", bytes, 40000);
    }
    view_free(file->view);
    MPI_Type_free(&stride);
    MPI_Type_free(&second);
    MPI_Type_free(&type);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    uint64_t cases = argc > 2 ? strtoull(argv[2], NULL, 0) : 300, used = 0;
    struct weir_mpi_file file = {.path = "/engine", .comm = MPI_COMM_SELF, .size = 1};
    weir_pool *pool;
    int error = weir_connect(NULL, NULL, &pool);
    for (seed = first; seed < first + cases && failures == 0 && error >= 0; seed++) {
        start_random(seed);
        model_size = 0;
        file.size_seen = 0;
        memset(model, 0, sizeof model);
        weir_layout layout = {.struct_size = sizeof layout,
                              .stripe_size = (uint64_t)4096 << pick(0, 4),
                              .stripe_count = WEIR_STRIPE_ALL};
        weir_unlink(pool, file.path);
        error = weir_open(pool, file.path, O_RDWR | O_CREAT, 0600, &layout, &file.data);
        if (error >= 0) {
            used += one_view(&file);
            if (seed == first) {
                check_external(&file);
            }
            error = weir_close(file.data);
        }
    }
    if (error < 0) {
        fail(weir_error_text(), error, 0);
    }
    weir_unlink(pool, file.path);
    weir_disconnect(pool);
    if (used < cases / 3 && failures == 0) {
        fail("views that could be used", (long long)used, (long long)cases);
    }
    printf("engine: %llu views, %d failures\n", (unsigned long long)used, failures);
    MPI_Finalize();
    return failures == 0 ? 0 : 1;
}
