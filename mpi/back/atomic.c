#include "atomic.h"
#include "error.h"
#include "view.h"

int atomic_lock(const struct access *access, MPI_Count length, struct range *range)
{
    const struct view *view = access->file->view;
    *range = (struct range){0, 0};
    if (length == 0)
        return MPI_SUCCESS;
    /* The displacements of a filetype do not decrease, as the standard demands. */
    MPI_Offset first = view_byte_offset(view, access->position);
    MPI_Offset last = view_byte_offset(view, access->position + length - 1);
    const struct range wanted = {(uint64_t)first, (uint64_t)(last - first + 1)};
    int class = error_of(
        weir_lock(access->file->data, wanted.offset, wanted.length, access->write ? 1 : 0));
    if (class == MPI_SUCCESS)
        *range = wanted;
    return class;
}

int atomic_unlock(struct weir_mpi_file *file, const struct range *range)
{
    if (range->length == 0)
        return MPI_SUCCESS;
    return error_of(weir_unlock(file->data, range->offset, range->length));
}
