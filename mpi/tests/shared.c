/* shared.c - shared file pointers: everybody's records, each once; ordered ones in the order of ranks. */
#include "check.h"

#include <stdlib.h>
#include <string.h>

/* Records of three ints: who, which, and their sum. */
enum { record = 3, each = 40 };

/* Reads all of the file, and sees each rank's records once, those of one rank in order. */
static void check_records(const char *name, int per_rank, int more)
{
    MPI_File file = opened(MPI_COMM_WORLD, name, MPI_MODE_RDONLY);
    int total = per_rank * size;
    int *all = calloc((size_t)total * record + 1, sizeof *all), *next = calloc((size_t)size, sizeof *next);
    MPI_Offset bytes = 0;
    if (file == MPI_FILE_NULL) return;
    OK(MPI_File_get_size(file, &bytes));
    EQUAL(bytes, (MPI_Offset)total * record * 4 + more);
    OK(MPI_File_read_at_all(file, 0, all, total * record, MPI_INT, MPI_STATUS_IGNORE));
    for (int i = 0; i < total; i++) {
        int who = all[record * i], which = all[record * i + 1];
        if (who < 0 || who >= size || all[record * i + 2] != who + which) {
            fail(__FILE__, __LINE__, "record %d is torn: %d %d %d", i, who, which, all[record * i + 2]);
            break;
        }
        if (which != next[who]++) {
            fail(__FILE__, __LINE__, "record %d is number %d of rank %d, not %d", i, which, who, next[who] - 1);
            break;
        }
    }
    free(all), free(next);
    OK(MPI_File_close(&file));
}

static void make_record(int *values, int which)
{
    values[0] = rank;
    values[1] = which;
    values[2] = rank + which;
}

