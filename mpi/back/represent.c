#include "represent.h"
#include "back.h"

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum {
    B_BYTES = 1, /* characters, logicals of one byte, what is opaque */
    B_2,         /* two bytes that only change their order, and so on */
    B_4,
    B_8,
    B_16,
    B_LONG, /* native long: 4 bytes in external32 */
    B_ULONG,
    B_WCHAR,
    B_EXTENDED, /* x87's 80 bits in 16 bytes: binary128 in external32 */
    B_COUNT,
};

static const struct basic basics[B_COUNT] = {
    [0] = {1, 1, BASIC_PLAIN},
    [B_BYTES] = {1, 1, BASIC_PLAIN},
    [B_2] = {2, 2, BASIC_PLAIN},
    [B_4] = {4, 4, BASIC_PLAIN},
    [B_8] = {8, 8, BASIC_PLAIN},
    [B_16] = {16, 16, BASIC_PLAIN},
    [B_LONG] = {sizeof(long), 4, BASIC_SIGNED},
    [B_ULONG] = {sizeof(long), 4, BASIC_UNSIGNED},
    [B_WCHAR] = {sizeof(wchar_t), 2, BASIC_UNSIGNED},
#if __LDBL_MANT_DIG__ == 64
    [B_EXTENDED] = {sizeof(long double), 16, BASIC_EXTENDED},
#else
    [B_EXTENDED] = {sizeof(long double), 16, BASIC_PLAIN},
#endif
};

struct basic basic_info(uint8_t basic)
{
    return basics[basic < B_COUNT ? basic : 0];
}

struct entry {
    MPI_Datatype type;
    struct named named;
};

/* By size, for the types of Fortran: the compiler may have been told other sizes than usual, and
 * external32 has only those that are listed here. */
static uint8_t plain(int size)
{
    switch (size) {
    case 1:
        return B_BYTES;
    case 2:
        return B_2;
    case 4:
        return B_4;
    case 8:
        return B_8;
    case 16:
        return B_16;
    default:
        return 0;
    }
}

