/* For now: bytes. */
#include "view.h"
#include "error.h"

#include <stdlib.h>
#include <string.h>

struct view {
    MPI_Offset displacement;
};

int view_make(MPI_Offset displacement, MPI_Datatype etype, MPI_Datatype filetype,
              const char *representation, struct view **out)
{
    if (etype != MPI_BYTE || filetype != MPI_BYTE || strcmp(representation, "native") != 0)
        return error_set(MPI_ERR_UNSUPPORTED_OPERATION, "set view: only bytes for now");
    struct view *view = malloc(sizeof *view);
    if (view == NULL)
        return error_set(MPI_ERR_NO_MEM, "set view: no memory");
    view->displacement = displacement;
    *out = view;
    return MPI_SUCCESS;
}

void view_free(struct view *view)
{
    free(view);
}

MPI_Count view_etype_size(const struct view *view)
{
    (void)view;
    return 1;
}

MPI_Offset view_byte_offset(const struct view *view, MPI_Offset position)
{
    return view->displacement + position;
}

MPI_Offset view_position(const struct view *view, MPI_Offset file_offset)
{
    return file_offset > view->displacement ? file_offset - view->displacement : 0;
}

int view_describe(const struct view *view, MPI_Offset *displacement, MPI_Datatype *etype,
                  MPI_Datatype *filetype, char *representation)
{
    *displacement = view->displacement;
    *etype = *filetype = MPI_BYTE;
    strcpy(representation, "native");
    return MPI_SUCCESS;
}

int view_type_extent(const struct view *view, MPI_Datatype datatype, MPI_Count *extent)
{
    (void)view;
    MPI_Count lower;
    PMPI_Type_get_extent_x(datatype, &lower, extent);
    return MPI_SUCCESS;
}