static void everyone(void)
{
    const char *name = path("a");
    MPI_File file = created(MPI_COMM_WORLD, name);
    MPI_Status status;
    MPI_Offset at;
    int values[record];
    if (file == MPI_FILE_NULL) return;
    for (int i = 0; i < each; i++) {
        make_record(values, i);
        OK(MPI_File_write_shared(file, values, record, MPI_INT, &status));
        COUNTED(status, MPI_INT, record);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_get_position_shared(file, &at));
    EQUAL(at, size * each * record * 4);
    /* The individual pointers have not moved. */
    OK(MPI_File_get_position(file, &at));
    EQUAL(at, 0);
    settle(file);
    check_records(name, each, 0);
    /* Read by all: each record once; the sum tells. */
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
    long long sum = 0, sums = 0, expected = 0;
    int count = 0, reads = 0;
    do {
        OK(MPI_File_read_shared(file, values, record, MPI_INT, &status));
        MPI_Get_count(&status, MPI_INT, &count);
        if (count == record) sum += values[0] * 1000 + values[1], reads++;
        else EQUAL(count, 0);
    } while (count == record && reads < each * size);
    MPI_Allreduce(&sum, &sums, 1, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
    for (int r = 0; r < size; r++) {
        for (int i = 0; i < each; i++) expected += r * 1000 + i;
    }
    EQUAL(sums, expected);
    OK(MPI_File_close(&file));
    removed(name);
}

static void ordered(void)
{
    const char *name = path("a");
    MPI_File file = created(MPI_COMM_WORLD, name);
    MPI_Status status;
    MPI_Offset at, where = 0;
    if (file == MPI_FILE_NULL) return;
    for (int turn = 0; turn < 10; turn++) {
        /* Rank r has r % 4 + turn ints: some nothing. */
        int mine = rank % 4 + turn, values[20], before = 0, total = 0;
        for (int i = 0; i < mine; i++) values[i] = turn * 10000 + rank * 100 + i;
        for (int r = 0; r < size; r++) {
            if (r < rank) before += r % 4 + turn;
            total += r % 4 + turn;
        }
        if (turn % 3 == 0) {
            OK(MPI_File_write_ordered_begin(file, values, mine, MPI_INT));
            OK(MPI_File_write_ordered_end(file, values, &status));
        } else {
            OK(MPI_File_write_ordered(file, values, mine, MPI_INT, &status));
        }
        COUNTED(status, MPI_INT, mine);
        settle(file);
        int found[20];
        OK(MPI_File_read_at(file, where + before * 4, found, mine, MPI_INT, &status));
        SAME(found, values, (size_t)mine * 4);
        where += total * 4;
        OK(MPI_File_get_position_shared(file, &at));
        EQUAL(at, where);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    OK(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
    for (int turn = 0; turn < 10; turn++) {
        int mine = rank % 4 + turn, values[20];
        memset(values, 0xff, sizeof values);
        if (turn % 2) {
            OK(MPI_File_read_ordered(file, values, mine, MPI_INT, &status));
        } else {
            OK(MPI_File_read_ordered_begin(file, values, mine, MPI_INT));
            OK(MPI_File_read_ordered_end(file, values, &status));
        }
        COUNTED(status, MPI_INT, mine);
        for (int i = 0; i < mine; i++) EQUAL(values[i], turn * 10000 + rank * 100 + i);
    }
    OK(MPI_File_close(&file));
    removed(name);
}

static void nonblocking(void)
{
    const char *name = path("a");
    MPI_File file = created(MPI_COMM_WORLD, name);
    MPI_Offset at;
    static int values[each][record];
    MPI_Request requests[each];
    MPI_Status statuses[each];
    if (file == MPI_FILE_NULL) return;
    for (int i = 0; i < each; i++) {
        make_record(values[i], i);
        OK(MPI_File_iwrite_shared(file, values[i], record, MPI_INT, &requests[i]));
    }
    OK(MPI_Waitall(each, requests, statuses));
    for (int i = 0; i < each; i++) COUNTED(statuses[i], MPI_INT, record);
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_get_position_shared(file, &at));
    EQUAL(at, size * each * record * 4);
    settle(file);
    check_records(name, each, 0);
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
    long long sum = 0, sums = 0, expected = 0;
    for (int i = 0; i < each; i++) OK(MPI_File_iread_shared(file, values[i], record, MPI_INT, &requests[i]));
    OK(MPI_Waitall(each, requests, statuses));
    for (int i = 0; i < each; i++) {
        COUNTED(statuses[i], MPI_INT, record);
        sum += values[i][0] * 1000 + values[i][1];
    }
    MPI_Allreduce(&sum, &sums, 1, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
    for (int r = 0; r < size; r++) {
        for (int i = 0; i < each; i++) expected += r * 1000 + i;
    }
    EQUAL(sums, expected);
    OK(MPI_File_close(&file));
    removed(name);
}

/* In a view all have in common, pointers count etypes; seeks from the pointer and the end; two files have two. */
static void seeks(void)
{
    const char *name = path("a"), *other_name = path("b");
    MPI_File file = created(MPI_COMM_WORLD, name), other = created(MPI_COMM_WORLD, other_name);
    MPI_Offset at;
    MPI_Datatype spaced;
    int value = rank + 5;
    if (file == MPI_FILE_NULL || other == MPI_FILE_NULL) return;
    MPI_Type_create_resized(MPI_INT, 0, 12, &spaced);
    MPI_Type_commit(&spaced);
    OK(MPI_File_set_view(file, 20, MPI_INT, spaced, "native", MPI_INFO_NULL));
    OK(MPI_File_seek_shared(file, 7, MPI_SEEK_SET));
    OK(MPI_File_seek_shared(file, 3, MPI_SEEK_CUR));
    OK(MPI_File_get_position_shared(file, &at));
    EQUAL(at, 10);
    OK(MPI_File_write_ordered(file, &value, 1, MPI_INT, MPI_STATUS_IGNORE));
    OK(MPI_File_get_position_shared(file, &at));
    EQUAL(at, 10 + size);
    OK(MPI_File_get_position_shared(other, &at));
    EQUAL(at, 0);
    settle(file);
    int found = -1;
    OK(MPI_File_read_at(file, 10 + rank, &found, 1, MPI_INT, MPI_STATUS_IGNORE));
    EQUAL(found, value);
    /* ROMIO's other ranks wait for ever. */
    if (driver) FAILS(MPI_File_seek_shared(file, -1, MPI_SEEK_SET), MPI_ERR_ARG);
    OK(MPI_File_get_position_shared(file, &at));
    EQUAL(at, 10 + size);
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    OK(MPI_File_get_position_shared(file, &at));
    EQUAL(at, 0);
    OK(MPI_File_seek_shared(file, -4, MPI_SEEK_END));
    OK(MPI_File_get_position_shared(file, &at));
    EQUAL(at, 20 + 12 * (10 + size - 1));
    MPI_Type_free(&spaced);
    OK(MPI_File_close(&file));
    OK(MPI_File_close(&other));
    /* Every open has a pointer of its own. */
    file = opened(MPI_COMM_WORLD, name, MPI_MODE_RDWR);
    other = opened(MPI_COMM_WORLD, name, MPI_MODE_RDWR);
    if (file == MPI_FILE_NULL || other == MPI_FILE_NULL) return;
    OK(MPI_File_write_ordered(file, &value, 1, MPI_INT, MPI_STATUS_IGNORE));
    OK(MPI_File_get_position_shared(other, &at));
    EQUAL(at, 0);
    OK(MPI_File_get_position_shared(file, &at));
    EQUAL(at, 4 * size);
    OK(MPI_File_close(&file));
    OK(MPI_File_close(&other));
    removed(name);
    removed(other_name);
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        {"everyone", everyone}, {"ordered", ordered}, {"nonblocking", nonblocking}, {"seeks", seeks}, {NULL, NULL},
    };
    return check_main(argc, argv, cases);
}
