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

#endif
