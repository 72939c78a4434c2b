/* data.c - reads and writes: explicit offsets, pointers, views, ends of files, corners of counts and types. */
#include "check.h"

#include <stdlib.h>
#include <string.h>

enum { block = 5000 };

/* Every blocking call with an explicit offset or the individual pointer, each rank in its own block. */
static void calls(void)
{
    const char *name = path("a");
    MPI_File file = created(MPI_COMM_WORLD, name);
    MPI_Status status;
    MPI_Offset offset = (MPI_Offset)rank * block, at;
    unsigned char data[block], found[block];
    if (file == MPI_FILE_NULL) return;
    for (unsigned way = 0; way < 4; way++) {
        bool ok;
        stamp_fill(data, offset, block, 10 + way);
        memset(&status, 0x7f, sizeof status);
        OK(MPI_File_seek(file, offset, MPI_SEEK_SET));
        if (way == 0) ok = OK(MPI_File_write_at(file, offset, data, block, MPI_BYTE, &status));
        else if (way == 1) ok = OK(MPI_File_write_at_all(file, offset, data, block, MPI_BYTE, &status));
        else if (way == 2) ok = OK(MPI_File_write(file, data, block, MPI_BYTE, &status));
        else ok = OK(MPI_File_write_all(file, data, block, MPI_BYTE, &status));
        if (ok) COUNTED(status, MPI_BYTE, block);
        OK(MPI_File_get_position(file, &at));
        EQUAL(at, way < 2 ? offset : offset + block);
        settle(file);

        /* Another rank's block. */
        int other = (rank + 1) % size;
        for (unsigned back = 0; back < 4; back++) {
            memset(found, 0, block);
            stamp_fill(data, (MPI_Offset)other * block, block, 10 + way);
            OK(MPI_File_seek(file, (MPI_Offset)other * block, MPI_SEEK_SET));
            if (back == 0) ok = OK(MPI_File_read_at(file, (MPI_Offset)other * block, found, block, MPI_BYTE, &status));
            else if (back == 1) ok = OK(MPI_File_read_at_all(file, (MPI_Offset)other * block, found, block, MPI_BYTE, &status));
            else if (back == 2) ok = OK(MPI_File_read(file, found, block, MPI_BYTE, &status));
            else ok = OK(MPI_File_read_all(file, found, block, MPI_BYTE, &status));
            if (ok) COUNTED(status, MPI_BYTE, block);
            SAME(found, data, block);
        }
        MPI_Barrier(MPI_COMM_WORLD);
    }
    OK(MPI_File_close(&file));
    removed(name);
}

