/* failures.c - what goes wrong on one rank, or with the pool, is told to all whom it concerns: by an error of
 * the right class, one call of the handler, in bounded time, and the program goes on.
 *
 * Where the environment has WEIR_MPI_FULL, the pool has room for fewer bytes than it says; where it has
 * WEIR_MPI_LOSE, it is a command that ends one of its servers. */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int handled;
static void handler(MPI_File *file, int *code, ...)
{
    (void)file, (void)code;
    handled++;
}

/* Ranks that do not want the same of one file. */
static void amodes_differ(void)
{
    const char *name = path("a");
    MPI_File file = created(MPI_COMM_WORLD, name);
    if (file == MPI_FILE_NULL) return;
    OK(MPI_File_close(&file));
    if (size == 1 || !driver) return;
    static const int wrong[] = {MPI_MODE_RDONLY, MPI_MODE_RDONLY | MPI_MODE_WRONLY, MPI_MODE_RDWR | MPI_MODE_APPEND, 0};
    for (int turn = 0; turn < 8; turn++) {
        int odd = turn % 4, who = turn < 4 ? 0 : size - 1;
        int error = MPI_File_open(MPI_COMM_WORLD, name, rank == who ? wrong[odd] : MPI_MODE_RDWR, MPI_INFO_NULL, &file);
        /* A mode that is no good is rank 0's error, if it is his. */
        FAILS(error, MPI_ERR_NOT_SAME, MPI_ERR_AMODE);
        CHECK(file == MPI_FILE_NULL);
    }
    /* Infos may differ where a hint does not have to be the same everywhere. */
    MPI_Info info;
    char text[16];
    snprintf(text, sizeof text, "%d", 1 + rank);
    MPI_Info_create(&info);
    MPI_Info_set(info, "cb_nodes", text);
    MPI_Info_set(info, "romio_cb_write", rank % 2 ? "enable" : "disable");
    file = opened_with(MPI_COMM_WORLD, name, MPI_MODE_RDWR, rank == 1 ? MPI_INFO_NULL : info);
    if (file == MPI_FILE_NULL) return;
    OK(MPI_File_write_at_all(file, 4 * rank, &rank, 1, MPI_INT, MPI_STATUS_IGNORE));
    OK(MPI_File_set_info(file, info));
    OK(MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", rank == 0 ? MPI_INFO_NULL : info));
    int found = -1;
    OK(MPI_File_read_at_all(file, rank, &found, 1, MPI_INT, MPI_STATUS_IGNORE));
    EQUAL(found, rank);
    OK(MPI_File_close(&file));
    MPI_Info_free(&info);
    removed(name);
}

/* What one rank alone cannot open. */
static void one_opens_nothing(void)
{
    const char *name = path("a");
    MPI_File file = created(MPI_COMM_WORLD, name);
    char mine[1100];
    if (file == MPI_FILE_NULL) return;
    OK(MPI_File_close(&file));
    snprintf(mine, sizeof mine, "%s%s", name, rank == size - 1 ? "-not-there" : "");
    int error = MPI_File_open(MPI_COMM_SELF, mine, MPI_MODE_RDWR, MPI_INFO_NULL, &file);
    if (rank == size - 1)
        FAILS(error, MPI_ERR_NO_SUCH_FILE);
    else if (OK(error))
        OK(MPI_File_close(&file));
    removed(name);
}

/* One rank's wrong arguments in collective accesses of all kinds. */
static void one_argument_wrong(void)
{
    const char *name = path("a");
    MPI_File file = created(MPI_COMM_WORLD, name);
    MPI_Datatype never, every;
    int values[64], wrong = size - 1;
    /* An MPI of its own may wait for the rank that failed. */
    if (file == MPI_FILE_NULL || !driver) return;
    MPI_Type_contiguous(2, MPI_INT, &never);
    MPI_Type_vector(64, 1, size, MPI_INT, &every);
    MPI_Type_commit(&every);
    OK(MPI_File_set_view(file, 4 * rank, MPI_INT, every, "native", MPI_INFO_NULL));
    for (int i = 0; i < 64; i++) values[i] = 100 * rank + i;
    for (int turn = 0; turn < 8; turn++) {
        bool bad = rank == wrong;
        int count = bad && turn % 4 == 0 ? -1 : 64;
        MPI_Datatype type = bad && turn % 4 == 1 ? MPI_DATATYPE_NULL : bad && turn % 4 == 2 ? never : bad && turn % 4 == 3 ? MPI_BYTE : MPI_INT;
        if (type == MPI_BYTE) count = 3; /* no whole number of etypes */
        int error = turn < 4 ? MPI_File_write_at_all(file, 0, values, count, type, MPI_STATUS_IGNORE)
                             : MPI_File_read_at_all(file, 0, values, count, type, MPI_STATUS_IGNORE);
        if (bad)
            FAILS(error, MPI_ERR_COUNT, MPI_ERR_TYPE, MPI_ERR_IO);
        else
            OK(error);
        error = turn < 4 ? MPI_File_write_ordered(file, values, count, type, MPI_STATUS_IGNORE) : MPI_File_read_ordered(file, values, count, type, MPI_STATUS_IGNORE);
        if (bad)
            FAILS(error, MPI_ERR_COUNT, MPI_ERR_TYPE, MPI_ERR_IO);
        else
            OK(error);
        OK(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
    }
    MPI_Type_free(&never);
    MPI_Type_free(&every);
    OK(MPI_File_close(&file));
    removed(name);
}

/* More than the pool has room for, in all the ways there are; and once it is gone there is room again. */
static void full(void)
{
    const char *name = path("a");
    MPI_Errhandler mine;
    if (!getenv("WEIR_MPI_FULL")) {
        note("skipped: fills the pool, which WEIR_MPI_FULL says the size of");
        return;
    }
    long long room = atoll(getenv("WEIR_MPI_FULL"));
    enum { PIECE = 1 << 20 };
    static char bytes[PIECE];
    MPI_File_create_errhandler(handler, &mine);
    for (int turn = 0; turn < 6; turn++) {
        MPI_Info info;
        MPI_Info_create(&info);
        MPI_Info_set(info, "romio_cb_write", turn % 2 ? "enable" : "disable");
        MPI_File file = opened_with(MPI_COMM_WORLD, name, MPI_MODE_RDWR | MPI_MODE_CREATE, info);
        MPI_Info_free(&info);
        if (file == MPI_FILE_NULL) return;
        OK(MPI_File_set_errhandler(file, mine));
        MPI_Datatype every;
        MPI_Type_vector(PIECE / 4096, 4096, 4096 * size, MPI_BYTE, &every);
        MPI_Type_commit(&every);
        if (turn >= 2) OK(MPI_File_set_view(file, 4096 * rank, MPI_BYTE, every, "native", MPI_INFO_NULL));
        MPI_Type_free(&every);
        bool failed = false;
        for (long long at = 0; at < 2 * room && everywhere(MPI_COMM_WORLD, !failed); at += (long long)PIECE * size) {
            MPI_Offset place = turn >= 2 ? at / size : at + (long long)rank * PIECE;
            MPI_Request request;
            int error;
            handled = 0;
            if (turn == 4) {
                error = MPI_File_iwrite_at(file, place, bytes, PIECE, MPI_BYTE, &request);
                if (error == MPI_SUCCESS) error = MPI_Wait(&request, MPI_STATUS_IGNORE);
            } else if (turn == 5) {
                error = MPI_File_write_at_all_begin(file, place, bytes, PIECE, MPI_BYTE);
                if (error == MPI_SUCCESS) error = MPI_File_write_at_all_end(file, bytes, MPI_STATUS_IGNORE);
            } else if (turn == 0) {
                error = MPI_File_write_at(file, place, bytes, PIECE, MPI_BYTE, MPI_STATUS_IGNORE);
            } else {
                error = MPI_File_write_at_all(file, place, bytes, PIECE, MPI_BYTE, MPI_STATUS_IGNORE);
            }
            failed = error != MPI_SUCCESS;
            if (failed) FAILS(error, MPI_ERR_NO_SPACE);
            EQUAL(handled, failed);
        }
        CHECK(!everywhere(MPI_COMM_WORLD, !failed), "in turn %d everything found room", turn);
        OK(MPI_File_close(&file));
        removed(name);
    }
    MPI_Errhandler_free(&mine);
}

/* A server is lost in the midst of collective writes. */
static void lose(void)
{
    const char *name = path("a"), *command = getenv("WEIR_MPI_LOSE");
    MPI_Errhandler mine;
    if (!command) {
        note("skipped: ends a server, by the command WEIR_MPI_LOSE");
        return;
    }
    enum { PIECE = 256 << 10 };
    static char bytes[PIECE];
    MPI_File file = created(MPI_COMM_WORLD, name), other = created(MPI_COMM_SELF, path(rank ? "b" : "c"));
    MPI_Datatype every;
    if (file == MPI_FILE_NULL || other == MPI_FILE_NULL) return;
    MPI_File_create_errhandler(handler, &mine);
    OK(MPI_File_set_errhandler(file, mine));
    MPI_Type_vector(PIECE / 256, 256, 256 * size, MPI_BYTE, &every);
    MPI_Type_commit(&every);
    OK(MPI_File_set_view(file, 256 * rank, MPI_BYTE, every, "native", MPI_INFO_NULL));
    MPI_Type_free(&every);
    bool failed = false;
    for (int turn = 0; turn < 400 && everywhere(MPI_COMM_WORLD, !failed); turn++) {
        if (turn == 10 && rank == 0) EQUAL(system(command), 0);
        handled = 0;
        int error = turn % 2 ? MPI_File_write_at_all(file, (MPI_Offset)(turn % 20) * PIECE, bytes, PIECE, MPI_BYTE, MPI_STATUS_IGNORE)
                             : MPI_File_read_at_all(file, 0, bytes, PIECE, MPI_BYTE, MPI_STATUS_IGNORE);
        failed = error != MPI_SUCCESS;
        if (failed) FAILS(error, MPI_ERR_IO);
        EQUAL(handled, failed);
    }
    CHECK(!everywhere(MPI_COMM_WORLD, !failed), "nobody noticed");
    /* Requests of every kind end, and so does the file; whether well is not the question. */
    MPI_Request requests[3];
    MPI_Offset at = 0;
    for (int i = 0; i < 3; i++)
        if (MPI_File_iwrite_at(file, (MPI_Offset)i * PIECE, bytes, PIECE, MPI_BYTE, &requests[i]) != MPI_SUCCESS) requests[i] = MPI_REQUEST_NULL;
    MPI_Waitall(3, requests, MPI_STATUSES_IGNORE);
    for (int i = 0; i < 3; i++) CHECK(requests[i] == MPI_REQUEST_NULL);
    MPI_File_write_shared(file, bytes, 1, MPI_BYTE, MPI_STATUS_IGNORE);
    MPI_File_write_ordered(file, bytes, 1, MPI_BYTE, MPI_STATUS_IGNORE);
    MPI_File_set_size(file, 0);
    MPI_File_get_size(file, &at);
    MPI_File_sync(file);
    MPI_File_close(&file);
    CHECK(file == MPI_FILE_NULL);
    MPI_File_close(&other);
    MPI_Errhandler_free(&mine);
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        {"amodes_differ", amodes_differ}, {"one_opens_nothing", one_opens_nothing}, {"one_argument_wrong", one_argument_wrong}, {"full", full}, {"lose", lose}, {NULL, NULL},
    };
    return check_main(argc, argv, cases);
}
