/* requests.c - nonblocking calls of every kind under every way to wait for them, and split collectives. */
#include "check.h"

#include <stdlib.h>
#include <string.h>

enum { pieces = 12, piece = 30000 };

static unsigned char *data, *found;

/* Ways to complete all of an array of requests; statuses in its order. */
static void by_wait(int n, MPI_Request *requests, MPI_Status *statuses)
{
    for (int i = n - 1; i >= 0; i--) OK(MPI_Wait(&requests[i], &statuses[i]));
}
static void by_waitall(int n, MPI_Request *requests, MPI_Status *statuses)
{
    OK(MPI_Waitall(n, requests, statuses));
}
static void by_waitany(int n, MPI_Request *requests, MPI_Status *statuses)
{
    for (int left = n; left > 0; left--) {
        int index = -7;
        MPI_Status status;
        OK(MPI_Waitany(n, requests, &index, &status));
        if (index < 0 || index >= n) {
            fail(__FILE__, __LINE__, "index %d", index);
            return;
        }
        statuses[index] = status;
        CHECK(requests[index] == MPI_REQUEST_NULL);
    }
    int index;
    OK(MPI_Waitany(n, requests, &index, MPI_STATUS_IGNORE));
    EQUAL(index, MPI_UNDEFINED);
}
static void by_waitsome(int n, MPI_Request *requests, MPI_Status *statuses)
{
    int indices[4 * pieces], done;
    MPI_Status some[4 * pieces];
    for (int left = n; left > 0; left -= done) {
        OK(MPI_Waitsome(n, requests, &done, indices, some));
        if (done == MPI_UNDEFINED || done < 1) {
            fail(__FILE__, __LINE__, "%d done", done);
            return;
        }
        for (int i = 0; i < done; i++) statuses[indices[i]] = some[i];
    }
    OK(MPI_Waitsome(n, requests, &done, indices, some));
    EQUAL(done, MPI_UNDEFINED);
}
static void by_test(int n, MPI_Request *requests, MPI_Status *statuses)
{
    for (int i = 0; i < n; i++) {
        int flag = 0;
        while (!flag) OK(MPI_Test(&requests[i], &flag, &statuses[i]));
        CHECK(requests[i] == MPI_REQUEST_NULL);
    }
}
static void by_testall(int n, MPI_Request *requests, MPI_Status *statuses)
{
    int flag = 0;
    while (!flag) OK(MPI_Testall(n, requests, &flag, statuses));
}
static void by_testany(int n, MPI_Request *requests, MPI_Status *statuses)
{
    for (int left = n; left > 0;) {
        int index, flag = 0;
        MPI_Status status;
        OK(MPI_Testany(n, requests, &index, &flag, &status));
        if (!flag) continue;
        if (index < 0 || index >= n) {
            fail(__FILE__, __LINE__, "index %d", index);
            return;
        }
        statuses[index] = status;
        left--;
    }
}
static void by_testsome(int n, MPI_Request *requests, MPI_Status *statuses)
{
    int indices[4 * pieces], done;
    MPI_Status some[4 * pieces];
    for (int left = n; left > 0; left -= done) {
        OK(MPI_Testsome(n, requests, &done, indices, some));
        if (done == MPI_UNDEFINED) {
            fail(__FILE__, __LINE__, "none left, with %d to come", left);
            return;
        }
        for (int i = 0; i < done; i++) statuses[indices[i]] = some[i];
    }
}
static void by_status(int n, MPI_Request *requests, MPI_Status *statuses)
{
    for (int i = 0; i < n; i++) {
        int flag = 0;
        while (!flag) OK(MPI_Request_get_status(requests[i], &flag, &statuses[i]));
        CHECK(requests[i] != MPI_REQUEST_NULL);
        OK(MPI_Wait(&requests[i], &statuses[i]));
    }
}

static const struct {
    const char *name;
    void (*complete)(int, MPI_Request *, MPI_Status *);
} ways[] = {{"wait", by_wait},       {"waitall", by_waitall}, {"waitany", by_waitany},   {"waitsome", by_waitsome}, {"test", by_test},
            {"testall", by_testall}, {"testany", by_testany}, {"testsome", by_testsome}, {"get_status", by_status}};

enum kind { at, individual, at_all, all, kinds };

