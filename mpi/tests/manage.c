/* manage.c - files as a whole: opening and its modes, deleting, sizes, info, groups, handles, errors. */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The standard ABI passes handles to Fortran under other names. */
#ifdef MPI_ABI_VERSION
#define MPI_File_c2f MPI_File_toint
#define MPI_File_f2c MPI_File_fromint
#endif

enum { read_write = MPI_MODE_RDWR, create = MPI_MODE_CREATE | MPI_MODE_RDWR };

static void modes(void)
{
    const char *name = path("a");
    MPI_File file = MPI_FILE_NULL;
    removed(name);
    /* One of three, and no creation of what cannot be written. */
    static const int wrong[] = {0,
                                MPI_MODE_CREATE,
                                MPI_MODE_RDONLY | MPI_MODE_RDWR,
                                MPI_MODE_RDONLY | MPI_MODE_WRONLY,
                                MPI_MODE_RDWR | MPI_MODE_WRONLY,
                                MPI_MODE_RDONLY | MPI_MODE_CREATE,
                                MPI_MODE_RDONLY | MPI_MODE_EXCL,
                                MPI_MODE_RDWR | MPI_MODE_SEQUENTIAL};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        int error = MPI_File_open(MPI_COMM_WORLD, name, wrong[i], MPI_INFO_NULL, &file);
        if (error == MPI_SUCCESS) {
            fail(__FILE__, __LINE__, "mode %#x is accepted", (unsigned)wrong[i]);
            MPI_File_close(&file);
        } else {
            FAILS(error, MPI_ERR_AMODE);
        }
    }
    static const int right[] = {MPI_MODE_CREATE | MPI_MODE_EXCL | MPI_MODE_WRONLY,
                                MPI_MODE_RDONLY,
                                MPI_MODE_WRONLY,
                                MPI_MODE_RDWR,
                                MPI_MODE_RDWR | MPI_MODE_CREATE,
                                MPI_MODE_RDWR | MPI_MODE_UNIQUE_OPEN,
                                MPI_MODE_RDWR | MPI_MODE_APPEND,
                                MPI_MODE_RDONLY | MPI_MODE_SEQUENTIAL,
                                MPI_MODE_WRONLY | MPI_MODE_SEQUENTIAL | MPI_MODE_CREATE};
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        int amode = -1;
        file = opened(MPI_COMM_WORLD, name, right[i]);
        if (file == MPI_FILE_NULL) continue;
        OK(MPI_File_get_amode(file, &amode));
        EQUAL(amode, right[i]);
        OK(MPI_File_close(&file));
        CHECK(file == MPI_FILE_NULL);
    }
    FAILS(MPI_File_open(MPI_COMM_WORLD, name, create | MPI_MODE_EXCL, MPI_INFO_NULL, &file), MPI_ERR_FILE_EXISTS);
    removed(name);
    FAILS(MPI_File_open(MPI_COMM_WORLD, name, read_write, MPI_INFO_NULL, &file), MPI_ERR_NO_SUCH_FILE);
    FAILS(MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_RDONLY, MPI_INFO_NULL, &file), MPI_ERR_NO_SUCH_FILE);
    FAILS(MPI_File_open(MPI_COMM_SELF, name, MPI_MODE_WRONLY, MPI_INFO_NULL, &file), MPI_ERR_NO_SUCH_FILE);
    MPI_Barrier(MPI_COMM_WORLD);
    /* A directory that does not exist, one that is none. */
    FAILS(MPI_File_open(MPI_COMM_WORLD, path("none/b"), create, MPI_INFO_NULL, &file), MPI_ERR_NO_SUCH_FILE, MPI_ERR_BAD_FILE);
    file = created(MPI_COMM_WORLD, name);
    if (file != MPI_FILE_NULL) OK(MPI_File_close(&file));
    FAILS(MPI_File_open(MPI_COMM_WORLD, path("a/b"), create, MPI_INFO_NULL, &file), ANY);
    removed(name);
}