static void seeks(void)
{
    const char *name = path("a");
    MPI_File file = created(MPI_COMM_WORLD, name);
    MPI_Offset at;
    char byte = 1;
    if (file == MPI_FILE_NULL) return;
    OK(MPI_File_set_size(file, 1000));
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_seek(file, 100 + rank, MPI_SEEK_SET));
    OK(MPI_File_seek(file, 20, MPI_SEEK_CUR));
    OK(MPI_File_seek(file, -50, MPI_SEEK_CUR));
    OK(MPI_File_get_position(file, &at));
    EQUAL(at, 70 + rank);
    OK(MPI_File_seek(file, -10 - rank, MPI_SEEK_END));
    OK(MPI_File_get_position(file, &at));
    EQUAL(at, 990 - rank);
    OK(MPI_File_seek(file, 10, MPI_SEEK_END));
    OK(MPI_File_get_position(file, &at));
    EQUAL(at, 1010);
    /* A failure moves nothing. */
    FAILS(MPI_File_seek(file, -1001, MPI_SEEK_END), MPI_ERR_ARG);
    FAILS(MPI_File_seek(file, -1, MPI_SEEK_SET), MPI_ERR_ARG);
    FAILS(MPI_File_seek(file, -1011, MPI_SEEK_CUR), MPI_ERR_ARG);
    OK(MPI_File_get_position(file, &at));
    EQUAL(at, 1010);
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_seek(file, 2000 + rank, MPI_SEEK_SET));
    OK(MPI_File_write(file, &byte, 1, MPI_BYTE, MPI_STATUS_IGNORE));
    settle(file);
    OK(MPI_File_get_size(file, &at));
    EQUAL(at, 2000 + size);
    /* In a view, positions count etypes. */
    MPI_Datatype every_other;
    MPI_Type_vector(1, 2, 4, MPI_INT, &every_other);
    MPI_Type_create_resized(every_other, 0, 16, &every_other);
    MPI_Type_commit(&every_other);
    OK(MPI_File_set_size(file, 8 + 16 * 10));
    OK(MPI_File_set_view(file, 8, MPI_INT, every_other, "native", MPI_INFO_NULL));
    OK(MPI_File_get_position(file, &at));
    EQUAL(at, 0);
    OK(MPI_File_seek(file, 5, MPI_SEEK_SET));
    OK(MPI_File_get_byte_offset(file, 5, &at));
    EQUAL(at, 8 + 2 * 16 + 4);
    OK(MPI_File_get_byte_offset(file, 4, &at));
    EQUAL(at, 8 + 2 * 16);
    OK(MPI_File_seek(file, 0, MPI_SEEK_END));
    OK(MPI_File_get_position(file, &at));
    EQUAL(at, 20);
    int values[2] = {0};
    OK(MPI_File_seek(file, 1, MPI_SEEK_SET));
    OK(MPI_File_read(file, values, 2, MPI_INT, MPI_STATUS_IGNORE));
    OK(MPI_File_get_position(file, &at));
    EQUAL(at, 3);
    MPI_Type_free(&every_other);
    OK(MPI_File_close(&file));
    removed(name);
}