static void begin_write(MPI_File file, enum kind kind, MPI_Offset offset, const void *bytes, MPI_Request *request)
{
    if (kind == at) OK(MPI_File_iwrite_at(file, offset, bytes, piece, MPI_BYTE, request));
    else if (kind == individual) OK(MPI_File_iwrite(file, bytes, piece, MPI_BYTE, request));
    else if (kind == at_all) OK(MPI_File_iwrite_at_all(file, offset, bytes, piece, MPI_BYTE, request));
    else OK(MPI_File_iwrite_all(file, bytes, piece, MPI_BYTE, request));
}

static void begin_read(MPI_File file, enum kind kind, MPI_Offset offset, void *bytes, MPI_Request *request)
{
    if (kind == at) OK(MPI_File_iread_at(file, offset, bytes, piece, MPI_BYTE, request));
    else if (kind == individual) OK(MPI_File_iread(file, bytes, piece, MPI_BYTE, request));
    else if (kind == at_all) OK(MPI_File_iread_at_all(file, offset, bytes, piece, MPI_BYTE, request));
    else OK(MPI_File_iread_all(file, bytes, piece, MPI_BYTE, request));
}

/* Each kind under each way, among messages between the ranks that are waited for in the same call. */
static void completions(void)
{
    const char *name = path("a");
    MPI_File file = created(MPI_COMM_WORLD, name);
    MPI_Request requests[pieces + 2];
    MPI_Status statuses[pieces + 2];
    if (file == MPI_FILE_NULL) return;
    for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
        for (enum kind kind = 0; kind < kinds; kind++) {
            MPI_Offset start = (MPI_Offset)rank * pieces * piece;
            unsigned tag = 100 + (unsigned)way * kinds + kind;
            int sent = (int)tag * 1000 + rank, received = -1, next = (rank + 1) % size, previous = (rank + size - 1) % size;
            stamp_fill(data, start, pieces * piece, tag);
            OK(MPI_File_seek(file, start, MPI_SEEK_SET));
            MPI_Irecv(&received, 1, MPI_INT, previous, (int)tag, MPI_COMM_WORLD, &requests[pieces]);
            for (int i = 0; i < pieces; i++) begin_write(file, kind, start + i * piece, data + i * piece, &requests[i]);
            MPI_Isend(&sent, 1, MPI_INT, next, (int)tag, MPI_COMM_WORLD, &requests[pieces + 1]);
            memset(statuses, 0x33, sizeof statuses);
            ways[way].complete(pieces + 2, requests, statuses);
            EQUAL(received, (int)tag * 1000 + previous);
            EQUAL(statuses[pieces].MPI_SOURCE, previous);
            for (int i = 0; i < pieces; i++) {
                int cancelled = -1;
                CHECK(requests[i] == MPI_REQUEST_NULL, "by %s", ways[way].name);
                COUNTED(statuses[i], MPI_BYTE, piece);
                MPI_Test_cancelled(&statuses[i], &cancelled);
                EQUAL(cancelled, 0);
            }
            settle(file);
            memset(found, 0, pieces * piece);
            start = (MPI_Offset)next * pieces * piece;
            stamp_fill(data, start, pieces * piece, tag);
            OK(MPI_File_seek(file, start, MPI_SEEK_SET));
            requests[pieces] = requests[pieces + 1] = MPI_REQUEST_NULL;
            for (int i = 0; i < pieces; i++) begin_read(file, kind, start + i * piece, found + i * piece, &requests[i]);
            ways[way].complete(pieces, requests, statuses);
            for (int i = 0; i < pieces; i++) COUNTED(statuses[i], MPI_BYTE, piece);
            if (!SAME(found, data, pieces * piece)) fail(__FILE__, __LINE__, "kind %d by %s", (int)kind, ways[way].name);
            MPI_Barrier(MPI_COMM_WORLD);
        }
    }
    OK(MPI_File_close(&file));
    removed(name);
}

/* A read that meets the end says so when it is waited for; nothing to read too; statuses may be ignored. */
static void ends(void)
{
    const char *name = path("a");
    MPI_File file = created(MPI_COMM_WORLD, name);
    MPI_Request requests[4] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL, MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    MPI_Status statuses[4];
    if (file == MPI_FILE_NULL) return;
    stamp_fill(data, 0, 1000, 1);
    if (rank == 0) OK(MPI_File_write_at(file, 0, data, 1000, MPI_BYTE, MPI_STATUS_IGNORE));
    settle(file);
    OK(MPI_File_iread_at(file, 900, found, 500, MPI_BYTE, &requests[0]));
    OK(MPI_File_iread_at(file, 5000, found + 500, 500, MPI_BYTE, &requests[1]));
    OK(MPI_File_iread_at(file, 0, found + 1000, 0, MPI_BYTE, &requests[2]));
    OK(MPI_Waitall(4, requests, statuses));
    COUNTED(statuses[0], MPI_BYTE, 100);
    COUNTED(statuses[1], MPI_BYTE, 0);
    COUNTED(statuses[2], MPI_BYTE, 0);
    SAME(found, data + 900, 100);
    for (int i = 0; i < 3; i++) OK(MPI_File_iread_at(file, 100 * i, found + 100 * i, 100, MPI_BYTE, &requests[i]));
    OK(MPI_Waitall(4, requests, MPI_STATUSES_IGNORE));
    SAME(found, data, 300);
    OK(MPI_File_iread_at(file, 3, found, 10, MPI_BYTE, &requests[0]));
    OK(MPI_Wait(&requests[0], MPI_STATUS_IGNORE));
    SAME(found, data + 3, 10);
    OK(MPI_File_close(&file));
    removed(name);
}

