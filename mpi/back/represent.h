/* represent.h - how data lies in a file: as in memory, or as another representation says.
 *
 * external32 is big-endian IEEE, with sizes of its own for some basic types (MPI 4.0, 14.5.2): a long
 * has 4 bytes, a wide character 2. Conversion knows nothing of MPI once the datatype is flattened.
 */
#ifndef WEIR_MPI_REPRESENT_H
#define WEIR_MPI_REPRESENT_H

#include "datatype.h"

/* What a basic type's elements are, as far as representations care. 0 is "not said". */
struct basic {
    uint8_t native, external; /* bytes of an element in memory and in external32 */
    enum basic_kind { BASIC_PLAIN, BASIC_SIGNED, BASIC_UNSIGNED, BASIC_EXTENDED } kind;
};

/* What a predefined datatype is made of. */
struct named {
    uint8_t basic;      /* for basic_info() */
    uint8_t components; /* elements of that: 2 of a complex number */
    uint8_t second;     /* of a pair (MPI_DOUBLE_INT): its second, one element; or 0 */
};

struct basic basic_info(uint8_t basic);
/* An error class: MPI_ERR_UNSUPPORTED_DATAREP for what external32 does not know. */
int named_info(MPI_Datatype type, struct named *out);
/* The same for what MPI_Type_create_f90_* gave, by its combiner and arguments. */
int named_info_f90(int combiner, int precision, int range, int64_t size, struct named *out);


/* A function of the program's, of one of two types. */
typedef void representation_function(void);

/* How a file holds data. */
struct representation {
    char name[MPI_MAX_DATAREP_STRING];
    enum { REPRESENT_AS_MEMORY, REPRESENT_EXTERNAL32, REPRESENT_BY_PROGRAM } how;
    /* Of a program's own: */
    representation_function *read, *write; /* NULL: nothing to convert */
    bool large;                            /* they count with MPI_Count */
    MPI_Datarep_extent_function *extent;
    void *state;
};

/* By name; NULL: there is none. They live as long as the process. */
const struct representation *representation_find(const char *name);

/* Calls the program's function: `count` elements of the type map, out of or into `outside`. */
int representation_convert(const struct representation *how, bool write, void *buffer,
                           MPI_Datatype type, int64_t count, void *outside);

/* A datatype as it lies in such a file. To be given back with flat_release(). */
int representation_flatten(const struct representation *representation, MPI_Datatype type,
                           struct flat **out);

/* Elements of a datatype: entries of its type map. */
int representation_elements(MPI_Datatype type, int64_t *elements);

/* Part of a buffer, whole elements, and as much of a file. */
struct converted {
    int64_t native, external; /* bytes */
    bool overflow;            /* some number has no place in the other form */
};

/* Converts what lies from byte `from` to byte `to` of the data of typed memory, as far as it fits
 * into `room` bytes of external32: into `external` (write), out of it (read), or not at all (measure).
 * `cursor` is over the typed shape, its base the buffer. */
enum convert { CONVERT_MEASURE, CONVERT_WRITE, CONVERT_READ };
struct converted convert(enum convert way, struct cursor *cursor, int64_t from, int64_t to,
                         unsigned char *external, int64_t room);

#endif