/* What a read says that meets the end of the file. */
static void ends(void)
{
    const char *name = path("a");
    MPI_File file = created(MPI_COMM_WORLD, name);
    MPI_Status status;
    unsigned char data[100], found[4000], untouched[4000];
    int count;
    if (file == MPI_FILE_NULL) return;
    stamp_fill(data, 0, 100, 3);
    memset(untouched, 0x5c, sizeof untouched);
    if (rank == 0) OK(MPI_File_write_at(file, 0, data, 100, MPI_BYTE, MPI_STATUS_IGNORE));
    settle(file);
    for (int all = 0; all < 2; all++) {
        memset(found, 0x5c, sizeof found);
        if (all) OK(MPI_File_read_at_all(file, 40, found, 4000, MPI_BYTE, &status));
        else OK(MPI_File_read_at(file, 40, found, 4000, MPI_BYTE, &status));
        COUNTED(status, MPI_BYTE, 60);
        SAME(found, data + 40, 60);
        SAME(found + 60, untouched, 3940);
        memset(found, 0x5c, sizeof found);
        if (all) OK(MPI_File_read_at_all(file, 100, found, 10, MPI_BYTE, &status));
        else OK(MPI_File_read_at(file, 100, found, 10, MPI_BYTE, &status));
        COUNTED(status, MPI_BYTE, 0);
        if (all) OK(MPI_File_read_at_all(file, 1 << 20, found, 10, MPI_BYTE, &status));
        else OK(MPI_File_read_at(file, 1 << 20, found, 10, MPI_BYTE, &status));
        COUNTED(status, MPI_BYTE, 0);
        SAME(found, untouched, 4000);
    }
    /* Part of an element: no count of whole ones, but elements of its parts. */
    MPI_Datatype three;
    MPI_Type_contiguous(3, MPI_INT, &three);
    MPI_Type_commit(&three);
    OK(MPI_File_read_at(file, 100 - 5 * 4, found, 4, three, &status));
    MPI_Get_count(&status, three, &count);
    EQUAL(count, MPI_UNDEFINED);
    MPI_Get_elements(&status, three, &count);
    EQUAL(count, 5);
    OK(MPI_File_read_at(file, 100 - 6 * 4, found, 4, three, &status));
    MPI_Get_count(&status, three, &count);
    EQUAL(count, 2);
    MPI_Type_free(&three);
    /* A strided view in which the end falls into a gap, and into a piece. */
    MPI_Datatype view;
    MPI_Type_create_resized(MPI_INT, 0, 12, &view);
    MPI_Type_commit(&view);
    OK(MPI_File_set_view(file, 0, MPI_INT, view, "native", MPI_INFO_NULL));
    memset(found, 0x5c, sizeof found);
    OK(MPI_File_read_at_all(file, 4, found, 20, MPI_INT, &status));
    /* Elements at 48, 60, 72, 84, 96: all of the last one is before 100. */
    COUNTED(status, MPI_INT, 5);
    for (int i = 0; i < 5; i++) SAME(found + 4 * i, data + 48 + 12 * i, 4);
    SAME(found + 20, untouched, 100);
    OK(MPI_File_read_at(file, 9, found, 5, MPI_INT, &status));
    COUNTED(status, MPI_INT, 0);
    MPI_Type_free(&view);
    /* Reads at the end through the individual pointer, one after another. */
    OK(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    int total = 0;
    for (int i = 0; i < 10; i++) {
        OK(MPI_File_read(file, found, 30, MPI_BYTE, &status));
        MPI_Get_count(&status, MPI_BYTE, &count);
        EQUAL(count, i < 3 ? 30 : i == 3 ? 10 : 0);
        total += count;
    }
    EQUAL(total, 100);
    OK(MPI_File_close(&file));
    removed(name);
}

/* Nothing to read or write. */
static void nothing(void)
{
    const char *name = path("a");
    MPI_File file = created(MPI_COMM_WORLD, name);
    MPI_Status status;
    MPI_Offset at;
    MPI_Datatype empty;
    unsigned char bytes[10] = {0};
    if (file == MPI_FILE_NULL) return;
    MPI_Type_contiguous(0, MPI_INT, &empty);
    MPI_Type_commit(&empty);
    OK(MPI_File_write_at(file, 50, NULL, 0, MPI_BYTE, &status));
    COUNTED(status, MPI_BYTE, 0);
    OK(MPI_File_write_at(file, 50, bytes, 3, empty, &status));
    COUNTED(status, MPI_BYTE, 0);
    OK(MPI_File_write_at_all(file, 50, NULL, 0, MPI_INT, &status));
    COUNTED(status, MPI_INT, 0);
    OK(MPI_File_write_all(file, bytes, 3, empty, &status));
    OK(MPI_File_read(file, NULL, 0, MPI_BYTE, &status));
    COUNTED(status, MPI_BYTE, 0);
    OK(MPI_File_read_at(file, 1000, bytes, 7, empty, &status));
    OK(MPI_File_write_shared(file, NULL, 0, MPI_BYTE, &status));
    OK(MPI_File_write_ordered(file, NULL, 0, MPI_BYTE, &status));
    settle(file);
    OK(MPI_File_get_size(file, &at));
    EQUAL(at, 0);
    MPI_Barrier(MPI_COMM_WORLD);
    /* Some ranks have something, some nothing, by types as well. */
    int value = rank, many = rank % 2;
    OK(MPI_File_write_at_all(file, rank * 4, &value, many, MPI_INT, &status));
    COUNTED(status, MPI_INT, many);
    settle(file);
    OK(MPI_File_get_size(file, &at));
    EQUAL(at, size > 1 ? (size - 1 - (size % 2)) * 4 + 4 : 0);
    value = -1;
    OK(MPI_File_read_at_all(file, rank * 4, &value, 1, rank % 2 ? MPI_INT : empty, &status));
    EQUAL(value, rank % 2 ? rank : -1);
    /* A view whose elements have gaps, and nothing written through it. */
    MPI_Datatype view;
    MPI_Type_create_resized(MPI_BYTE, 0, 1000, &view);
    MPI_Type_commit(&view);
    OK(MPI_File_set_view(file, 100000, MPI_BYTE, view, "native", MPI_INFO_NULL));
    OK(MPI_File_write_all(file, bytes, 0, MPI_BYTE, &status));
    MPI_Offset after;
    OK(MPI_File_get_size(file, &after));
    EQUAL(after, at);
    MPI_Type_free(&view);
    MPI_Type_free(&empty);
    OK(MPI_File_close(&file));
    removed(name);
}

/* Views one after another in mid-file, each with its own displacement. */
static void views(void)
{
    const char *name = path("a");
    MPI_File file = created(MPI_COMM_WORLD, name);
    MPI_Offset disp, at;
    MPI_Datatype etype, filetype, strided;
    char datarep[MPI_MAX_DATAREP_STRING + 1];
    unsigned char *model = calloc(1, 100000), *data = malloc(1000);
    if (file == MPI_FILE_NULL) return;
    MPI_Type_create_resized(MPI_INT, 0, 4 * (MPI_Aint)size, &strided);
    MPI_Type_commit(&strided);
    OK(MPI_File_get_view(file, &disp, &etype, &filetype, datarep));
    EQUAL(disp, 0);
    CHECK(strcmp(datarep, "native") == 0);
    CHECK(etype == MPI_BYTE && filetype == MPI_BYTE);
    for (int turn = 0; turn < 6; turn++) {
        long start = turn * 4 * 100 * (long)size + 3 * turn;
        OK(MPI_File_set_view(file, start + 4 * rank, MPI_INT, strided, "native", MPI_INFO_NULL));
        OK(MPI_File_get_view(file, &disp, &etype, &filetype, datarep));
        EQUAL(disp, start + 4 * rank);
        CHECK(etype == MPI_INT);
        MPI_Aint lb, extent;
        int integers, addresses, datatypes, combiner;
        MPI_Type_get_extent(filetype, &lb, &extent);
        EQUAL(extent, 4 * size);
        MPI_Type_get_envelope(filetype, &integers, &addresses, &datatypes, &combiner);
        /* Derived ones are ours to free. */
        if (combiner != MPI_COMBINER_NAMED) MPI_Type_free(&filetype);
        OK(MPI_File_get_type_extent(file, MPI_INT, &extent));
        EQUAL(extent, 4);
        OK(MPI_File_get_position(file, &at));
        EQUAL(at, 0);
        OK(MPI_File_get_position_shared(file, &at));
        EQUAL(at, 0);
        stamp_fill(data, start + rank * 400, 400, 4);
        if (turn % 2) {
            OK(MPI_File_write_all(file, data, 60, MPI_INT, MPI_STATUS_IGNORE));
            OK(MPI_File_write(file, data + 240, 40, MPI_INT, MPI_STATUS_IGNORE));
        } else {
            OK(MPI_File_write_at_all(file, 30, data + 120, 70, MPI_INT, MPI_STATUS_IGNORE));
            OK(MPI_File_write_at(file, 0, data, 30, MPI_INT, MPI_STATUS_IGNORE));
        }
        for (int r = 0; r < size; r++) {
            for (int i = 0; i < 400; i++) {
                model[start + 4 * r + i / 4 * 4 * size + i % 4] = stamp(start + r * 400 + i, 4);
            }
        }
    }
    settle(file);
    OK(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    OK(MPI_File_get_size(file, &at));
    EQUAL(at, 6 * 400 * size + 15);
    unsigned char *found = malloc((size_t)at);
    OK(MPI_File_read_at_all(file, 0, found, (int)at, MPI_BYTE, MPI_STATUS_IGNORE));
    SAME(found, model, (size_t)at);
    /* The type may be freed while the view is in force. */
    OK(MPI_File_set_view(file, 4 * rank, MPI_INT, strided, "internal", MPI_INFO_NULL));
    MPI_Type_free(&strided);
    stamp_fill(data, rank * 400, 400, 4);
    OK(MPI_File_read_all(file, found, 100, MPI_INT, MPI_STATUS_IGNORE));
    SAME(found, data, 400);
    free(found), free(model), free(data);
    OK(MPI_File_close(&file));
    removed(name);
}

/* A matrix in blocks by subarrays and darrays, with ghost cells in memory. */
static void arrays(void)
{
    enum { rows = 37, columns = 53, ghost = 2 };
    const char *name = path("a");
    MPI_File file = created(MPI_COMM_WORLD, name);
    int processes[2] = {0, 0}, sizes[2] = {rows, columns};
    double *all = malloc(sizeof(double) * rows * columns);
    if (file == MPI_FILE_NULL) return;
    MPI_Dims_create(size, 2, processes);
    static const int spreads[][2] = {{MPI_DISTRIBUTE_BLOCK, MPI_DISTRIBUTE_BLOCK},
                                     {MPI_DISTRIBUTE_CYCLIC, MPI_DISTRIBUTE_BLOCK},
                                     {MPI_DISTRIBUTE_CYCLIC, MPI_DISTRIBUTE_CYCLIC}};
    for (int turn = 0; turn < 8; turn++) {
        int order = turn % 2 ? MPI_ORDER_FORTRAN : MPI_ORDER_C, arguments[2] = {MPI_DISTRIBUTE_DFLT_DARG, MPI_DISTRIBUTE_DFLT_DARG};
        MPI_Datatype view;
        if (turn >= 6) {
            /* By subarrays: rows alone, so that any number of ranks fits. */
            int from = rows * rank / size, to = rows * (rank + 1) / size, starts[2] = {from, 0}, parts[2] = {to - from, columns};
            if (order == MPI_ORDER_FORTRAN) {
                from = columns * rank / size, to = columns * (rank + 1) / size;
                starts[0] = 0, starts[1] = from, parts[0] = rows, parts[1] = to - from;
            }
            MPI_Type_create_subarray(2, sizes, parts, starts, order, MPI_DOUBLE, &view);
        } else {
            const int *spread = spreads[turn / 2];
            for (int i = 0; i < 2; i++) {
                if (spread[i] == MPI_DISTRIBUTE_CYCLIC) arguments[i] = 3;
            }
            MPI_Type_create_darray(size, rank, 2, sizes, (int *)spread, arguments, processes, order, MPI_DOUBLE, &view);
        }
        MPI_Type_commit(&view);
        int bytes;
        MPI_Type_size(view, &bytes);
        int mine = bytes / 8;
        /* The local part, in order, amid ghost cells: mine doubles spaced by ghost + 1. */
        double *local = malloc(sizeof(double) * (size_t)(mine + 1) * (ghost + 1)), *back = malloc(sizeof(double) * (size_t)(mine + 1) * (ghost + 1));
        MPI_Datatype memory;
        MPI_Type_vector(mine, 1, ghost + 1, MPI_DOUBLE, &memory);
        MPI_Type_commit(&memory);
        for (int i = 0; i < mine * (ghost + 1); i++) local[i] = 1e6 * turn + 1e4 * rank + i, back[i] = -1;
        MPI_Status status;
        OK(MPI_File_set_view(file, 24, MPI_DOUBLE, view, "native", MPI_INFO_NULL));
        OK(MPI_File_write_all(file, local, 1, memory, &status));
        COUNTED(status, memory, 1);
        settle(file);
        OK(MPI_File_read_at_all(file, 0, back, 1, memory, MPI_STATUS_IGNORE));
        for (int i = 0; i < mine; i++) {
            if (back[i * (ghost + 1)] != local[i * (ghost + 1)] || (i < mine - 1 && back[i * (ghost + 1) + 1] != -1)) {
                fail(__FILE__, __LINE__, "turn %d, element %d of %d: %g, not %g", turn, i, mine, back[i * (ghost + 1)], local[i * (ghost + 1)]);
                break;
            }
        }
        /* All of it at once, held against each rank's elements in the type's own order, by MPI_Pack. */
        OK(MPI_File_set_view(file, 24, MPI_DOUBLE, MPI_DOUBLE, "native", MPI_INFO_NULL));
        OK(MPI_File_read_at_all(file, 0, all, rows * columns, MPI_DOUBLE, &status));
        COUNTED(status, MPI_DOUBLE, rows * columns);
        double *packed = malloc((size_t)bytes + 8);
        int position = 0;
        MPI_Pack(all, 1, view, packed, bytes, &position, MPI_COMM_SELF);
        for (int i = 0; i < mine; i++) {
            if (packed[i] == local[i * (ghost + 1)]) continue;
            fail(__FILE__, __LINE__, "turn %d, element %d in the file: %g, not %g", turn, i, packed[i], local[i * (ghost + 1)]);
            break;
        }
        free(packed), free(local), free(back);
        MPI_Type_free(&memory);
        MPI_Type_free(&view);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    free(all);
    OK(MPI_File_close(&file));
    removed(name);
}

/* Memory by absolute addresses, backwards, below the buffer's beginning. */
static void memory(void)
{
    const char *name = path("a");
    MPI_File file = created(MPI_COMM_WORLD, name);
    if (file == MPI_FILE_NULL) return;
    int one[10], two[20], found[30];
    for (int i = 0; i < 10; i++) one[i] = 1000 * rank + i;
    for (int i = 0; i < 20; i++) two[i] = 1000 * rank + 500 + i;
    MPI_Aint addresses[2];
    int lengths[2] = {10, 20};
    MPI_Datatype absolute, backwards;
    MPI_Get_address(one, &addresses[0]);
    MPI_Get_address(two, &addresses[1]);
    MPI_Type_create_hindexed(2, lengths, addresses, MPI_INT, &absolute);
    MPI_Type_commit(&absolute);
    OK(MPI_File_write_at_all(file, rank * 120, MPI_BOTTOM, 1, absolute, MPI_STATUS_IGNORE));
    settle(file);
    memset(found, 0, sizeof found);
    OK(MPI_File_read_at(file, rank * 120, found, 30, MPI_INT, MPI_STATUS_IGNORE));
    SAME(found, one, sizeof one);
    SAME(found + 10, two, sizeof two);
    memset(one, 0, sizeof one);
    memset(two, 0, sizeof two);
    OK(MPI_File_read_at_all(file, rank * 120, MPI_BOTTOM, 1, absolute, MPI_STATUS_IGNORE));
    SAME(found, one, sizeof one);
    SAME(found + 10, two, sizeof two);
    MPI_Type_free(&absolute);
    /* From the buffer's end to its beginning. */
    MPI_Type_vector(30, 1, -1, MPI_INT, &backwards);
    MPI_Type_commit(&backwards);
    int reversed[30];
    memset(reversed, 0, sizeof reversed);
    OK(MPI_File_read_at_all(file, rank * 120, reversed + 29, 1, backwards, MPI_STATUS_IGNORE));
    for (int i = 0; i < 30; i++) EQUAL(reversed[29 - i], found[i]);
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_write_at_all(file, rank * 120, reversed + 29, 1, backwards, MPI_STATUS_IGNORE));
    settle(file);
    int again[30];
    OK(MPI_File_read_at_all(file, rank * 120, again, 30, MPI_INT, MPI_STATUS_IGNORE));
    SAME(again, found, sizeof found);
    MPI_Type_free(&backwards);
    OK(MPI_File_close(&file));
    removed(name);
}

/* Each rank another amount, at places out of order; all read everything. */
static void uneven(void)
{
    const char *name = path("a");
    MPI_File file = created(MPI_COMM_WORLD, name);
    if (file == MPI_FILE_NULL) return;
    for (int turn = 0; turn < 5; turn++) {
        long starts[65] = {0}, most = 1;
        for (int r = 0; r < size; r++) {
            static const long amounts[] = {0, 1, 70000, 4096, 333333};
            long amount = amounts[(size_t)(r + turn) % 5];
            starts[size - r] = amount;
        }
        for (int i = 0; i < size; i++) starts[i + 1] += starts[i];
        /* Rank r has the r-th from the end. */
        long from = starts[size - 1 - rank], length = starts[size - rank] - from;
        most += starts[size];
        unsigned char *data = malloc((size_t)length + 1), *all = malloc((size_t)most), *expected = malloc((size_t)most);
        stamp_fill(data, from, (size_t)length, 20 + (unsigned)turn);
        stamp_fill(expected, 0, (size_t)starts[size], 20 + (unsigned)turn);
        MPI_Status status;
        OK(MPI_File_write_at_all(file, from, data, (int)length, MPI_BYTE, &status));
        COUNTED(status, MPI_BYTE, length);
        settle(file);
        OK(MPI_File_read_at_all(file, 0, all, (int)starts[size], MPI_BYTE, &status));
        COUNTED(status, MPI_BYTE, starts[size]);
        SAME(all, expected, (size_t)starts[size]);
        free(data), free(all), free(expected);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    OK(MPI_File_close(&file));
    removed(name);
}

/* Views of which some ranks' have small pieces and others' none, in collective accesses that follow at once;
 * hints that come with a view are rank 0's, to whoever asks. */
static void mixed(void)
{
    enum { part = 4000, piece = 8 };
    static const char *const hints[] = {"automatic", "enable", "disable"};
    const char *name = path("a");
    MPI_File file = created(MPI_COMM_WORLD, name);
    if (file == MPI_FILE_NULL) return;
    MPI_Datatype bytes, strided;
    int fine = (size + 1) / 2, whole = part * size;
    MPI_Type_contiguous(piece, MPI_BYTE, &bytes);
    MPI_Type_create_resized(bytes, 0, (MPI_Aint)piece * fine, &strided);
    MPI_Type_commit(&strided);
    unsigned char *data = malloc(part), *all = malloc((size_t)whole), *expected = malloc((size_t)whole);
    /* Even ranks share the first parts, piece by piece; odd ones have the others, each its own. */
    for (int r = 0; r < size; r++) {
        for (int i = 0; i < part; i++) {
            int place = r % 2 ? (fine + r / 2) * part + i : (i / piece * fine + r / 2) * piece + i % piece;
            expected[place] = (unsigned char)(r * 37 + i * 11 + i / 256);
            if (r == rank) data[i] = expected[place];
        }
    }
    for (int turn = 0; turn < 6; turn++) {
        MPI_Info info = MPI_INFO_NULL, shown;
        const char *hint = hints[turn / 2];
        char value[64];
        int found;
        /* The standard wants the same from all; the driver gets along without. */
        if (rank == 0 || !driver) {
            MPI_Info_create(&info);
            MPI_Info_set(info, "romio_cb_write", hint);
            MPI_Info_set(info, "romio_cb_read", hint);
        }
        for (int reading = 0; reading < 2; reading++) {
            MPI_Offset start = rank % 2 ? (MPI_Offset)(fine + rank / 2) * part : (MPI_Offset)rank / 2 * piece;
            OK(MPI_File_set_view(file, start, MPI_BYTE, rank % 2 ? MPI_BYTE : strided, "native", reading ? MPI_INFO_NULL : info));
            if (!reading) {
                OK(MPI_File_write_at_all(file, 0, data, part, MPI_BYTE, MPI_STATUS_IGNORE));
            } else {
                memset(all, 0, part);
                OK(MPI_File_read_at_all(file, 0, all, part, MPI_BYTE, MPI_STATUS_IGNORE));
                SAME(all, data, part);
            }
            /* Who gave none has rank 0's as soon as they have accessed the file together. */
            if (driver && turn % 2 == 0) {
                OK(MPI_File_get_info(file, &shown));
                MPI_Info_get(shown, "romio_cb_write", 63, value, &found);
                CHECK(found && strcmp(value, hint) == 0);
                MPI_Info_free(&shown);
            }
        }
        MPI_Barrier(MPI_COMM_WORLD);
        OK(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
        OK(MPI_File_read_at(file, 0, all, whole, MPI_BYTE, MPI_STATUS_IGNORE));
        SAME(all, expected, (size_t)whole);
        /* Other bytes for the next turn. */
        MPI_Barrier(MPI_COMM_WORLD);
        for (int i = 0; i < part; i++) data[i] ^= 0xff;
        for (int i = 0; i < whole; i++) expected[i] ^= 0xff;
        if (info != MPI_INFO_NULL) MPI_Info_free(&info);
    }
    MPI_Type_free(&bytes);
    MPI_Type_free(&strided);
    free(data), free(all), free(expected);
    OK(MPI_File_close(&file));
    removed(name);
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        {"calls", calls},   {"seeks", seeks},   {"ends", ends},     {"nothing", nothing}, {"views", views},
        {"arrays", arrays}, {"memory", memory}, {"uneven", uneven}, {"mixed", mixed},   {NULL, NULL},
    };
    return check_main(argc, argv, cases);
}