int named_info(MPI_Datatype type, struct named *out)
{
    const struct entry entries[] = {
        {MPI_CHAR, {B_BYTES, 1, 0}},
        {MPI_SIGNED_CHAR, {B_BYTES, 1, 0}},
        {MPI_UNSIGNED_CHAR, {B_BYTES, 1, 0}},
        {MPI_BYTE, {B_BYTES, 1, 0}},
        {MPI_PACKED, {B_BYTES, 1, 0}},
        {MPI_CHARACTER, {B_BYTES, 1, 0}},
        {MPI_C_BOOL, {B_BYTES, 1, 0}},
        {MPI_CXX_BOOL, {B_BYTES, 1, 0}},
        {MPI_INT8_T, {B_BYTES, 1, 0}},
        {MPI_UINT8_T, {B_BYTES, 1, 0}},
        {MPI_WCHAR, {B_WCHAR, 1, 0}},
        {MPI_SHORT, {B_2, 1, 0}},
        {MPI_UNSIGNED_SHORT, {B_2, 1, 0}},
        {MPI_INT16_T, {B_2, 1, 0}},
        {MPI_UINT16_T, {B_2, 1, 0}},
        {MPI_INT, {B_4, 1, 0}},
        {MPI_UNSIGNED, {B_4, 1, 0}},
        {MPI_INT32_T, {B_4, 1, 0}},
        {MPI_UINT32_T, {B_4, 1, 0}},
        {MPI_FLOAT, {B_4, 1, 0}},
        {MPI_LONG, {B_LONG, 1, 0}},
        {MPI_UNSIGNED_LONG, {B_ULONG, 1, 0}},
        {MPI_LONG_LONG, {B_8, 1, 0}},
        {MPI_UNSIGNED_LONG_LONG, {B_8, 1, 0}},
        {MPI_INT64_T, {B_8, 1, 0}},
        {MPI_UINT64_T, {B_8, 1, 0}},
        {MPI_AINT, {B_8, 1, 0}},
        {MPI_OFFSET, {B_8, 1, 0}},
        {MPI_COUNT, {B_8, 1, 0}},
        {MPI_DOUBLE, {B_8, 1, 0}},
        {MPI_LONG_DOUBLE, {B_EXTENDED, 1, 0}},
        {MPI_C_FLOAT_COMPLEX, {B_4, 2, 0}},
        {MPI_C_DOUBLE_COMPLEX, {B_8, 2, 0}},
        {MPI_C_LONG_DOUBLE_COMPLEX, {B_EXTENDED, 2, 0}},
        {MPI_CXX_FLOAT_COMPLEX, {B_4, 2, 0}},
        {MPI_CXX_DOUBLE_COMPLEX, {B_8, 2, 0}},
        {MPI_CXX_LONG_DOUBLE_COMPLEX, {B_EXTENDED, 2, 0}},
        {MPI_2INT, {B_4, 2, 0}},
        {MPI_FLOAT_INT, {B_4, 1, B_4}},
        {MPI_DOUBLE_INT, {B_8, 1, B_4}},
        {MPI_LONG_INT, {B_LONG, 1, B_4}},
        {MPI_SHORT_INT, {B_2, 1, B_4}},
        {MPI_LONG_DOUBLE_INT, {B_EXTENDED, 1, B_4}},
        {MPI_INTEGER, {B_4, 1, 0}},
        {MPI_LOGICAL, {B_4, 1, 0}},
        {MPI_REAL, {B_4, 1, 0}},
        {MPI_DOUBLE_PRECISION, {B_8, 1, 0}},
        {MPI_COMPLEX, {B_4, 2, 0}},
        {MPI_DOUBLE_COMPLEX, {B_8, 2, 0}},
        {MPI_2INTEGER, {B_4, 2, 0}},
        {MPI_2REAL, {B_4, 2, 0}},
        {MPI_2DOUBLE_PRECISION, {B_8, 2, 0}},
#ifdef MPI_INTEGER1
        {MPI_INTEGER1, {B_BYTES, 1, 0}},
#endif
#ifdef MPI_INTEGER2
        {MPI_INTEGER2, {B_2, 1, 0}},
#endif
#ifdef MPI_INTEGER4
        {MPI_INTEGER4, {B_4, 1, 0}},
#endif
#ifdef MPI_INTEGER8
        {MPI_INTEGER8, {B_8, 1, 0}},
#endif
#ifdef MPI_INTEGER16
        {MPI_INTEGER16, {B_16, 1, 0}},
#endif
#ifdef MPI_LOGICAL1
        {MPI_LOGICAL1, {B_BYTES, 1, 0}},
#endif
#ifdef MPI_LOGICAL2
        {MPI_LOGICAL2, {B_2, 1, 0}},
#endif
#ifdef MPI_LOGICAL4
        {MPI_LOGICAL4, {B_4, 1, 0}},
#endif
#ifdef MPI_LOGICAL8
        {MPI_LOGICAL8, {B_8, 1, 0}},
#endif
#ifdef MPI_REAL2
        {MPI_REAL2, {B_2, 1, 0}},
#endif
#ifdef MPI_REAL4
        {MPI_REAL4, {B_4, 1, 0}},
#endif
#ifdef MPI_REAL8
        {MPI_REAL8, {B_8, 1, 0}},
#endif
#ifdef MPI_REAL16
        {MPI_REAL16, {B_16, 1, 0}},
#endif
#ifdef MPI_COMPLEX8
        {MPI_COMPLEX8, {B_4, 2, 0}},
#endif
#ifdef MPI_COMPLEX16
        {MPI_COMPLEX16, {B_8, 2, 0}},
#endif
#ifdef MPI_COMPLEX32
        {MPI_COMPLEX32, {B_16, 2, 0}},
#endif
    };
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        if (entries[i].type == type && type != MPI_DATATYPE_NULL) {
            *out = entries[i].named;
            return MPI_SUCCESS;
        }
    }
    return MPI_ERR_UNSUPPORTED_DATAREP;
}

/* Decimal digits of the formats of IEEE, and of x87 between them. */
#define EXTENDED_DIGITS 18

int named_info_f90(int combiner, int precision, int range, int64_t size, struct named *out)
{
    *out = (struct named){0};
    if (combiner == MPI_COMBINER_F90_INTEGER) {
        *out = (struct named){plain((int)size), 1, 0};
    } else {
        int components = combiner == MPI_COMBINER_F90_COMPLEX ? 2 : 1;
        int64_t each = size / components;
        bool quad = precision != MPI_UNDEFINED && precision > EXTENDED_DIGITS;
        uint8_t basic = each == 16 && !quad ? (uint8_t)B_EXTENDED : plain((int)each);
        *out = (struct named){basic, (uint8_t)components, 0};
    }
    (void)range;
    return out->basic == 0 ? MPI_ERR_UNSUPPORTED_DATAREP : MPI_SUCCESS;
}

