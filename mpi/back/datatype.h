/* datatype.h - MPI datatypes as shapes.
 *
 * Any datatype is taken apart with MPI_Type_get_envelope and MPI_Type_get_contents; the result is
 * kept with the datatype, as an attribute, because programs set the same view for each transfer.
 */
#ifndef WEIR_MPI_DATATYPE_H
#define WEIR_MPI_DATATYPE_H

#include "shape.h"

#include <mpi.h>

/* A datatype, flattened. */
struct flat {
    const struct shape *shape; /* NULL: no data */
    int64_t size;              /* bytes of data */
    int64_t low, extent;       /* lower bound and extent */
    bool dense;                /* any number of them is one run, from the start of the first */
    int committed;             /* not 0: the datatype was seen to be (committed.h); atomically */
    int references;            /* atomically */
    struct shape_arena arena;
};

/* What is wanted of basic types. */
enum flat_form {
    FLAT_NATIVE, /* bytes; neighbours of different types are joined */
    FLAT_TYPED,  /* each run tells what its elements are (struct shape's `basic`, see represent.h) */
};

/* Gives the datatype's flattening, to be given back with flat_release(). An MPI error class. */
int flat_get(MPI_Datatype type, enum flat_form form, struct flat **out);

/* How many bytes a basic datatype takes in a file of another representation; an error class. */
typedef int flat_sizer(MPI_Datatype basic, int64_t *size, void *state);

/* Flattens a datatype for a file whose basic types have the sizes that `sizer` tells: extents of what
 * is built from them follow; displacements that the program gave in bytes stay. Not kept. */
int flat_resized(MPI_Datatype type, flat_sizer *sizer, void *state, struct flat **out);

struct flat *flat_share(struct flat *flat);
void flat_release(struct flat *flat);

/* Whether a datatype is a predefined one, which is nobody's to free. */
bool type_is_named(MPI_Datatype type);

#endif