/* What a file was not opened for is refused, and leaves it as it was. */
static void directions(void)
{
    const char *name = path("a");
    MPI_File file = created(MPI_COMM_WORLD, name);
    unsigned char bytes[64], found[64];
    stamp_fill(bytes, 0, sizeof bytes, 1);
    if (file == MPI_FILE_NULL) return;
    if (rank == 0) OK(MPI_File_write_at(file, 0, bytes, sizeof bytes, MPI_BYTE, MPI_STATUS_IGNORE));
    OK(MPI_File_close(&file));

    file = opened(MPI_COMM_WORLD, name, MPI_MODE_RDONLY);
    if (file != MPI_FILE_NULL) {
        MPI_Request request;
        memset(found, 0, sizeof found);
        FAILS(MPI_File_write_at(file, 0, found, 10, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_READ_ONLY, MPI_ERR_ACCESS);
        FAILS(MPI_File_write(file, found, 10, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_READ_ONLY, MPI_ERR_ACCESS);
        FAILS(MPI_File_write_at_all(file, 0, found, 10, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_READ_ONLY, MPI_ERR_ACCESS);
        /* A nonblocking one may say so when it begins, or when it ends. */
        int error = MPI_File_iwrite_at(file, 0, found, 10, MPI_BYTE, &request);
        if (error == MPI_SUCCESS) error = MPI_Wait(&request, MPI_STATUS_IGNORE);
        FAILS(error, MPI_ERR_READ_ONLY, MPI_ERR_ACCESS, MPI_ERR_IO);
        if (driver) FAILS(MPI_File_set_size(file, 0), MPI_ERR_READ_ONLY, MPI_ERR_ACCESS);
        if (driver) FAILS(MPI_File_preallocate(file, 1000), MPI_ERR_READ_ONLY, MPI_ERR_ACCESS);
        OK(MPI_File_close(&file));
    }
    file = opened(MPI_COMM_WORLD, name, MPI_MODE_WRONLY);
    if (file != MPI_FILE_NULL) {
        FAILS(MPI_File_read_at(file, 0, found, 10, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_ACCESS, MPI_ERR_AMODE, MPI_ERR_UNSUPPORTED_OPERATION);
        FAILS(MPI_File_read_all(file, found, 10, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_ACCESS, MPI_ERR_AMODE, MPI_ERR_UNSUPPORTED_OPERATION);
        OK(MPI_File_close(&file));
    }
    HOLDS(name, 0, bytes, sizeof bytes);
    removed(name);
}

/* Files that were opened with MPI_MODE_SEQUENTIAL know shared pointers alone. */
static void sequential(void)
{
    const char *name = path("a");
    unsigned char byte = 7, found[8] = {0};
    MPI_Offset offset;
    removed(name);
    MPI_File file = opened(MPI_COMM_WORLD, name, MPI_MODE_WRONLY | MPI_MODE_CREATE | MPI_MODE_SEQUENTIAL);
    if (file == MPI_FILE_NULL) return;
    OK(MPI_File_write_ordered(file, &byte, 1, MPI_BYTE, MPI_STATUS_IGNORE));
    FAILS(MPI_File_write_at(file, 0, &byte, 1, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_UNSUPPORTED_OPERATION);
    FAILS(MPI_File_write(file, &byte, 1, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_UNSUPPORTED_OPERATION);
    FAILS(MPI_File_write_all(file, &byte, 1, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_UNSUPPORTED_OPERATION);
    FAILS(MPI_File_seek(file, 0, MPI_SEEK_SET), MPI_ERR_UNSUPPORTED_OPERATION);
    FAILS(MPI_File_seek_shared(file, 0, MPI_SEEK_SET), MPI_ERR_UNSUPPORTED_OPERATION);
    FAILS(MPI_File_set_size(file, 0), MPI_ERR_UNSUPPORTED_OPERATION);
    if (driver) FAILS(MPI_File_get_position(file, &offset), MPI_ERR_UNSUPPORTED_OPERATION);
    if (driver) FAILS(MPI_File_preallocate(file, 100), MPI_ERR_UNSUPPORTED_OPERATION);
    /* From here on, wherever that is. */
    OK(MPI_File_set_view(file, MPI_DISPLACEMENT_CURRENT, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    OK(MPI_File_write_ordered(file, &byte, 1, MPI_BYTE, MPI_STATUS_IGNORE));
    OK(MPI_File_close(&file));

    file = opened(MPI_COMM_WORLD, name, MPI_MODE_RDONLY | MPI_MODE_SEQUENTIAL);
    if (file == MPI_FILE_NULL) return;
    MPI_Status status;
    int sum, mine;
    OK(MPI_File_read_ordered(file, found, 2, MPI_BYTE, &status));
    COUNTED(status, MPI_BYTE, 2);
    mine = found[0] + found[1];
    MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    EQUAL(sum, 14 * size);
    OK(MPI_File_close(&file));
    removed(name);
}

static void delete_on_close(void)
{
    const char *name = path("a");
    MPI_File file, other;
    removed(name);
    file = opened(MPI_COMM_WORLD, name, create | MPI_MODE_DELETE_ON_CLOSE);
    if (file == MPI_FILE_NULL) return;
    unsigned char byte = (unsigned char)rank;
    OK(MPI_File_write_at_all(file, rank, &byte, 1, MPI_BYTE, MPI_STATUS_IGNORE));
    OK(MPI_File_close(&file));
    MPI_Barrier(MPI_COMM_WORLD);
    FAILS(MPI_File_open(MPI_COMM_SELF, name, MPI_MODE_RDONLY, MPI_INFO_NULL, &other), MPI_ERR_NO_SUCH_FILE);
    FAILS(MPI_File_delete(name, MPI_INFO_NULL), MPI_ERR_NO_SUCH_FILE);
    FAILS(MPI_File_delete(path("none/b"), MPI_INFO_NULL), MPI_ERR_NO_SUCH_FILE, MPI_ERR_BAD_FILE);
    MPI_Barrier(MPI_COMM_WORLD);
    /* A delete, and it is gone; then it can be made anew, and is empty. */
    file = created(MPI_COMM_WORLD, name);
    if (file == MPI_FILE_NULL) return;
    OK(MPI_File_set_size(file, 100));
    OK(MPI_File_close(&file));
    if (rank == size - 1) OK(MPI_File_delete(name, MPI_INFO_NULL));
    MPI_Barrier(MPI_COMM_WORLD);
    file = opened(MPI_COMM_WORLD, name, create | MPI_MODE_EXCL);
    if (file == MPI_FILE_NULL) return;
    MPI_Offset bytes = -1;
    OK(MPI_File_get_size(file, &bytes));
    EQUAL(bytes, 0);
    OK(MPI_File_close(&file));
    removed(name);
}

static void sizes(void)
{
    const char *name = path("a");
    MPI_File file = created(MPI_COMM_WORLD, name);
    MPI_Offset bytes = -1;
    unsigned char data[300], zeros[300] = {0};
    if (file == MPI_FILE_NULL) return;
    stamp_fill(data, 0, sizeof data, 2);
    static const MPI_Offset steps[] = {0, 1, 300, 100, 99, 4096, 1048576, 1048577, 3 * 1048576 + 5, 70, 0, 300};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        OK(MPI_File_set_size(file, steps[i]));
        OK(MPI_File_get_size(file, &bytes));
        EQUAL(bytes, steps[i]);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    /* What was cut off is zero when the file grows again. */
    OK(MPI_File_write_at_all(file, 0, data, sizeof data, MPI_BYTE, MPI_STATUS_IGNORE));
    settle(file);
    OK(MPI_File_set_size(file, 100));
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_set_size(file, 300));
    MPI_Barrier(MPI_COMM_WORLD);
    memset(data + 100, 0, 200);
    unsigned char found[300];
    OK(MPI_File_read_at_all(file, 0, found, 300, MPI_BYTE, MPI_STATUS_IGNORE));
    SAME(found, data, 300);
    /* Room beforehand makes a file larger, never smaller, and changes no byte. */
    OK(MPI_File_preallocate(file, 200));
    OK(MPI_File_get_size(file, &bytes));
    EQUAL(bytes, 300);
    OK(MPI_File_preallocate(file, 70000));
    OK(MPI_File_get_size(file, &bytes));
    EQUAL(bytes, 70000);
    OK(MPI_File_read_at_all(file, 0, found, 300, MPI_BYTE, MPI_STATUS_IGNORE));
    SAME(found, data, 300);
    OK(MPI_File_read_at_all(file, 69700, found, 300, MPI_BYTE, MPI_STATUS_IGNORE));
    SAME(found, zeros, 300);
    FAILS(MPI_File_set_size(file, -1), ANY);
    FAILS(MPI_File_preallocate(file, -1), ANY);
    OK(MPI_File_get_size(file, &bytes));
    EQUAL(bytes, 70000);
    MPI_Barrier(MPI_COMM_WORLD);
    /* A larger file by a write beyond its end, seen by all after sync and barrier. */
    if (rank == 0) OK(MPI_File_write_at(file, 99999, data, 1, MPI_BYTE, MPI_STATUS_IGNORE));
    settle(file);
    OK(MPI_File_get_size(file, &bytes));
    EQUAL(bytes, 100000);
    OK(MPI_File_close(&file));
    removed(name);
}

static void groups(void)
{
    MPI_Comm half, copy;
    MPI_Group group, expected;
    int result;
    const char *name = path("a");
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
    MPI_Comm_dup(MPI_COMM_WORLD, &copy);
    MPI_Comm comms[] = {MPI_COMM_WORLD, MPI_COMM_SELF, half, copy};
    static const char *const names[] = {"world", "self", "half", "copy"};
    MPI_File files[4];
    for (int i = 0; i < 4; i++) {
        /* Communicators of which there are several open files of their own. */
        char own_name[1100];
        snprintf(own_name, sizeof own_name, "%s-%s-%d", name, names[i], i == 1 ? rank : i == 2 ? rank % 2 : 0);
        files[i] = created(comms[i], own_name);
        if (!everywhere(MPI_COMM_WORLD, files[i] != MPI_FILE_NULL)) return;
        MPI_Comm_group(comms[i], &expected);
        OK(MPI_File_get_group(files[i], &group));
        MPI_Group_compare(group, expected, &result);
        EQUAL(result, MPI_IDENT);
        MPI_Group_free(&group);
        MPI_Group_free(&expected);
    }
    /* The file keeps what it needs of its communicator. */
    MPI_Comm_free(&half);
    MPI_Comm_free(&copy);
    for (int i = 0; i < 4; i++) {
        int members, me;
        OK(MPI_File_get_group(files[i], &group));
        MPI_Group_size(group, &members);
        MPI_Group_rank(group, &me);
        MPI_Group_free(&group);
        EQUAL(members, i == 1 ? 1 : i == 2 ? (size + (rank % 2 == 0)) / 2 : size);
        int value = 100 * i + me, found = -1, next = (me + 1) % members;
        OK(MPI_File_write_at_all(files[i], me * (MPI_Offset)sizeof value, &value, 1, MPI_INT, MPI_STATUS_IGNORE));
        OK(MPI_File_sync(files[i]));
        MPI_Barrier(MPI_COMM_WORLD);
        OK(MPI_File_sync(files[i]));
        OK(MPI_File_read_at_all(files[i], next * (MPI_Offset)sizeof value, &found, 1, MPI_INT, MPI_STATUS_IGNORE));
        EQUAL(found, 100 * i + next);
        char own_name[1100];
        snprintf(own_name, sizeof own_name, "%s-%s-%d", name, names[i], i == 1 ? rank : i == 2 ? rank % 2 : 0);
        OK(MPI_File_close(&files[i]));
        if (me == 0) OK(MPI_File_delete(own_name, MPI_INFO_NULL));
        MPI_Barrier(MPI_COMM_WORLD);
    }
}

static int known_keys(MPI_Info info)
{
    int keys = 0;
    char key[MPI_MAX_INFO_KEY + 1];
    OK(MPI_Info_get_nkeys(info, &keys));
    for (int i = 0; i < keys; i++) OK(MPI_Info_get_nthkey(info, i, key));
    return keys;
}

static void expect_hint(MPI_File file, const char *key, const char *expected)
{
    MPI_Info info;
    char value[MPI_MAX_INFO_VAL + 1] = "";
    int flag = 0;
    OK(MPI_File_get_info(file, &info));
    OK(MPI_Info_get(info, key, MPI_MAX_INFO_VAL, value, &flag));
    CHECK(flag, "for %s", key);
    CHECK(!flag || strcmp(value, expected) == 0, "for %s: %s, not %s", key, value, expected);
    OK(MPI_Info_free(&info));
}

static void hints(void)
{
    const char *name = path("a");
    MPI_Info info, got = MPI_INFO_NULL;
    MPI_File file;
    removed(name);
    MPI_Info_create(&info);
    MPI_Info_set(info, "access_style", "write_once,sequential");
    MPI_Info_set(info, "collective_buffering", "true");
    MPI_Info_set(info, "cb_nodes", "1");
    MPI_Info_set(info, "cb_buffer_size", "1048576");
    MPI_Info_set(info, "striping_factor", "1");
    MPI_Info_set(info, "striping_unit", "131072");
    MPI_Info_set(info, "romio_cb_write", "enable");
    MPI_Info_set(info, "romio_cb_read", "disable");
    MPI_Info_set(info, "romio_ds_write", "disable");
    MPI_Info_set(info, "ind_rd_buffer_size", "65536");
    MPI_Info_set(info, "file_perm", "0644");
    MPI_Info_set(info, "some_unknown_hint", "and its value");
    file = opened_with(MPI_COMM_WORLD, name, create, info);
    MPI_Info_free(&info);
    if (file == MPI_FILE_NULL) return;
    OK(MPI_File_get_info(file, &got));
    CHECK(got != MPI_INFO_NULL);
    known_keys(got);
    OK(MPI_Info_free(&got));
    if (driver) {
        expect_hint(file, "striping_factor", "1");
        expect_hint(file, "striping_unit", "131072");
        expect_hint(file, "cb_nodes", "1");
        expect_hint(file, "cb_buffer_size", "1048576");
        expect_hint(file, "romio_cb_write", "enable");
        expect_hint(file, "romio_cb_read", "disable");
    }
    MPI_Info_create(&info);
    MPI_Info_set(info, "cb_buffer_size", "2097152");
    MPI_Info_set(info, "striping_unit", "not a number");
    OK(MPI_File_set_info(file, info));
    /* An existing file's stripes do not change. */
    if (driver) expect_hint(file, "cb_buffer_size", "2097152");
    if (driver) expect_hint(file, "striping_unit", "131072");
    OK(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", info));
    MPI_Info_free(&info);
    OK(MPI_File_close(&file));
    /* Without any. */
    file = opened(MPI_COMM_WORLD, name, read_write);
    if (file == MPI_FILE_NULL) return;
    OK(MPI_File_get_info(file, &got));
    CHECK(got != MPI_INFO_NULL);
    if (got != MPI_INFO_NULL) known_keys(got), MPI_Info_free(&got);
    if (driver) expect_hint(file, "striping_factor", "1");
    if (driver) expect_hint(file, "striping_unit", "131072");
    OK(MPI_File_close(&file));
    MPI_Info_create(&info);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) OK(MPI_File_delete(name, info));
    MPI_Info_free(&info);
    removed(name);
}

static MPI_File handled_file;
static int handled, handled_code;
static void handler(MPI_File *file, int *code, ...)
{
    handled++;
    handled_file = *file;
    handled_code = *code;
}

static void forgiving(MPI_File *file, int *code, ...)
{
    (void)file;
    handled++;
    *code = MPI_SUCCESS;
}

static void errors(void)
{
    const char *name = path("a");
    MPI_Errhandler mine, got;
    MPI_File file = created(MPI_COMM_WORLD, name), none;
    int error, class, length;
    char words[MPI_MAX_ERROR_STRING + 1] = "";
    if (file == MPI_FILE_NULL) return;
    OK(MPI_File_get_errhandler(file, &got));
    CHECK(got == MPI_ERRORS_RETURN);
    OK(MPI_File_get_errhandler(MPI_FILE_NULL, &got));
    CHECK(got == MPI_ERRORS_RETURN);
    OK(MPI_File_create_errhandler(handler, &mine));
    OK(MPI_File_set_errhandler(file, mine));
    handled = 0;
    error = MPI_File_seek(file, -5, MPI_SEEK_SET);
    FAILS(error, ANY);
    EQUAL(handled, 1);
    CHECK(handled_file == file);
    EQUAL(handled_code, error);
    MPI_Error_class(error, &class);
    CHECK(class != MPI_SUCCESS && class <= MPI_ERR_LASTCODE, "class %d", class);
    MPI_Error_string(error, words, &length);
    CHECK(length > 0 && (size_t)length == strlen(words));
    if (driver) CHECK(strstr(words, "beginning") != NULL, "%s", words);
    /* It is told of what is called for it. */
    handled = 0;
    OK(MPI_File_call_errhandler(file, MPI_ERR_QUOTA));
    EQUAL(handled, 1);
    EQUAL(handled_code, MPI_ERR_QUOTA);
    OK(MPI_File_get_errhandler(file, &got));
    CHECK(got == mine);
    MPI_Errhandler_free(&got);
    /* Of an error in I/O as well, once for each call. */
    unsigned char byte = 0;
    handled = 0;
    FAILS(MPI_File_read_at(file, -1, &byte, 1, MPI_BYTE, MPI_STATUS_IGNORE), ANY);
    EQUAL(handled, 1);
    OK(MPI_File_set_errhandler(file, MPI_ERRORS_RETURN));
    handled = 0;
    FAILS(MPI_File_seek(file, -5, MPI_SEEK_SET), ANY);
    EQUAL(handled, 0);
    OK(MPI_File_close(&file));

    /* The default handler: of files that are opened from now on, and of failures to open. */
    OK(MPI_File_set_errhandler(MPI_FILE_NULL, mine));
    OK(MPI_File_get_errhandler(MPI_FILE_NULL, &got));
    CHECK(got == mine);
    /* got is not freed: MPICH 4.0 does not count this one. */
    handled = 0;
    FAILS(MPI_File_open(MPI_COMM_WORLD, path("none"), MPI_MODE_RDONLY, MPI_INFO_NULL, &none), MPI_ERR_NO_SUCH_FILE);
    EQUAL(handled, 1);
    CHECK(handled_file == MPI_FILE_NULL);
    handled = 0;
    FAILS(MPI_File_delete(path("none"), MPI_INFO_NULL), MPI_ERR_NO_SUCH_FILE);
    EQUAL(handled, 1);
    file = opened(MPI_COMM_WORLD, name, read_write);
    OK(MPI_File_set_errhandler(MPI_FILE_NULL, MPI_ERRORS_RETURN));
    if (file != MPI_FILE_NULL) {
        OK(MPI_File_get_errhandler(file, &got));
        CHECK(got == mine);
        MPI_Errhandler_free(&got);
        handled = 0;
        FAILS(MPI_File_seek(file, -5, MPI_SEEK_SET), ANY);
        EQUAL(handled, 1);
        OK(MPI_File_close(&file));
    }
    MPI_Errhandler_free(&mine);
    /* A handler of failures to open may call them none; Open MPI does not heed it. */
    if (driver) {
        OK(MPI_File_create_errhandler(forgiving, &mine));
        OK(MPI_File_set_errhandler(MPI_FILE_NULL, mine));
        handled = 0;
        OK(MPI_File_open(MPI_COMM_WORLD, path("none"), MPI_MODE_RDONLY, MPI_INFO_NULL, &none));
        EQUAL(handled, 1);
        OK(MPI_File_set_errhandler(MPI_FILE_NULL, MPI_ERRORS_RETURN));
        MPI_Errhandler_free(&mine);
    }
    removed(name);
}

/* Which datatypes a view may have: the classes are those that ROMIO has for it. */
static void view_places(MPI_File file, bool writable)
{
    static const struct {
        int lengths[2], places[2];
        bool overlap;
    } bad[] = {{{1, 1}, {-2, 2}, false}, {{1, 1}, {3, 0}, false}, {{3, 1}, {0, 1}, true}, {{1, 1}, {0, 0}, true}};
    /* Not every MPI looks at it. */
    if (!driver) return;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        MPI_Datatype type;
        MPI_Type_indexed(2, bad[i].lengths, bad[i].places, MPI_INT, &type);
        MPI_Type_commit(&type);
        for (int as_etype = 0; as_etype < 2; as_etype++) {
            int error = MPI_File_set_view(file, 0, as_etype ? type : MPI_INT, type, "native", MPI_INFO_NULL);
            if (bad[i].overlap && !writable)
                OK(error);
            else
                FAILS(error, MPI_ERR_IO);
        }
        MPI_Type_free(&type);
    }
    OK(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
}

static void arguments(void)
{
    const char *name = path("a");
    MPI_File file = created(MPI_COMM_WORLD, name);
    MPI_Offset offset;
    MPI_Datatype never;
    unsigned char bytes[16] = {0};
    if (file == MPI_FILE_NULL) return;
    FAILS(MPI_File_read_at(file, -1, bytes, 1, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_ARG);
    FAILS(MPI_File_write_at(file, -1, bytes, 1, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_ARG);
    FAILS(MPI_File_write_at(file, 0, bytes, -1, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_COUNT, MPI_ERR_ARG);
    FAILS(MPI_File_write(file, bytes, 1, MPI_DATATYPE_NULL, MPI_STATUS_IGNORE), MPI_ERR_TYPE, MPI_ERR_ARG);
    MPI_Type_contiguous(2, MPI_INT, &never);
    FAILS(MPI_File_write(file, bytes, 1, never, MPI_STATUS_IGNORE), MPI_ERR_TYPE, MPI_ERR_ARG);
    FAILS(MPI_File_read_at_all(file, 0, bytes, 1, never, MPI_STATUS_IGNORE), MPI_ERR_TYPE, MPI_ERR_ARG);
    FAILS(MPI_File_set_view(file, 0, MPI_BYTE, never, "native", MPI_INFO_NULL), ANY);
    FAILS(MPI_File_set_view(file, 0, never, never, "native", MPI_INFO_NULL), ANY);
    /* From here on it is a datatype like others. */
    MPI_Type_commit(&never);
    OK(MPI_File_read_at(file, 0, bytes, 1, never, MPI_STATUS_IGNORE));
    MPI_Type_free(&never);
    view_places(file, true);
    FAILS(MPI_File_seek(file, 0, 4711), MPI_ERR_ARG);
    FAILS(MPI_File_seek(file, -1, MPI_SEEK_CUR), MPI_ERR_ARG);
    FAILS(MPI_File_set_view(file, -1, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL), MPI_ERR_ARG);
    FAILS(MPI_File_set_view(file, 0, MPI_INT, MPI_BYTE, "native", MPI_INFO_NULL), MPI_ERR_ARG, MPI_ERR_TYPE);
    FAILS(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "no such", MPI_INFO_NULL), MPI_ERR_UNSUPPORTED_DATAREP);
    /* The view is still the one before. */
    OK(MPI_File_get_byte_offset(file, 3, &offset));
    EQUAL(offset, 3);
    /* Nothing was written by what failed. */
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_get_size(file, &offset));
    EQUAL(offset, 0);
    OK(MPI_File_close(&file));
    file = opened(MPI_COMM_WORLD, name, MPI_MODE_RDONLY);
    if (file != MPI_FILE_NULL) {
        view_places(file, false);
        OK(MPI_File_close(&file));
    }
    removed(name);
}

/* No file at all: a matter of the MPI's own, which some of them do not survive. */
static void no_file(void)
{
    MPI_File none = MPI_FILE_NULL;
    MPI_Offset offset;
    char byte;
    if (driver) {
        note("skipped: for the MPI itself to answer");
        return;
    }
    FAILS(MPI_File_get_position(none, &offset), MPI_ERR_FILE, MPI_ERR_ARG);
    FAILS(MPI_File_read(none, &byte, 1, MPI_BYTE, MPI_STATUS_IGNORE), MPI_ERR_FILE, MPI_ERR_ARG);
    FAILS(MPI_File_get_size(none, &offset), MPI_ERR_FILE, MPI_ERR_ARG);
}

static void handles(void)
{
    const char *name = path("a");
    MPI_File one = created(MPI_COMM_WORLD, name), two, same;
    MPI_Offset offset = -1;
    int value = 4, found = 0;
    if (one == MPI_FILE_NULL) return;
    two = opened(MPI_COMM_WORLD, name, read_write);
    if (two == MPI_FILE_NULL) return;
    CHECK(one != two);
    /* By way of Fortran it is the same file, with the same pointer. */
    same = MPI_File_f2c(MPI_File_c2f(one));
    OK(MPI_File_seek(one, 8 * rank, MPI_SEEK_SET));
    OK(MPI_File_get_position(same, &offset));
    EQUAL(offset, 8 * rank);
    value += rank;
    OK(MPI_File_write(same, &value, 1, MPI_INT, MPI_STATUS_IGNORE));
    OK(MPI_File_get_position(one, &offset));
    EQUAL(offset, 8 * rank + (int)sizeof value);
    /* And no other's. */
    OK(MPI_File_get_position(two, &offset));
    EQUAL(offset, 0);
    OK(MPI_File_read_at(two, 8 * rank, &found, 1, MPI_INT, MPI_STATUS_IGNORE));
    EQUAL(found, value);
    CHECK(MPI_File_f2c(MPI_File_c2f(MPI_FILE_NULL)) == MPI_FILE_NULL);
    OK(MPI_File_close(&one));
    found = 0;
    OK(MPI_File_read_at(two, 8 * rank, &found, 1, MPI_INT, MPI_STATUS_IGNORE));
    EQUAL(found, value);
    OK(MPI_File_close(&two));
    removed(name);
}

static void append(void)
{
    const char *name = path("a");
    MPI_File file = created(MPI_COMM_WORLD, name);
    MPI_Offset offset = -1;
    unsigned char bytes[60];
    if (file == MPI_FILE_NULL) return;
    stamp_fill(bytes, 0, sizeof bytes, 3);
    if (rank == 0) OK(MPI_File_write(file, bytes, 40, MPI_BYTE, MPI_STATUS_IGNORE));
    OK(MPI_File_close(&file));
    file = opened(MPI_COMM_WORLD, name, MPI_MODE_WRONLY | MPI_MODE_APPEND);
    if (file == MPI_FILE_NULL) return;
    OK(MPI_File_get_position(file, &offset));
    EQUAL(offset, 40);
    OK(MPI_File_get_position_shared(file, &offset));
    EQUAL(offset, 40);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == size - 1) OK(MPI_File_write(file, bytes + 40, 10, MPI_BYTE, MPI_STATUS_IGNORE));
    MPI_Barrier(MPI_COMM_WORLD);
    OK(MPI_File_close(&file));
    HOLDS(name, 0, bytes, 50);
    /* The end is where the pointers begin, and no more than that: what says where it goes goes there. */
    file = opened(MPI_COMM_WORLD, name, MPI_MODE_RDWR | MPI_MODE_APPEND);
    if (file == MPI_FILE_NULL) return;
    if (rank == 0) OK(MPI_File_write_at(file, 0, bytes + 50, 10, MPI_BYTE, MPI_STATUS_IGNORE));
    OK(MPI_File_close(&file));
    HOLDS(name, 0, bytes + 50, 10);
    HOLDS(name, 10, bytes + 10, 40);
    removed(name);
}

static void atomicity(void)
{
    const char *name = path("a");
    MPI_File file = created(MPI_COMM_WORLD, name);
    int flag = -1;
    if (file == MPI_FILE_NULL) return;
    OK(MPI_File_get_atomicity(file, &flag));
    EQUAL(flag, 0);
    OK(MPI_File_set_atomicity(file, 1));
    OK(MPI_File_get_atomicity(file, &flag));
    CHECK(flag);
    OK(MPI_File_set_atomicity(file, 0));
    OK(MPI_File_get_atomicity(file, &flag));
    EQUAL(flag, 0);
    OK(MPI_File_sync(file));
    OK(MPI_File_close(&file));
    removed(name);
}

/* Where the name is a path of the system's, system calls see the same file. */
static void posix(void)
{
    const char *name = path("a");
    struct stat status;
    if (name[0] != '/') {
        note("skipped: %s is no path of the system's", name);
        return;
    }
    mode_t before = umask(022);
    removed(name);
    MPI_File file = opened(MPI_COMM_WORLD, name, create);
    if (file == MPI_FILE_NULL) return;
    OK(MPI_File_set_size(file, 12345));
    CHECK(stat(name, &status) == 0);
    EQUAL(status.st_size, 12345);
    EQUAL(status.st_mode & 07777, 0644);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        FILE *stream = fopen(name, "r+");
        CHECK(stream != NULL);
        if (stream) {
            fputs("by the system", stream);
            fclose(stream);
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    char found[14] = "";
    OK(MPI_File_read_at_all(file, 0, found, 13, MPI_CHAR, MPI_STATUS_IGNORE));
    SAME(found, "by the system", 13);
    OK(MPI_File_close(&file));
    umask(before);
    removed(name);
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        {"modes", modes},
        {"directions", directions},
        {"sequential", sequential},
        {"delete_on_close", delete_on_close},
        {"sizes", sizes},
        {"groups", groups},
        {"hints", hints},
        {"errors", errors},
        {"arguments", arguments},
        {"no_file", no_file},
        {"handles", handles},
        {"append", append},
        {"atomicity", atomicity},
        {"posix", posix},
        {NULL, NULL},
    };
    return check_main(argc, argv, cases);
}