/* ---- representations --------------------------------------------------------------------- */

#define REGISTERED_MAX 64

static const struct representation built_in[] = {
    {.name = "native", .how = REPRESENT_AS_MEMORY},
    /* Between nodes of one kind there is nothing to convert. */
    {.name = "internal", .how = REPRESENT_AS_MEMORY},
    {.name = "external32", .how = REPRESENT_EXTERNAL32},
};
static struct representation registered[REGISTERED_MAX];
static int registered_count;
static pthread_mutex_t registered_lock = PTHREAD_MUTEX_INITIALIZER;

static const struct representation *find(const char *name)
{
    for (size_t i = 0; i < sizeof built_in / sizeof built_in[0]; i++) {
        if (strcmp(built_in[i].name, name) == 0) {
            return &built_in[i];
        }
    }
    for (int i = 0; i < registered_count; i++) {
        if (strcmp(registered[i].name, name) == 0) {
            return &registered[i];
        }
    }
    return NULL;
}

const struct representation *representation_find(const char *name)
{
    pthread_mutex_lock(&registered_lock);
    const struct representation *found = find(name);
    pthread_mutex_unlock(&registered_lock);
    return found;
}

static int keep(const char *name, representation_function *read, representation_function *write,
                bool large, MPI_Datarep_extent_function *extent, void *state)
{
    if (name == NULL || extent == NULL || strlen(name) >= MPI_MAX_DATAREP_STRING) {
        return MPI_ERR_ARG;
    }
    int error = MPI_SUCCESS;
    pthread_mutex_lock(&registered_lock);
    if (find(name) != NULL) {
        error = MPI_ERR_DUP_DATAREP;
    } else if (registered_count == REGISTERED_MAX) {
        error = MPI_ERR_NO_MEM;
    } else {
        struct representation *made = &registered[registered_count++];
        strcpy(made->name, name);
        made->how = REPRESENT_BY_PROGRAM;
        made->read = read;
        made->write = write;
        made->large = large;
        made->extent = extent;
        made->state = state;
    }
    pthread_mutex_unlock(&registered_lock);
    return error;
}

int representation_convert(const struct representation *how, bool write, void *buffer,
                           MPI_Datatype type, int64_t count, void *outside)
{
    representation_function *function = write ? how->write : how->read;
#if MPI_VERSION >= 4
    if (how->large) {
        return ((MPI_Datarep_conversion_function_c *)function)(buffer, type, count, outside, 0,
                                                               how->state);
    }
#endif
    if (count > INT32_MAX) {
        return MPI_ERR_COUNT;
    }
    return ((MPI_Datarep_conversion_function *)function)(buffer, type, (int)count, outside, 0,
                                                         how->state);
}

/* MPI_Register_datarep, as the front library hands it on: the MPI has agreed to it. */
EXPORT int weir_mpi_Register_datarep(const char *name, MPI_Datarep_conversion_function *read,
                                     MPI_Datarep_conversion_function *write,
                                     MPI_Datarep_extent_function *extent, void *state);
int weir_mpi_Register_datarep(const char *name, MPI_Datarep_conversion_function *read,
                              MPI_Datarep_conversion_function *write,
                              MPI_Datarep_extent_function *extent, void *state)
{
    return keep(name, read == MPI_CONVERSION_FN_NULL ? NULL : (representation_function *)read,
                write == MPI_CONVERSION_FN_NULL ? NULL : (representation_function *)write, false,
                extent, state);
}

#if MPI_VERSION >= 4
EXPORT int weir_mpi_Register_datarep_c(const char *name, MPI_Datarep_conversion_function_c *read,
                                       MPI_Datarep_conversion_function_c *write,
                                       MPI_Datarep_extent_function *extent, void *state);
