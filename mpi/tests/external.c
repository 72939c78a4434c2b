/* external.c - data representations: external32 held against MPI_Pack_external, internal, a user's own. */
#include "check.h"

#include <complex.h>
#include <stdlib.h>
#include <string.h>

/* The basic types whose external form the standard gives. */
static MPI_Datatype basic(int i)
{
    switch (i) {
    case 0: return MPI_CHAR;
    case 1: return MPI_SHORT;
    case 2: return MPI_INT;
    case 3: return MPI_LONG_LONG;
    case 4: return MPI_FLOAT;
    case 5: return MPI_DOUBLE;
    case 6: return MPI_UNSIGNED;
    case 7: return MPI_INT64_T;
    case 8: return MPI_UINT16_T;
    case 9: return MPI_BYTE;
    case 10: return MPI_UNSIGNED_SHORT;
    case 11: return MPI_C_DOUBLE_COMPLEX;
    case 12: return MPI_SIGNED_CHAR;
    default: return MPI_DATATYPE_NULL;
    }
}

static void basics(void)
{
    enum { count = 25 };
    const char *name = path("a");
    MPI_File file = created(MPI_COMM_WORLD, name);
    MPI_Status status;
    if (file == MPI_FILE_NULL) return;
    for (int i = 0; basic(i) != MPI_DATATYPE_NULL; i++) {
        MPI_Datatype type = basic(i);
        unsigned char data[count * 16], packed[count * 16], found[count * 16];
        MPI_Aint extent = -1, position = 0, due = 0;
        int bytes;
        MPI_Type_size(type, &bytes);
        random_fill(&own, data, sizeof data);
        /* Numbers, as some patterns of bytes are not the same after a conversion. */
        if (type == MPI_FLOAT) for (int k = 0; k < count; k++) ((float *)(void *)data)[k] = (float)k * -1.5f + (float)rank;
        if (type == MPI_DOUBLE) for (int k = 0; k < count; k++) ((double *)(void *)data)[k] = k * 1.0625e10 - rank;
        if (type == MPI_C_DOUBLE_COMPLEX) for (int k = 0; k < count; k++) ((double complex *)(void *)data)[k] = k + 2.5 * k * I;
        OK(MPI_File_set_view(file, 0, type, type, "external32", MPI_INFO_NULL));
        OK(MPI_File_get_type_extent(file, type, &extent));
        MPI_Pack_external_size("external32", 1, type, &due);
        EQUAL(extent, due);
        OK(MPI_File_write_at_all(file, (MPI_Offset)rank * count, data, count, type, &status));
        COUNTED(status, type, count);
        settle(file);
        memset(found, 0, sizeof found);
        OK(MPI_File_read_at(file, (MPI_Offset)rank * count, found, count, type, &status));
        COUNTED(status, type, count);
        SAME(found, data, (size_t)(count * bytes));
        /* As bytes, they are what MPI itself would send to another kind of machine. */
        MPI_Pack_external("external32", data, count, type, packed, sizeof packed, &position);
        EQUAL(position, count * due);
        OK(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
        OK(MPI_File_read_at_all(file, rank * position, found, (int)position, MPI_BYTE, MPI_STATUS_IGNORE));
        if (!check_same(found, packed, (size_t)position, __FILE__, __LINE__)) note("type number %d of %d bytes", i, bytes);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    /* Big endian, said without help. */
    static const unsigned char one[] = {0x01, 0x02, 0x03, 0x04, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0};
    int number = 0x01020304;
    double unity = 1;
    unsigned char found[12];
    if (rank == 0) {
        MPI_File mine = opened(MPI_COMM_SELF, name, MPI_MODE_RDWR);
        OK(MPI_File_set_view(mine, 0, MPI_BYTE, MPI_BYTE, "external32", MPI_INFO_NULL));
        OK(MPI_File_write(mine, &number, 1, MPI_INT, MPI_STATUS_IGNORE));
        OK(MPI_File_write(mine, &unity, 1, MPI_DOUBLE, MPI_STATUS_IGNORE));
        OK(MPI_File_set_view(mine, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
        OK(MPI_File_read(mine, found, 12, MPI_BYTE, MPI_STATUS_IGNORE));
        SAME(found, one, 12);
        OK(MPI_File_close(&mine));
    }
    OK(MPI_File_close(&file));
    removed(name);
}

/* A structure in memory, in strides in the file, one for each rank. */
static void derived(void)
{
    struct mixed {
        char tag;
        double value;
        short small[3];
        int number;
    };
    enum { count = 20 };
    const char *name = path("a");
    MPI_File file = created(MPI_COMM_WORLD, name);
    MPI_Datatype whole, memory, view;
    int lengths[] = {1, 1, 3, 1};
    MPI_Aint places[] = {offsetof(struct mixed, tag), offsetof(struct mixed, value), offsetof(struct mixed, small), offsetof(struct mixed, number)};
    MPI_Datatype types[] = {MPI_CHAR, MPI_DOUBLE, MPI_SHORT, MPI_INT};
    struct mixed data[count], found[count];
    if (file == MPI_FILE_NULL) return;
    MPI_Type_create_struct(4, lengths, places, types, &whole);
    MPI_Type_create_resized(whole, 0, sizeof(struct mixed), &memory);
    MPI_Type_commit(&memory);
    memset(data, 0, sizeof data);
    memset(found, 0, sizeof found);
    for (int i = 0; i < count; i++) {
        data[i].tag = (char)('a' + i);
        data[i].value = i / 3. + rank;
        for (int k = 0; k < 3; k++) data[i].small[k] = (short)(i * 10 + k - 90);
        data[i].number = i * 1000 + rank;
    }
    /* In the file an element is 1 + 8 + 6 + 4 bytes, without gaps. */
    int sizes[] = {size}, parts[] = {1}, starts[] = {rank};
    MPI_Datatype etype;
    MPI_Type_contiguous(19, MPI_BYTE, &etype);
    MPI_Type_commit(&etype);
    MPI_Type_create_subarray(1, sizes, parts, starts, MPI_ORDER_C, etype, &view);
    MPI_Type_commit(&view);
    OK(MPI_File_set_view(file, 10, etype, view, "external32", MPI_INFO_NULL));
    MPI_Status status;
    OK(MPI_File_write_all(file, data, count, memory, &status));
    int written = -1;
    MPI_Get_count(&status, memory, &written);
    EQUAL(written, count);
    settle(file);
    OK(MPI_File_read_at_all(file, 0, found, count, memory, &status));
    for (int i = 0; i < count; i++) {
        CHECK(found[i].tag == data[i].tag && found[i].value == data[i].value && found[i].number == data[i].number, "element %d", i);
        SAME(found[i].small, data[i].small, sizeof data[i].small);
    }
    OK(MPI_File_set_view(file, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    unsigned char bytes[19], packed[64];
    for (int i = 0; i < count; i++) {
        MPI_Aint position = 0;
        MPI_Pack_external("external32", &data[i].tag, 1, MPI_CHAR, packed, sizeof packed, &position);
        MPI_Pack_external("external32", &data[i].value, 1, MPI_DOUBLE, packed, sizeof packed, &position);
        MPI_Pack_external("external32", data[i].small, 3, MPI_SHORT, packed, sizeof packed, &position);
        MPI_Pack_external("external32", &data[i].number, 1, MPI_INT, packed, sizeof packed, &position);
        OK(MPI_File_read_at(file, 10 + 19 * ((MPI_Offset)i * size + rank), bytes, 19, MPI_BYTE, MPI_STATUS_IGNORE));
        SAME(bytes, packed, 19);
    }
    MPI_Type_free(&whole);
    MPI_Type_free(&memory);
    MPI_Type_free(&etype);
    MPI_Type_free(&view);
    OK(MPI_File_close(&file));
    removed(name);
}

/* Whatever internal is, what was written with it is read back with it. */
static void internal(void)
{
    const char *name = path("a");
    MPI_File file = created(MPI_COMM_WORLD, name);
    double data[100], found[100] = {0};
    char datarep[MPI_MAX_DATAREP_STRING + 1] = "";
    MPI_Offset disp;
    MPI_Datatype etype, filetype;
    if (file == MPI_FILE_NULL) return;
    for (int i = 0; i < 100; i++) data[i] = rank + i / 7.;
    OK(MPI_File_set_view(file, 0, MPI_DOUBLE, MPI_DOUBLE, "internal", MPI_INFO_NULL));
    OK(MPI_File_get_view(file, &disp, &etype, &filetype, datarep));
    CHECK(strcmp(datarep, "internal") == 0, "it is %s", datarep);
    OK(MPI_File_write_at_all(file, 100 * rank, data, 100, MPI_DOUBLE, MPI_STATUS_IGNORE));
    settle(file);
    OK(MPI_File_close(&file));
    file = opened(MPI_COMM_WORLD, name, MPI_MODE_RDONLY);
    if (file == MPI_FILE_NULL) return;
    OK(MPI_File_set_view(file, 0, MPI_DOUBLE, MPI_DOUBLE, "internal", MPI_INFO_NULL));
    OK(MPI_File_read_at_all(file, 100 * rank, found, 100, MPI_DOUBLE, MPI_STATUS_IGNORE));
    SAME(found, data, sizeof data);
    OK(MPI_File_close(&file));
    removed(name);
}

/* A representation of the user's: each int is stored as its complement. */
static int converted;
static int complement(void *into, void *from, int count, MPI_Offset position, bool writing)
{
    unsigned *to = writing ? from : into, *source = writing ? into : from;
    /* The user's side is the buffer from its beginning, and position says from which element on. */
    (void)position;
    converted += count;
    for (int i = 0; i < count; i++) to[i] = ~source[i];
    return MPI_SUCCESS;
}
static int from_file(void *user, MPI_Datatype type, int count, void *stored, MPI_Offset position, void *state)
{
    (void)type, (void)state;
    return complement((unsigned *)user + position, stored, count, position, false);
}
static int to_file(void *user, MPI_Datatype type, int count, void *stored, MPI_Offset position, void *state)
{
    (void)type, (void)state;
    return complement((unsigned *)user + position, stored, count, position, true);
}
static int extent_in_file(MPI_Datatype type, MPI_Aint *extent, void *state)
{
    MPI_Aint lb;
    (void)state;
    return MPI_Type_get_extent(type, &lb, extent);
}

static void registered(void)
{
    const char *name = path("a");
    MPI_File file = created(MPI_COMM_WORLD, name);
    unsigned data[50], found[50] = {0};
    if (file == MPI_FILE_NULL) return;
    OK(MPI_Register_datarep("complement", from_file, to_file, extent_in_file, NULL));
    FAILS(MPI_Register_datarep("complement", from_file, to_file, extent_in_file, NULL), MPI_ERR_DUP_DATAREP);
    int error = MPI_File_set_view(file, 0, MPI_UNSIGNED, MPI_UNSIGNED, "complement", MPI_INFO_NULL);
    if (error != MPI_SUCCESS && !driver) {
        note("this MPI has no representations of users");
    } else if (OK(error)) {
        for (unsigned i = 0; i < 50; i++) data[i] = i * 77777 + (unsigned)rank;
        OK(MPI_File_write_at(file, 50 * rank, data, 50, MPI_UNSIGNED, MPI_STATUS_IGNORE));
        settle(file);
        OK(MPI_File_read_at(file, 50 * rank, found, 50, MPI_UNSIGNED, MPI_STATUS_IGNORE));
        SAME(found, data, sizeof data);
        CHECK(converted >= 100);
        for (int i = 0; i < 50; i++) data[i] = ~data[i];
        HOLDS(name, 200 * rank, data, sizeof data);
    }
    OK(MPI_File_close(&file));
    removed(name);
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        {"basics", basics}, {"derived", derived}, {"internal", internal}, {"registered", registered}, {NULL, NULL},
    };
    return check_main(argc, argv, cases);
}
