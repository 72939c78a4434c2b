#include "view.h"
#include "error.h"

#include <stdlib.h>
#include <string.h>

/* A datatype that stays when the program frees its own. */
static int keep(MPI_Datatype type, MPI_Datatype *kept)
{
    *kept = type;
    return type_is_named(type) ? MPI_SUCCESS : PMPI_Type_dup(type, kept);
}

static void drop(MPI_Datatype *type)
{
    if (*type != MPI_DATATYPE_NULL && !type_is_named(*type)) {
        PMPI_Type_free(type);
    }
}

/* What MPI demands of where an etype or filetype has its data. The classes are ROMIO's, which programs
 * know: the standard has none for it. */
static int check_places(const struct flat *flat, const char *which, bool writable)
{
    const struct shape *shape = flat->shape;
    const char *trouble = NULL;
    if (shape == NULL) {
        return MPI_SUCCESS;
    }
    if (shape->low < 0 || !shape->ordered) {
        trouble = "displacements are negative or decrease";
    } else if (writable && !shape->disjoint) {
        trouble = "data overlap, which no file that may be written can have";
    } else if (flat->extent < 0) {
        trouble = "extent is negative";
    }
    return trouble == NULL ? MPI_SUCCESS
                           : error_set(MPI_ERR_IO, "set view: the %s's %s; the view stays as it was",
                                       which, trouble);
}

static int check(const struct view *view, bool writable)
{
    const struct flat *tile = view->tile;
    if (tile->shape != NULL && (view->etype_size == 0 || tile->size % view->etype_size != 0)) {
        return error_set(MPI_ERR_ARG,
                         "set view: the filetype has %lld bytes of data, which is no multiple of the "
                         "etype's %lld; the view stays as it was",
                         (long long)tile->size, (long long)view->etype_size);
    }
    return check_places(tile, "filetype", writable);
}

static int fill(struct view *view, MPI_Datatype etype, MPI_Datatype filetype, bool writable)
{
    struct flat *unit;
    int class = representation_flatten(view->representation, etype, &unit);
    if (class == MPI_SUCCESS) {
        view->etype_size = unit->size;
        int places = check_places(unit, "etype", writable);
        flat_release(unit);
        if (places != MPI_SUCCESS) {
            return places;
        }
        class = representation_flatten(view->representation, filetype, &view->tile);
    }
    if (class == MPI_SUCCESS) {
        class = keep(etype, &view->etype);
    }
    if (class == MPI_SUCCESS) {
        class = keep(filetype, &view->filetype);
    }
    if (class != MPI_SUCCESS) {
        return error_set(class, "set view: the datatypes cannot be used in the representation %s; "
                                "the view stays as it was",
                         view->representation->name);
    }
    return check(view, writable);
}

int view_make(MPI_Offset displacement, MPI_Datatype etype, MPI_Datatype filetype,
              const char *representation, bool writable, struct view **out)
{
    *out = NULL;
    if (etype == MPI_DATATYPE_NULL || filetype == MPI_DATATYPE_NULL) {
        return error_set(MPI_ERR_TYPE, "set view: a datatype is null; the view stays as it was");
    }
    const struct representation *how =
        representation == NULL ? NULL : representation_find(representation);
    if (how == NULL) {
        return error_set(MPI_ERR_UNSUPPORTED_DATAREP,
                         "set view: there is no data representation %s; the view stays as it was",
                         representation == NULL ? "(null)" : representation);
    }
    struct view *view = calloc(1, sizeof *view);
    if (view == NULL) {
        return error_set(MPI_ERR_NO_MEM, "set view: no memory; the view stays as it was");
    }
    *view = (struct view){.displacement = displacement,
                          .etype = MPI_DATATYPE_NULL,
                          .filetype = MPI_DATATYPE_NULL,
                          .representation = how};
    int class = fill(view, etype, filetype, writable);
    if (class != MPI_SUCCESS) {
        view_free(view);
        return class;
    }
    *out = view;
    return MPI_SUCCESS;
}

void view_free(struct view *view)
{
    if (view == NULL) {
        return;
    }
    drop(&view->etype);
    drop(&view->filetype);
    flat_release(view->tile);
    free(view);
}

MPI_Count view_etype_size(const struct view *view)
{
    return view->etype_size;
}

MPI_Offset view_byte_offset(const struct view *view, MPI_Offset position)
{
    const struct flat *tile = view->tile;
    if (tile->shape == NULL) {
        return view->displacement;
    }
    return view->displacement + shape_locate(tile->shape, tile->extent, position);
}

MPI_Offset view_position(const struct view *view, MPI_Offset file_offset)
{
    const struct flat *tile = view->tile;
    return shape_data_before(tile->shape, tile->extent, file_offset - view->displacement);
}

int view_describe(const struct view *view, MPI_Offset *displacement, MPI_Datatype *etype,
                  MPI_Datatype *filetype, char *representation)
{
    *displacement = view->displacement;
    strcpy(representation, view->representation->name);
    int class = keep(view->etype, etype);
    if (class == MPI_SUCCESS) {
        class = keep(view->filetype, filetype);
    }
    return class == MPI_SUCCESS ? class : error_set(class, "get view: the MPI gives no datatype");
}

int view_type_extent(const struct view *view, MPI_Datatype datatype, MPI_Count *extent)
{
    struct flat *flat;
    int class = datatype == MPI_DATATYPE_NULL
                    ? MPI_ERR_TYPE
                    : representation_flatten(view->representation, datatype, &flat);
    if (class != MPI_SUCCESS) {
        return error_set(class, "get type extent: the datatype cannot be used in this representation");
    }
    *extent = flat->extent;
    flat_release(flat);
    return MPI_SUCCESS;
}