int weir_mpi_Register_datarep_c(const char *name, MPI_Datarep_conversion_function_c *read,
                                MPI_Datarep_conversion_function_c *write,
                                MPI_Datarep_extent_function *extent, void *state)
{
    return keep(name, read == MPI_CONVERSION_FN_NULL_C ? NULL : (representation_function *)read,
                write == MPI_CONVERSION_FN_NULL_C ? NULL : (representation_function *)write, true,
                extent, state);
}
#endif

static int external_size(MPI_Datatype type, int64_t *size, void *state)
{
    (void)state;
    struct named named;
    int error = named_info(type, &named);
    if (error != MPI_SUCCESS) {
        /* What MPI_Type_create_f90_* gave has the size of its native form in external32 too. */
        MPI_Count bytes = 0;
        error = PMPI_Type_size_x(type, &bytes);
        *size = bytes;
        return error;
    }
    *size = (int64_t)basics[named.basic].external * named.components;
    *size += named.second == 0 ? 0 : basics[named.second].external;
    return MPI_SUCCESS;
}

static int program_size(MPI_Datatype type, int64_t *size, void *state)
{
    const struct representation *representation = state;
    MPI_Aint bytes = 0;
    int error = representation->extent(type, &bytes, representation->state);
    *size = bytes;
    return error == MPI_SUCCESS ? MPI_SUCCESS : MPI_ERR_CONVERSION;
}

static int one(MPI_Datatype type, int64_t *size, void *state)
{
    (void)type;
    (void)state;
    *size = 1;
    return MPI_SUCCESS;
}

int representation_flatten(const struct representation *representation, MPI_Datatype type,
                           struct flat **out)
{
    switch (representation->how) {
    case REPRESENT_EXTERNAL32:
        return flat_resized(type, external_size, NULL, out);
    case REPRESENT_BY_PROGRAM:
        return flat_resized(type, program_size, (void *)(uintptr_t)representation, out);
    default:
        return flat_get(type, FLAT_NATIVE, out);
    }
}

int representation_elements(MPI_Datatype type, int64_t *elements)
{
    struct flat *flat;
    int error = flat_resized(type, one, NULL, &flat);
    *elements = error == MPI_SUCCESS ? flat->size : 0;
    flat_release(flat);
    return error;
}

/* ---- external32 -------------------------------------------------------------------------- */

static void reverse(unsigned char *to, const unsigned char *from, int size)
{
    for (int i = 0; i < size; i++) {
        to[i] = from[size - 1 - i];
    }
}

/* Words of so many bits, at any address. */
#define swap_words(bits, to, from, bytes)                       \
    for (int64_t at_ = 0; at_ < (bytes); at_ += (bits) / 8) {   \
        uint##bits##_t word_;                                   \
        memcpy(&word_, (from) + at_, sizeof word_);             \
        word_ = __builtin_bswap##bits(word_);                   \
        memcpy((to) + at_, &word_, sizeof word_);               \
    }

/* Arrays of what only changes its order. */
static void swap(unsigned char *to, const unsigned char *from, int64_t bytes, int size)
{
    switch (size) {
    case 1:
        memcpy(to, from, (size_t)bytes);
        return;
    case 2:
        swap_words(16, to, from, bytes);
        return;
    case 4:
        swap_words(32, to, from, bytes);
        return;
    case 8:
        swap_words(64, to, from, bytes);
        return;
    default:
        for (int64_t i = 0; i < bytes; i += size) {
            reverse(to + i, from + i, size);
        }
    }
}

/* An integer of another size; whether it fits. */
static bool narrow(unsigned char *external, const unsigned char *native, struct basic basic)
{
    uint64_t value = 0;
    memcpy(&value, native, basic.native);
    int bits = 8 * basic.external;
    bool fits = value >> bits == 0;
    if (basic.kind == BASIC_SIGNED) {
        int64_t number = (int64_t)(value << (64 - 8 * basic.native)) >> (64 - 8 * basic.native);
        fits = number >= -(INT64_C(1) << (bits - 1)) && number < INT64_C(1) << (bits - 1);
    }
    reverse(external, (const unsigned char *)&value, basic.external);
    return fits;
}

static void widen(unsigned char *native, const unsigned char *external, struct basic basic)
{
    uint64_t value = 0;
    reverse((unsigned char *)&value, external, basic.external);
    if (basic.kind == BASIC_SIGNED) {
        int shift = 64 - 8 * basic.external;
        value = (uint64_t)((int64_t)(value << shift) >> shift);
    }
    memcpy(native, &value, basic.native);
}

