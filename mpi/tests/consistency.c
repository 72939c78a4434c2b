/* consistency.c - who sees whose bytes when: atomic mode with overlapping writers, sync, closing and opening. */
#include "check.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { rows = 40, row = 512, area = rows * row };

/* All ranks write the same places at once, each its own byte: in atomic mode one of them has won all of it. */
static void overlapping(void)
{
    const char *name = path("a");
    MPI_File file = created(MPI_COMM_WORLD, name);
    MPI_Datatype strided;
    unsigned char *mine = malloc(area), *found = malloc(2 * area);
    int winners = 0;
    if (file == MPI_FILE_NULL) return;
    MPI_Type_vector(rows, row, 2 * row, MPI_BYTE, &strided);
    MPI_Type_commit(&strided);
    memset(mine, rank + 1, area);
    OK(MPI_File_set_atomicity(file, 1));
    for (int turn = 0; turn < rounds; turn++) {
        bool spread = turn % 2;
        OK(MPI_File_set_view(file, 0, MPI_BYTE, spread ? strided : MPI_BYTE, "native", MPI_INFO_NULL));
        MPI_Barrier(MPI_COMM_WORLD);
        if (turn % 4 < 2) OK(MPI_File_write_at(file, 0, mine, area, MPI_BYTE, MPI_STATUS_IGNORE));
        else OK(MPI_File_write_at_all(file, 0, mine, area, MPI_BYTE, MPI_STATUS_IGNORE));
        /* A read among the writes sees one of them whole, at least this rank's own. */
        OK(MPI_File_read_at(file, 0, found, area, MPI_BYTE, MPI_STATUS_IGNORE));
        CHECK(found[0] >= 1 && found[0] <= size);
        for (int i = 1; i < area; i++) {
            if (found[i] == found[0]) continue;
            fail(__FILE__, __LINE__, "turn %d: byte %d read among the writers is rank %d's, the first one rank %d's", turn, i, found[i] - 1, found[0] - 1);
            break;
        }
        MPI_Barrier(MPI_COMM_WORLD);
        OK(MPI_File_read_at(file, 0, found, area, MPI_BYTE, MPI_STATUS_IGNORE));
        for (int i = 1; i < area; i++) {
            if (found[i] == found[0]) continue;
            fail(__FILE__, __LINE__, "turn %d: byte %d is rank %d's, the first one rank %d's", turn, i, found[i] - 1, found[0] - 1);
            break;
        }
        if (found[0] == rank + 1) winners++;
        MPI_Barrier(MPI_COMM_WORLD);
    }
    int all;
    MPI_Allreduce(&winners, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    EQUAL(all, rounds);
    MPI_Type_free(&strided);
    free(mine), free(found);
    OK(MPI_File_close(&file));
    removed(name);
}

/* In atomic mode a write is seen by whoever was told of it, with no sync. */
static void told(void)
{
    const char *name = path("a");
    MPI_File file = created(MPI_COMM_WORLD, name);
    if (file == MPI_FILE_NULL) return;
    OK(MPI_File_set_atomicity(file, 1));
    int value = 0, next = (rank + 1) % size, previous = (rank + size - 1) % size;
    for (int turn = 1; turn <= rounds; turn++) {
        int token = turn, found = -1;
        /* A token goes round; each adds one to the counter in the file. */
        if (size > 1 && (rank != 0 || turn > 1)) MPI_Recv(&token, 1, MPI_INT, previous, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (rank == 0 && turn == 1) OK(MPI_File_write_at(file, 1000, &value, 1, MPI_INT, MPI_STATUS_IGNORE));
        OK(MPI_File_read_at(file, 1000, &found, 1, MPI_INT, MPI_STATUS_IGNORE));
        EQUAL(found, (turn - 1) * size + rank);
        found++;
        OK(MPI_File_write_at(file, 1000, &found, 1, MPI_INT, MPI_STATUS_IGNORE));
        if (size > 1) MPI_Send(&token, 1, MPI_INT, next, 0, MPI_COMM_WORLD);
    }
    if (rank == 0 && size > 1) {
        int token;
        MPI_Recv(&token, 1, MPI_INT, previous, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_read_at_all(file, 1000, &value, 1, MPI_INT, MPI_STATUS_IGNORE));
    EQUAL(value, rounds * size);
    OK(MPI_File_set_atomicity(file, 0));
    OK(MPI_File_close(&file));
    removed(name);
}

/* Without it, after sync, barrier, sync; and after a close and an open. */
static void synced(void)
{
    const char *name = path("a");
    MPI_File file = created(MPI_COMM_WORLD, name);
    if (file == MPI_FILE_NULL) return;
    int next = (rank + 1) % size;
    for (int turn = 0; turn < 6; turn++) {
        int value = turn * 100 + rank, found = -1;
        OK(MPI_File_write_at(file, 4 * rank, &value, 1, MPI_INT, MPI_STATUS_IGNORE));
        if (turn % 2) {
            settle(file);
        } else {
            OK(MPI_File_close(&file));
            file = opened(MPI_COMM_WORLD, name, MPI_MODE_RDWR);
            if (file == MPI_FILE_NULL) return;
        }
        OK(MPI_File_read_at(file, 4 * next, &found, 1, MPI_INT, MPI_STATUS_IGNORE));
        EQUAL(found, turn * 100 + next);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    OK(MPI_File_close(&file));
    removed(name);
}

/* Ranks fill in one another's gaps, byte by byte, at once: nothing of a neighbour's is ever put back. */
static void interleaved(void)
{
    enum { bytes = 3000 };
    const char *name = path("a");
    MPI_File file = created(MPI_COMM_WORLD, name);
    MPI_Datatype spaced;
    if (file == MPI_FILE_NULL) return;
    unsigned char *mine = malloc(bytes), *found = malloc((size_t)(bytes * size)), *expected = malloc((size_t)(bytes * size));
    MPI_Type_create_resized(MPI_BYTE, 0, size, &spaced);
    MPI_Type_commit(&spaced);
    OK(MPI_File_set_view(file, rank, MPI_BYTE, spaced, "native", MPI_INFO_NULL));
    for (unsigned turn = 0; turn < 6; turn++) {
        for (int i = 0; i < bytes; i++) mine[i] = stamp((long long)i * size + rank, turn);
        for (int i = 0; i < bytes * size; i++) expected[i] = stamp(i, turn);
        if (turn % 2) OK(MPI_File_write_at_all(file, 0, mine, bytes, MPI_BYTE, MPI_STATUS_IGNORE));
        else OK(MPI_File_write_at(file, 0, mine, bytes, MPI_BYTE, MPI_STATUS_IGNORE));
        settle(file);
        HOLDS(name, 0, expected, (size_t)(bytes * size));
        OK(MPI_File_read_at_all(file, 0, found, bytes, MPI_BYTE, MPI_STATUS_IGNORE));
        SAME(found, mine, bytes);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    MPI_Type_free(&spaced);
    free(mine), free(found), free(expected);
    OK(MPI_File_close(&file));
    removed(name);
}

/* What was written together is there when it is read together, also from the rank that came late, and is written
 * anew only when all have read it: programs count on what ROMIO does, though the standard wants more of them. */
static void in_turn(void)
{
    enum { bytes = 2 << 20 };
    const char *name = path("a");
    MPI_File file = created(MPI_COMM_WORLD, name);
    unsigned char *mine = malloc(bytes), *found = malloc((size_t)bytes * size);
    if (file == MPI_FILE_NULL || !driver) return;
    for (unsigned turn = 0; turn < 32; turn++) {
        /* One has a long time to read. */
        int reads = rank == (int)turn % size ? bytes * size : 0;
        stamp_fill(mine, (MPI_Offset)rank * bytes, bytes, turn);
        if (rank == (int)(turn / 2) % size && turn % 2) usleep(30000);
        OK(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
        if (turn < 16) {
            OK(MPI_File_write_at_all(file, (MPI_Offset)rank * bytes, mine, bytes, MPI_BYTE, MPI_STATUS_IGNORE));
            OK(MPI_File_read_at_all(file, 0, found, reads, MPI_BYTE, MPI_STATUS_IGNORE));
        } else {
            OK(MPI_File_write_at_all_begin(file, (MPI_Offset)rank * bytes, mine, bytes, MPI_BYTE));
            OK(MPI_File_write_at_all_end(file, mine, MPI_STATUS_IGNORE));
            OK(MPI_File_read_at_all_begin(file, 0, found, reads, MPI_BYTE));
            OK(MPI_File_read_at_all_end(file, found, MPI_STATUS_IGNORE));
        }
        for (int from = 0; from < size && reads > 0; from++) {
            stamp_fill(mine, (MPI_Offset)from * bytes, bytes, turn);
            SAME(found + (size_t)from * bytes, mine, bytes);
        }
    }
    free(mine), free(found);
    OK(MPI_File_close(&file));
    removed(name);
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        {"overlapping", overlapping}, {"told", told}, {"synced", synced}, {"interleaved", interleaved}, {"in_turn", in_turn}, {NULL, NULL},
    };
    return check_main(argc, argv, cases);
}
