/* limits.c - large counts, offsets beyond 4 GiB, many files at once and one after another. */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Few bytes, far apart. */
static void sparse(void)
{
    const char *name = path("a");
    MPI_File file = created(MPI_COMM_WORLD, name);
    MPI_Offset far = (MPI_Offset)5 << 30, size_now = 0;
    unsigned char data[1000], found[1000], zeros[1000] = {0};
    if (file == MPI_FILE_NULL) return;
    for (int turn = 0; turn < 3; turn++) {
        MPI_Offset at = far * (turn + 1) + rank * 100000 - 500;
        stamp_fill(data, at, 1000, 7);
        OK(MPI_File_write_at_all(file, at, data, 1000, MPI_BYTE, MPI_STATUS_IGNORE));
        settle(file);
        OK(MPI_File_get_size(file, &size_now));
        EQUAL(size_now, far * (turn + 1) + (size - 1) * 100000 + 500);
        memset(found, 1, 1000);
        OK(MPI_File_read_at_all(file, at - 1000, found, 1000, MPI_BYTE, MPI_STATUS_IGNORE));
        SAME(found, zeros, 1000);
        OK(MPI_File_seek(file, at, MPI_SEEK_SET));
        OK(MPI_File_read(file, found, 1000, MPI_BYTE, MPI_STATUS_IGNORE));
        SAME(found, data, 1000);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    /* A view whose elements are 3 GiB apart. */
    MPI_Datatype view;
    MPI_Aint places[] = {(MPI_Aint)rank * 4096, ((MPI_Aint)3 << 30) + (MPI_Aint)rank * 4096};
    MPI_Type_create_hindexed_block(2, 100, places, MPI_INT, &view);
    MPI_Type_create_resized(view, 0, (MPI_Aint)6 << 30, &view);
    MPI_Type_commit(&view);
    OK(MPI_File_set_view(file, 8192, MPI_INT, view, "native", MPI_INFO_NULL));
    int values[400], back[400];
    for (int i = 0; i < 400; i++) values[i] = 1000 * rank + i, back[i] = -1;
    OK(MPI_File_write_all(file, values, 400, MPI_INT, MPI_STATUS_IGNORE));
    settle(file);
    OK(MPI_File_read_at_all(file, 0, back, 400, MPI_INT, MPI_STATUS_IGNORE));
    SAME(back, values, sizeof values);
    MPI_Offset at;
    OK(MPI_File_get_byte_offset(file, 300, &at));
    EQUAL(at, 8192 + ((MPI_Offset)9 << 30) + rank * 4096);
    HOLDS(name, at, values + 300, 400);
    OK(MPI_File_set_size(file, (MPI_Offset)1 << 41));
    OK(MPI_File_get_size(file, &at));
    EQUAL(at, (MPI_Offset)1 << 41);
    MPI_Type_free(&view);
    OK(MPI_File_close(&file));
    removed(name);
}

/* Every call of the forms with large counts. */
static void large_counts(void)
{
#if MPI_VERSION >= 4
    const char *name = path("a");
    MPI_File file = created(MPI_COMM_WORLD, name);
    MPI_Status status;
    MPI_Request request;
    enum { n = 3000 };
    int values[n], found[n], next = (rank + 1) % size;
    MPI_Offset mine = (MPI_Offset)rank * n * 4, other = (MPI_Offset)next * n * 4;
    if (file == MPI_FILE_NULL) return;
    for (int way = 0; way < 11; way++) {
        for (int i = 0; i < n; i++) values[i] = way * 1000000 + rank * 10000 + i;
        OK(MPI_File_seek(file, mine, MPI_SEEK_SET));
        OK(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
        request = MPI_REQUEST_NULL;
        switch (way) {
        case 0: OK(MPI_File_write_at_c(file, mine, values, n, MPI_INT, &status)); break;
        case 1: OK(MPI_File_write_at_all_c(file, mine, values, n, MPI_INT, &status)); break;
        case 2: OK(MPI_File_write_c(file, values, n, MPI_INT, &status)); break;
        case 3: OK(MPI_File_write_all_c(file, values, n, MPI_INT, &status)); break;
        case 4: OK(MPI_File_iwrite_at_c(file, mine, values, n, MPI_INT, &request)); break;
        case 5: OK(MPI_File_iwrite_at_all_c(file, mine, values, n, MPI_INT, &request)); break;
        case 6: OK(MPI_File_iwrite_c(file, values, n, MPI_INT, &request)); break;
        case 7: OK(MPI_File_iwrite_all_c(file, values, n, MPI_INT, &request)); break;
        case 8: OK(MPI_File_write_ordered_c(file, values, n, MPI_INT, &status)); break;
        case 9:
            OK(MPI_File_write_at_all_begin_c(file, mine, values, n, MPI_INT));
            OK(MPI_File_write_at_all_end(file, values, &status));
            break;
        default:
            OK(MPI_File_write_all_begin_c(file, values, n, MPI_INT));
            OK(MPI_File_write_all_end(file, values, &status));
            break;
        }
        if (request != MPI_REQUEST_NULL) OK(MPI_Wait(&request, &status));
        MPI_Count count = -1;
        OK(MPI_Get_count_c(&status, MPI_INT, &count));
        EQUAL(count, n);
        settle(file);
        for (int i = 0; i < n; i++) values[i] = way * 1000000 + next * 10000 + i;
        memset(found, 0, sizeof found);
        OK(MPI_File_seek(file, other, MPI_SEEK_SET));
        request = MPI_REQUEST_NULL;
        switch (way) {
        case 0: OK(MPI_File_read_at_c(file, other, found, n, MPI_INT, &status)); break;
        case 1: OK(MPI_File_read_at_all_c(file, other, found, n, MPI_INT, &status)); break;
        case 2: OK(MPI_File_read_c(file, found, n, MPI_INT, &status)); break;
        case 3: OK(MPI_File_read_all_c(file, found, n, MPI_INT, &status)); break;
        case 4: OK(MPI_File_iread_at_c(file, other, found, n, MPI_INT, &request)); break;
        case 5: OK(MPI_File_iread_at_all_c(file, other, found, n, MPI_INT, &request)); break;
        case 6: OK(MPI_File_iread_c(file, found, n, MPI_INT, &request)); break;
        case 7: OK(MPI_File_iread_all_c(file, found, n, MPI_INT, &request)); break;
        case 8:
            OK(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
            OK(MPI_File_read_ordered_c(file, found, n, MPI_INT, &status));
            for (int i = 0; i < n; i++) values[i] = way * 1000000 + rank * 10000 + i;
            break;
        case 9:
            OK(MPI_File_read_at_all_begin_c(file, other, found, n, MPI_INT));
            OK(MPI_File_read_at_all_end(file, found, &status));
            break;
        default:
            OK(MPI_File_read_all_begin_c(file, found, n, MPI_INT));
            OK(MPI_File_read_all_end(file, found, &status));
            break;
        }
        if (request != MPI_REQUEST_NULL) OK(MPI_Wait(&request, &status));
        OK(MPI_Get_count_c(&status, MPI_INT, &count));
        EQUAL(count, n);
        SAME(found, values, sizeof values);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    MPI_Count extent = -1;
    OK(MPI_File_get_type_extent_c(file, MPI_DOUBLE, &extent));
    EQUAL(extent, 8);
    /* Shared pointers, by one rank. */
    OK(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
    if (rank == 0) {
        OK(MPI_File_write_shared_c(file, values, n, MPI_INT, &status));
        OK(MPI_File_iwrite_shared_c(file, values, n, MPI_INT, &request));
        OK(MPI_Wait(&request, &status));
    }
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == size - 1) {
        OK(MPI_File_read_shared_c(file, found, n, MPI_INT, &status));
        OK(MPI_File_iread_shared_c(file, found, n, MPI_INT, &request));
        OK(MPI_Wait(&request, &status));
        OK(MPI_Get_count_c(&status, MPI_INT, &(MPI_Count){0}));
    }
    OK(MPI_File_write_ordered_begin_c(file, values, n, MPI_INT));
    OK(MPI_File_write_ordered_end(file, values, &status));
    OK(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
    OK(MPI_File_read_ordered_begin_c(file, found, n, MPI_INT));
    OK(MPI_File_read_ordered_end(file, found, &status));

    /* Types that can only be made with large counts, on both sides. */
    MPI_Datatype view, memory;
    MPI_Count lengths[] = {5, 7}, places[] = {(MPI_Count)rank * 12 * 4, ((MPI_Count)5 << 30) + (MPI_Count)rank * 12 * 4};
    MPI_Type_create_hindexed_c(2, lengths, places, MPI_INT, &view);
    MPI_Type_commit(&view);
    MPI_Type_vector_c(12, 1, 3, MPI_INT, &memory);
    MPI_Type_commit(&memory);
    OK(MPI_File_set_view(file, 0, MPI_INT, view, "native", MPI_INFO_NULL));
    for (int i = 0; i < 36; i++) values[i] = 70000 + rank * 1000 + i, found[i] = -1;
    OK(MPI_File_write_at_all_c(file, 0, values, 1, memory, &status));
    settle(file);
    OK(MPI_File_read_at_all_c(file, 0, found, 1, memory, &status));
    for (int i = 0; i < 34; i++) EQUAL(found[i], i % 3 ? -1 : values[i]);
    MPI_Type_free(&view);
    MPI_Type_free(&memory);
    OK(MPI_File_close(&file));
    removed(name);
#else
    note("skipped: this MPI has no forms with large counts");
#endif
}

/* More bytes than an int counts, by the same few of memory over and over, into a pool or disk that has room. */
static void more_than_int(void)
{
    const char *name = path("a");
    if (!getenv("WEIR_MPI_LARGE")) {
        note("skipped: writes 2.5 GiB, if WEIR_MPI_LARGE is set");
        return;
    }
    MPI_File file = created(MPI_COMM_WORLD, name);
    if (file == MPI_FILE_NULL) return;
    /* 2.5 GiB as one element of a type with 2,560 times the same MiB. */
    static unsigned char block[1 << 20], found[1 << 20];
    MPI_Datatype mib, repeated;
    MPI_Type_contiguous(1 << 20, MPI_BYTE, &mib);
    MPI_Type_create_hvector(2560, 1, 0, mib, &repeated);
    MPI_Type_commit(&mib);
    MPI_Type_commit(&repeated);
    stamp_fill(block, 0, sizeof block, 8);
    if (rank == size - 1) {
        MPI_Status status;
        MPI_Count count = -1;
        OK(MPI_File_write_at(file, 0, block, 1, repeated, &status));
        OK(MPI_Get_elements_x(&status, MPI_BYTE, &count));
        EQUAL(count, (MPI_Count)2560 << 20);
        for (int i = 0; i < 2560; i += 511) {
            OK(MPI_File_read_at(file, (MPI_Offset)i << 20, found, 1, mib, &status));
            SAME(found, block, sizeof block);
        }
    }
    MPI_Type_free(&mib);
    MPI_Type_free(&repeated);
    OK(MPI_File_close(&file));
    removed(name);
}

static void many_open(void)
{
    const char *name = path("");
    int wanted = getenv("WEIR_MPI_FILES") ? atoi(getenv("WEIR_MPI_FILES")) : 1500;
    MPI_File *files = calloc((size_t)wanted, sizeof *files);
    char one[1100];
    int open = 0;
    for (; open < wanted; open++) {
        snprintf(one, sizeof one, "%s%d", name, open % 50);
        int error = MPI_File_open(MPI_COMM_WORLD, one, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &files[open]);
        if (!everywhere(MPI_COMM_WORLD, error == MPI_SUCCESS)) {
            OK(error);
            break;
        }
    }
    EQUAL(open, wanted);
    for (int i = 0; i < open; i += 97) {
        int value = i, found = -1;
        OK(MPI_File_write_at_all(files[i], 4 * rank, &value, 1, MPI_INT, MPI_STATUS_IGNORE));
        OK(MPI_File_read_at(files[i], 4 * rank, &found, 1, MPI_INT, MPI_STATUS_IGNORE));
        EQUAL(found, i);
    }
    for (int i = 0; i < open; i++) OK(MPI_File_close(&files[i]));
    for (int i = 0; i < 50; i++) {
        snprintf(one, sizeof one, "%s%d", name, i);
        if (rank == 0) MPI_File_delete(one, MPI_INFO_NULL);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    free(files);
}

static void in_sequence(void)
{
    const char *name = path("a");
    int wanted = getenv("WEIR_MPI_SEQUENCE") ? atoi(getenv("WEIR_MPI_SEQUENCE")) : 5000;
    MPI_File file;
    for (int i = 0; i < wanted; i++) {
        int error = MPI_File_open(i % 10 ? MPI_COMM_SELF : MPI_COMM_WORLD, name, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file);
        if (!OK(error)) break;
        if (i % 500 == 0) OK(MPI_File_write_at(file, 4 * rank, &i, 1, MPI_INT, MPI_STATUS_IGNORE));
        if (!OK(MPI_File_close(&file))) break;
    }
    removed(name);
}

/* A file that stays open for longer than the leave to use it is good for: of each kind of call the first
 * one after that finds it lapsed. */
static void outlasting(void)
{
    const char *name = path("a");
    if (!getenv("WEIR_MPI_LAPSE")) {
        note("skipped: waits, for WEIR_MPI_LAPSE seconds at a time");
        return;
    }
    double lapse = atof(getenv("WEIR_MPI_LAPSE"));
    MPI_File file = created(MPI_COMM_WORLD, name);
    if (file == MPI_FILE_NULL) return;
    enum { PIECE = 3000 };
    static int values[PIECE], found[PIECE];
    MPI_Offset at = (MPI_Offset)rank * PIECE * 4, bytes = 0;
    MPI_Datatype every;
    MPI_Request request;
    MPI_Status status;
    MPI_Type_vector(PIECE, 1, size, MPI_INT, &every);
    MPI_Type_commit(&every);
    for (int turn = 0; turn < 12; turn++) {
        for (int i = 0; i < PIECE; i++) values[i] = turn * 1000003 + rank * 10007 + i, found[i] = -1;
        usleep((useconds_t)(lapse * 1e6));
        switch (turn) {
        case 0: OK(MPI_File_write_at(file, at, values, PIECE, MPI_INT, &status)); break;
        case 1: OK(MPI_File_write_at_all(file, at, values, PIECE, MPI_INT, &status)); break;
        case 2:
            OK(MPI_File_iwrite_at(file, at, values, PIECE, MPI_INT, &request));
            OK(MPI_Wait(&request, &status));
            break;
        case 3:
            OK(MPI_File_set_view(file, 4 * rank, MPI_INT, every, "native", MPI_INFO_NULL));
            OK(MPI_File_write_at_all(file, 0, values, PIECE, MPI_INT, &status));
            break;
        case 4: OK(MPI_File_write_at(file, 0, values, PIECE, MPI_INT, &status)); break;
        case 5:
            OK(MPI_File_write_at_all_begin(file, 0, values, PIECE, MPI_INT));
            OK(MPI_File_write_at_all_end(file, values, &status));
            OK(MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
            break;
        case 6:
            OK(MPI_File_set_atomicity(file, 1));
            OK(MPI_File_write_at(file, at / 4, values, PIECE, MPI_INT, &status));
            OK(MPI_File_set_atomicity(file, 0));
            break;
        case 7:
            OK(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
            OK(MPI_File_write_ordered(file, values, PIECE, MPI_INT, &status));
            break;
        case 8: OK(MPI_File_set_size(file, 4)); break;
        case 9: OK(MPI_File_preallocate(file, (MPI_Offset)size * PIECE * 8)); break;
        case 10: OK(MPI_File_sync(file)); break;
        case 11: OK(MPI_File_get_size(file, &bytes)); EQUAL(bytes, (MPI_Offset)size * PIECE * 8); break;
        }
        if (turn >= 8) continue;
        COUNTED(status, MPI_INT, PIECE);
        usleep((useconds_t)(lapse * 1e6));
        MPI_Barrier(MPI_COMM_WORLD);
        if (turn >= 3 && turn <= 5) OK(MPI_File_set_view(file, 4 * rank, MPI_INT, every, "native", MPI_INFO_NULL));
        MPI_Offset from = turn >= 3 && turn <= 5 ? 0 : turn >= 6 ? at / 4 : at;
        if (turn % 2)
            OK(MPI_File_read_at(file, from, found, PIECE, MPI_INT, &status));
        else {
            OK(MPI_File_iread_at(file, from, found, PIECE, MPI_INT, &request));
            OK(MPI_Wait(&request, &status));
        }
        SAME(found, values, sizeof values);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    MPI_Type_free(&every);
    OK(MPI_File_close(&file));
    removed(name);
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        {"sparse", sparse}, {"large_counts", large_counts}, {"more_than_int", more_than_int}, {"many_open", many_open}, {"in_sequence", in_sequence}, {"outlasting", outlasting}, {NULL, NULL},
    };
    return check_main(argc, argv, cases);
}