/* x87's number has 15 bits of exponent, as binary128 has, and 64 of mantissa, of which the first is
 * written; binary128 has 112 behind one that is not. */
static void to_quad(unsigned char *external, const unsigned char *native)
{
    uint64_t mantissa;
    uint16_t head;
    memcpy(&mantissa, native, sizeof mantissa);
    memcpy(&head, native + 8, sizeof head);
    uint64_t fraction = mantissa & ~(UINT64_C(1) << 63);
    if ((head & 0x7fff) == 0 && fraction != mantissa) {
        head |= 1;
    }
    unsigned char quad[16] = {0};
    uint64_t low = fraction << 49, high = (uint64_t)head << 48 | fraction >> 15;
    memcpy(quad, &low, sizeof low);
    memcpy(quad + 8, &high, sizeof high);
    reverse(external, quad, 16);
}

static void from_quad(unsigned char *native, const unsigned char *external)
{
    unsigned char quad[16];
    uint64_t low, high;
    reverse(quad, external, 16);
    memcpy(&low, quad, sizeof low);
    memcpy(&high, quad + 8, sizeof high);
    uint16_t head = (uint16_t)(high >> 48);
    uint64_t fraction = (high & 0xffffffffffff) << 15 | low >> 49;
    uint64_t rest = low & ((UINT64_C(1) << 49) - 1), half = UINT64_C(1) << 48;
    bool number = (head & 0x7fff) != 0x7fff;
    if (!number && fraction == 0 && rest != 0) {
        fraction = 1; /* a NaN whose bits lie low stays one */
    }
    /* To the nearest, ties to even; a carry goes into the exponent, up to infinity. */
    if (number && (rest > half || (rest == half && (fraction & 1) != 0))) {
        fraction++;
        if (fraction >> 63 != 0) {
            fraction = 0;
            head++;
        }
    }
    bool normal = (head & 0x7fff) != 0;
    uint64_t mantissa = fraction | (uint64_t)normal << 63;
    memset(native, 0, sizeof(long double));
    memcpy(native, &mantissa, sizeof mantissa);
    memcpy(native + 8, &head, sizeof head);
}

/* One run of elements; false: a number does not fit. */
static bool convert_run(enum convert way, unsigned char *native, unsigned char *external,
                        int64_t count, struct basic basic)
{
    bool fits = true;
    bool write = way == CONVERT_WRITE;
    if (basic.kind == BASIC_PLAIN || (basic.kind != BASIC_EXTENDED && basic.native == basic.external)) {
        swap(write ? external : native, write ? native : external, count * basic.native,
             basic.native);
        return true;
    }
    for (int64_t i = 0; i < count; i++, native += basic.native, external += basic.external) {
        if (basic.kind == BASIC_EXTENDED) {
            if (write) {
                to_quad(external, native);
            } else {
                from_quad(native, external);
            }
        } else if (write) {
            fits &= narrow(external, native, basic);
        } else {
            widen(native, external, basic);
        }
    }
    return fits;
}

struct converted convert(enum convert way, struct cursor *cursor, int64_t from, int64_t to,
                         unsigned char *external, int64_t room)
{
    struct converted done = {0};
    cursor_seek(cursor, from);
    while (from + done.native < to) {
        int64_t left = to - from - done.native;
        /* An element is at most as large outside as in memory. */
        int64_t most = room - done.external < left ? room - done.external : left;
        if (most <= 0) {
            break;
        }
        struct strided runs = cursor_next(cursor, most);
        struct basic basic = basic_info(runs.basic);
        int64_t each = runs.length / basic.native;
        for (int64_t i = 0; i < runs.count && each > 0; i++) {
            unsigned char *native = (unsigned char *)(intptr_t)(runs.offset + i * runs.stride);
            if (way != CONVERT_MEASURE &&
                !convert_run(way, native, external + done.external, each, basic)) {
                done.overflow = true;
            }
            done.native += each * basic.native;
            done.external += each * basic.external;
        }
        if (each * basic.native != runs.length) {
            /* The cut went through an element. */
            cursor_seek(cursor, from + done.native);
            if (each == 0) {
                break;
            }
        }
    }
    return done;
}
