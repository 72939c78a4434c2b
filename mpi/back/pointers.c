/* pointers.c - views, file pointers, atomicity: calls that move no data. */
#include "comm.h"
#include "committed.h"
#include "error.h"
#include "file.h"
#include "request.h"
#include "shared.h"
#include "view.h"

EXPORT int weir_mpi_File_set_view(MPI_File handle, MPI_Offset displacement, MPI_Datatype etype,
                                  MPI_Datatype filetype, const char *representation, MPI_Info info);
int weir_mpi_File_set_view(MPI_File handle, MPI_Offset displacement, MPI_Datatype etype,
                           MPI_Datatype filetype, const char *representation, MPI_Info info)
{
    struct weir_mpi_file *file = file_find(handle);
    struct view *view = NULL;
    int class = MPI_SUCCESS;
    if (displacement == MPI_DISPLACEMENT_CURRENT && (file->amode & MPI_MODE_SEQUENTIAL) != 0) {
        MPI_Offset position = 0;
        /* Where the shared pointer is; it is moved by nobody meanwhile. */
        if (file->rank == 0)
            class = shared_advance(file, 0, &position);
        class = file_share_outcome(file, class);
        if (file->size > 1)
            comm_broadcast(&position, 1, MPI_OFFSET, 0, file->comm);
        displacement = view_byte_offset(file->view, position);
    } else if (displacement < 0) {
        class = error_set(MPI_ERR_ARG, "set view of %s: the displacement is negative", file->path);
    }
    if (class == MPI_SUCCESS)
        class = committed_check(etype);
    if (class == MPI_SUCCESS)
        class = committed_check(filetype);
    if (class == MPI_SUCCESS)
        class = view_make(displacement, etype, filetype, representation,
                          (file->amode & MPI_MODE_RDONLY) == 0, &view);
    if (class == MPI_SUCCESS) {
        view_free(file->view);
        file->view = view;
    }
    /* The hints are everybody's, whether the view is or not. */
    agree_later(file, info);
    if (class != MPI_SUCCESS)
        return error_raise(file, class);
    pthread_mutex_lock(&file->lock);
    file->position = 0;
    pthread_mutex_unlock(&file->lock);
    shared_set(file, 0);
    return MPI_SUCCESS;
}

EXPORT int weir_mpi_File_get_view(MPI_File handle, MPI_Offset *displacement, MPI_Datatype *etype,
                                  MPI_Datatype *filetype, char *representation);
int weir_mpi_File_get_view(MPI_File handle, MPI_Offset *displacement, MPI_Datatype *etype,
                           MPI_Datatype *filetype, char *representation)
{
    struct weir_mpi_file *file = file_find(handle);
    return error_raise(file,
                       view_describe(file->view, displacement, etype, filetype, representation));
}

EXPORT int weir_mpi_File_get_type_extent(MPI_File handle, MPI_Datatype type, MPI_Aint *extent);
int weir_mpi_File_get_type_extent(MPI_File handle, MPI_Datatype type, MPI_Aint *extent)
{
    struct weir_mpi_file *file = file_find(handle);
    MPI_Count found = 0;
    int class = view_type_extent(file->view, type, &found);
    *extent = (MPI_Aint)found;
    return error_raise(file, class);
}

EXPORT int weir_mpi_File_get_type_extent_c(MPI_File handle, MPI_Datatype type, MPI_Count *extent);
int weir_mpi_File_get_type_extent_c(MPI_File handle, MPI_Datatype type, MPI_Count *extent)
{
    struct weir_mpi_file *file = file_find(handle);
    return error_raise(file, view_type_extent(file->view, type, extent));
}

/* Where a seek leads, in bytes of the view's data. */
static int target(struct weir_mpi_file *file, MPI_Offset offset, int whence, MPI_Offset current,
                  MPI_Offset *out)
{
    MPI_Count etype = view_etype_size(file->view);
    MPI_Offset size;
    int class;
    *out = offset * etype;
    if (whence == MPI_SEEK_CUR) {
        *out += current;
    } else if (whence == MPI_SEEK_END) {
        if ((class = file_size(file, &size)) != MPI_SUCCESS)
            return class;
        MPI_Offset end = view_position(file->view, size);
        /* In whole etypes: behind the last one of which a byte is in the file. */
        if (etype > 0)
            end = (end + etype - 1) / etype * etype;
        *out += end;
    } else if (whence != MPI_SEEK_SET) {
        return error_set(MPI_ERR_ARG, "seek in %s: whence is none that there is", file->path);
    }
    if (*out < 0)
        return error_set(MPI_ERR_ARG, "seek in %s: it leads before the view's beginning",
                         file->path);
    return MPI_SUCCESS;
}

