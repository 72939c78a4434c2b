#include "represent.h"

#include <stddef.h>

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