/* Through views and types with gaps on both sides; the types are freed while they are in use. */
static void strided(void)
{
    const char *name = path("a");
    MPI_File file = created(MPI_COMM_WORLD, name);
    MPI_Request requests[8];
    MPI_Datatype view, memory;
    static int values[8][300], back[8][300];
    if (file == MPI_FILE_NULL) return;
    MPI_Type_create_resized(MPI_INT, 0, 4 * (MPI_Aint)size, &view);
    MPI_Type_commit(&view);
    OK(MPI_File_set_view(file, 4 * rank, MPI_INT, view, "native", MPI_INFO_NULL));
    MPI_Type_free(&view);
    for (int i = 0; i < 8; i++) {
        for (int k = 0; k < 300; k++) values[i][k] = rank * 1000000 + i * 1000 + k, back[i][k] = -1;
        MPI_Type_vector(100, 1, 3, MPI_INT, &memory);
        MPI_Type_commit(&memory);
        if (i % 2) OK(MPI_File_iwrite_at_all(file, 100 * i, values[i], 1, memory, &requests[i]));
        else OK(MPI_File_iwrite_at(file, 100 * i, values[i], 1, memory, &requests[i]));
        MPI_Type_free(&memory);
    }
    OK(MPI_Waitall(8, requests, MPI_STATUSES_IGNORE));
    settle(file);
    for (int i = 0; i < 8; i++) {
        MPI_Type_vector(100, 1, 3, MPI_INT, &memory);
        MPI_Type_commit(&memory);
        if (i % 2) OK(MPI_File_iread_at_all(file, 100 * i, back[i], 1, memory, &requests[i]));
        else OK(MPI_File_iread(file, back[i], 1, memory, &requests[i]));
        MPI_Type_free(&memory);
        if (i % 2) OK(MPI_File_seek(file, 100, MPI_SEEK_CUR));
    }
    OK(MPI_Waitall(8, requests, MPI_STATUSES_IGNORE));
    for (int i = 0; i < 8; i++) {
        for (int k = 0; k < 300; k++) {
            int expected = k % 3 == 0 ? values[i][k] : -1;
            if (back[i][k] == expected) continue;
            fail(__FILE__, __LINE__, "piece %d, element %d is %d, not %d", i, k, back[i][k], expected);
            break;
        }
    }
    OK(MPI_File_close(&file));
    removed(name);
}