EXPORT int weir_mpi_File_seek(MPI_File handle, MPI_Offset offset, int whence);
int weir_mpi_File_seek(MPI_File handle, MPI_Offset offset, int whence)
{
    struct weir_mpi_file *file = file_find(handle);
    MPI_Offset to;
    int class = file_check_sequential(file, "seek in");
    if (class != MPI_SUCCESS)
        return error_raise(file, class);
    pthread_mutex_lock(&file->lock);
    class = target(file, offset, whence, file->position, &to);
    if (class == MPI_SUCCESS)
        file->position = to;
    pthread_mutex_unlock(&file->lock);
    return error_raise(file, class);
}

static MPI_Offset in_etypes(const struct weir_mpi_file *file, MPI_Offset position)
{
    MPI_Count etype = view_etype_size(file->view);
    return etype > 0 ? position / etype : 0;
}

EXPORT int weir_mpi_File_get_position(MPI_File handle, MPI_Offset *offset);
int weir_mpi_File_get_position(MPI_File handle, MPI_Offset *offset)
{
    struct weir_mpi_file *file = file_find(handle);
    int class = file_check_sequential(file, "tell position in");
    pthread_mutex_lock(&file->lock);
    *offset = in_etypes(file, file->position);
    pthread_mutex_unlock(&file->lock);
    return error_raise(file, class);
}

EXPORT int weir_mpi_File_get_byte_offset(MPI_File handle, MPI_Offset offset, MPI_Offset *place);
int weir_mpi_File_get_byte_offset(MPI_File handle, MPI_Offset offset, MPI_Offset *place)
{
    struct weir_mpi_file *file = file_find(handle);
    int class = file_check_sequential(file, "tell byte offset in");
    if (class == MPI_SUCCESS && offset < 0)
        class = error_set(MPI_ERR_ARG, "tell byte offset in %s: the offset is negative", file->path);
    if (class == MPI_SUCCESS)
        *place = view_byte_offset(file->view, offset * view_etype_size(file->view));
    return error_raise(file, class);
}

EXPORT int weir_mpi_File_seek_shared(MPI_File handle, MPI_Offset offset, int whence);
int weir_mpi_File_seek_shared(MPI_File handle, MPI_Offset offset, int whence)
{
    struct weir_mpi_file *file = file_find(handle);
    MPI_Offset current = 0, to[3] = {offset, whence, 0};
    int class = file_check_sequential(file, "seek in");
    if (class != MPI_SUCCESS)
        return error_raise(file, class);
    /* Who comes later has not used the pointer before everybody was here. */
    if (file->size > 1)
        comm_barrier(file->comm);
    if (file->rank == 0) {
        if (whence == MPI_SEEK_CUR)
            class = shared_advance(file, 0, &current);
        if (class == MPI_SUCCESS)
            class = target(file, offset, whence, current, &to[2]);
    }
    class = file_share_outcome(file, class);
    if (class != MPI_SUCCESS)
        return error_raise(file, class);
    if (file->size > 1)
        comm_broadcast(to, 3, MPI_OFFSET, 0, file->comm);
    shared_set(file, to[2]);
    if (to[0] != offset || to[1] != whence)
        class = error_set(MPI_ERR_NOT_SAME, "seek in %s: the ranks' arguments differ", file->path);
    return error_raise(file, class);
}

EXPORT int weir_mpi_File_get_position_shared(MPI_File handle, MPI_Offset *offset);
int weir_mpi_File_get_position_shared(MPI_File handle, MPI_Offset *offset)
{
    struct weir_mpi_file *file = file_find(handle);
    MPI_Offset position = 0;
    int class = shared_advance(file, 0, &position);
    *offset = in_etypes(file, position);
    return error_raise(file, class);
}

EXPORT int weir_mpi_File_set_atomicity(MPI_File handle, int flag);
int weir_mpi_File_set_atomicity(MPI_File handle, int flag)
{
    struct weir_mpi_file *file = file_find(handle);
    int range[2] = {flag != 0, -(flag != 0)}, class = MPI_SUCCESS;
    if (file->size > 1)
        comm_reduce_all(range, 2, MPI_INT, MPI_MAX, file->comm);
    if (range[0] != -range[1])
        class = error_set(MPI_ERR_NOT_SAME, "set atomicity of %s: the ranks' flags differ",
                          file->path);
    else
        file->atomic = flag != 0;
    return error_raise(file, class);
}

EXPORT int weir_mpi_File_get_atomicity(MPI_File handle, int *flag);
int weir_mpi_File_get_atomicity(MPI_File handle, int *flag)
{
    *flag = file_find(handle)->atomic;
    return MPI_SUCCESS;
}