static void split(void)
{
    const char *name = path("a");
    MPI_File file = created(MPI_COMM_WORLD, name);
    MPI_Status status;
    int next = (rank + 1) % size;
    if (file == MPI_FILE_NULL) return;
    for (unsigned way = 0; way < 3; way++) {
        MPI_Offset start = (MPI_Offset)rank * piece, other = (MPI_Offset)next * piece;
        stamp_fill(data, start, piece, 50 + way);
        OK(MPI_File_seek(file, start, MPI_SEEK_SET));
        OK(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
        if (way == 0) {
            OK(MPI_File_write_at_all_begin(file, start, data, piece, MPI_BYTE));
            OK(MPI_File_write_at_all_end(file, data, &status));
        } else if (way == 1) {
            OK(MPI_File_write_all_begin(file, data, piece, MPI_BYTE));
            /* Others calls than collective ones may come between. */
            MPI_Offset size_now;
            OK(MPI_File_get_size(file, &size_now));
            OK(MPI_File_write_all_end(file, data, &status));
        } else {
            OK(MPI_File_write_ordered_begin(file, data, piece, MPI_BYTE));
            OK(MPI_File_write_ordered_end(file, data, &status));
        }
        COUNTED(status, MPI_BYTE, piece);
        settle(file);
        for (unsigned back = 0; back < 3; back++) {
            memset(found, 0, piece);
            stamp_fill(data, back == 2 ? start : other, piece, 50 + way);
            OK(MPI_File_seek(file, other, MPI_SEEK_SET));
            OK(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
            if (back == 0) {
                OK(MPI_File_read_at_all_begin(file, other, found, piece, MPI_BYTE));
                OK(MPI_File_read_at_all_end(file, found, &status));
            } else if (back == 1) {
                OK(MPI_File_read_all_begin(file, found, piece, MPI_BYTE));
                OK(MPI_File_read_all_end(file, found, &status));
            } else {
                OK(MPI_File_read_ordered_begin(file, found, piece, MPI_BYTE));
                OK(MPI_File_read_ordered_end(file, found, &status));
            }
            COUNTED(status, MPI_BYTE, piece);
            SAME(found, data, piece);
        }
        MPI_Barrier(MPI_COMM_WORLD);
    }
    /* One at a time on one file, and an end for each begin. */
    if (driver) {
        OK(MPI_File_read_all_begin(file, found, 1, MPI_BYTE));
        FAILS(MPI_File_read_at_all_begin(file, 0, found, 1, MPI_BYTE), ANY);
        OK(MPI_File_read_all_end(file, found, &status));
        FAILS(MPI_File_read_all_end(file, found, &status), ANY);
        FAILS(MPI_File_write_all_end(file, found, &status), ANY);
    }
    OK(MPI_File_close(&file));
    removed(name);
}

/* Several files and communicators under way at once; requests that are freed, not waited for, end as well. */
static void together(void)
{
    const char *one_name = path("a"), *two_name = path("b");
    MPI_File one = created(MPI_COMM_WORLD, one_name), two = created(MPI_COMM_WORLD, two_name);
    MPI_Request requests[2 * pieces];
    if (one == MPI_FILE_NULL || two == MPI_FILE_NULL) return;
    stamp_fill(data, (MPI_Offset)rank * pieces * piece, pieces * piece, 5);
    for (int i = 0; i < pieces; i++) {
        MPI_Offset offset = ((MPI_Offset)rank * pieces + i) * piece;
        OK(MPI_File_iwrite_at(one, offset, data + i * piece, piece, MPI_BYTE, &requests[2 * i]));
        OK(MPI_File_iwrite_at_all(two, offset, data + i * piece, piece, MPI_BYTE, &requests[2 * i + 1]));
    }
    /* Work of another kind meanwhile. */
    long sum = 0, mine = rank;
    MPI_Allreduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    EQUAL(sum, (long)size * (size - 1) / 2);
    OK(MPI_Waitall(2 * pieces, requests, MPI_STATUSES_IGNORE));
    settle(one);
    settle(two);
    int next = (rank + 1) % size;
    stamp_fill(data, (MPI_Offset)next * pieces * piece, pieces * piece, 5);
    OK(MPI_File_read_at(one, (MPI_Offset)next * pieces * piece, found, pieces * piece, MPI_BYTE, MPI_STATUS_IGNORE));
    SAME(found, data, pieces * piece);
    OK(MPI_File_read_at(two, (MPI_Offset)next * pieces * piece, found, pieces * piece, MPI_BYTE, MPI_STATUS_IGNORE));
    SAME(found, data, pieces * piece);
    MPI_Barrier(MPI_COMM_WORLD);
    if (driver) {
        MPI_Request request;
        stamp_fill(data, (MPI_Offset)rank * piece, piece, 6);
        OK(MPI_File_iwrite_at(one, (MPI_Offset)rank * piece, data, piece, MPI_BYTE, &request));
        OK(MPI_Request_free(&request));
        CHECK(request == MPI_REQUEST_NULL);
        /* Nobody can wait for it any more; but it comes to an end, before which the file must not be closed. */
        double begun = MPI_Wtime();
        do {
            OK(MPI_File_read_at(one, (MPI_Offset)rank * piece, found, piece, MPI_BYTE, MPI_STATUS_IGNORE));
        } while (memcmp(found, data, piece) != 0 && MPI_Wtime() - begun < 10);
        SAME(found, data, piece);
        OK(MPI_File_close(&one));
    } else {
        OK(MPI_File_close(&one));
    }
    OK(MPI_File_close(&two));
    removed(one_name);
    removed(two_name);
}

/* Requests of files among those of messages and collectives, completed together in every way; persistent ones
 * too, which stay; and one that is to be cancelled, which no request of a file needs to heed. */
static void mixed(void)
{
    const char *name = path("a");
    MPI_File file = created(MPI_COMM_WORLD, name);
    MPI_Status statuses[6];
    int next = (rank + 1) % size, before = (rank + size - 1) % size;
    if (file == MPI_FILE_NULL) return;
    for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
        MPI_Request requests[6];
        int sent = 100 * rank + (int)way, received = -1;
        MPI_Offset here = ((MPI_Offset)way * size + rank) * 2 * piece;
        stamp_fill(data, here, 2 * piece, 9);
        OK(MPI_File_write_at(file, here + piece, data + piece, piece, MPI_BYTE, MPI_STATUS_IGNORE));
        OK(MPI_File_iwrite_at(file, here, data, piece, MPI_BYTE, &requests[0]));
        MPI_Irecv(&received, 1, MPI_INT, before, 5, MPI_COMM_WORLD, &requests[1]);
        OK(MPI_File_iread_at_all(file, here + piece, found, piece, MPI_BYTE, &requests[2]));
        MPI_Ibarrier(MPI_COMM_WORLD, &requests[3]);
        MPI_Isend(&sent, 1, MPI_INT, next, 5, MPI_COMM_WORLD, &requests[4]);
        OK(MPI_File_iwrite_at(file, here, data, 0, MPI_BYTE, &requests[5]));
        ways[way].complete(6, requests, statuses);
        for (int i = 0; i < 6; i++) CHECK(requests[i] == MPI_REQUEST_NULL, "%s left request %d", ways[way].name, i);
        COUNTED(statuses[0], MPI_BYTE, piece);
        COUNTED(statuses[1], MPI_INT, 1);
        EQUAL(statuses[1].MPI_SOURCE, before);
        EQUAL(statuses[1].MPI_TAG, 5);
        COUNTED(statuses[2], MPI_BYTE, piece);
        COUNTED(statuses[5], MPI_BYTE, 0);
        EQUAL(received, 100 * before + (int)way);
        SAME(found, data + piece, piece);
    }
    /* What is persistent is inactive afterwards, and goes on being one. */
    MPI_Request requests[5] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL, MPI_REQUEST_NULL, MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    int sent, received;
    MPI_Recv_init(&received, 1, MPI_INT, before, 6, MPI_COMM_WORLD, &requests[1]);
    MPI_Send_init(&sent, 1, MPI_INT, next, 6, MPI_COMM_WORLD, &requests[3]);
    for (int turn = 0; turn < 6; turn++) {
        int flag = 0;
        sent = 1000 * rank + turn;
        OK(MPI_File_iread_at(file, (MPI_Offset)rank * 2 * piece, found, piece, MPI_BYTE, &requests[2]));
        MPI_Start(&requests[1]);
        MPI_Start(&requests[3]);
        if (turn % 2)
            OK(MPI_Waitall(5, requests, MPI_STATUSES_IGNORE));
        else
            while (!flag) OK(MPI_Testall(5, requests, &flag, MPI_STATUSES_IGNORE));
        CHECK(requests[2] == MPI_REQUEST_NULL && requests[1] != MPI_REQUEST_NULL && requests[3] != MPI_REQUEST_NULL);
        EQUAL(received, 1000 * before + turn);
        /* Inactive ones do not count. */
        OK(MPI_Waitall(5, requests, MPI_STATUSES_IGNORE));
        OK(MPI_Testall(5, requests, &flag, MPI_STATUSES_IGNORE));
        CHECK(flag);
    }
    MPI_Request_free(&requests[1]);
    MPI_Request_free(&requests[3]);
    if (driver) {
        int cancelled = -1;
        stamp_fill(data, rank, piece, 10);
        OK(MPI_File_iwrite_at(file, (MPI_Offset)rank * piece, data, piece, MPI_BYTE, &requests[0]));
        OK(MPI_Cancel(&requests[0]));
        OK(MPI_Wait(&requests[0], &statuses[0]));
        OK(MPI_Test_cancelled(&statuses[0], &cancelled));
        EQUAL(cancelled, 0);
        COUNTED(statuses[0], MPI_BYTE, piece);
        OK(MPI_File_read_at(file, (MPI_Offset)rank * piece, found, piece, MPI_BYTE, MPI_STATUS_IGNORE));
        SAME(found, data, piece);
    }
    OK(MPI_File_close(&file));
    removed(name);
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        {"completions", completions}, {"ends", ends}, {"strided", strided}, {"split", split}, {"together", together}, {"mixed", mixed}, {NULL, NULL},
    };
    data = malloc(pieces * piece);
    found = malloc(pieces * piece);
    int status = check_main(argc, argv, cases);
    free(data), free(found);
    return status;
}
