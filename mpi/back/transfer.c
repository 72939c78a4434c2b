/* For now: contiguous bytes. */
#include "transfer.h"
#include "error.h"
#include "view.h"

#include <stdlib.h>

struct transfer {
    weir_op *op;
};

int access_size(const struct weir_mpi_file *file, MPI_Count count, MPI_Datatype type,
                MPI_Count *bytes)
{
    MPI_Count size;
    (void)file;
    PMPI_Type_size_x(type, &size);
    *bytes = size * count;
    return MPI_SUCCESS;
}

int access_run(const struct access *access, MPI_Count *bytes)
{
    MPI_Count length;
    access_size(access->file, access->count, access->type, &length);
    uint64_t offset = (uint64_t)view_byte_offset(access->file->view, access->position);
    ssize_t got = access->write
                      ? weir_pwrite(access->file->data, access->buffer, (size_t)length, offset)
                      : weir_pread(access->file->data, access->buffer, (size_t)length, offset);
    *bytes = got < 0 ? 0 : got;
    return error_of(got);
}

int access_begin(const struct access *access, struct transfer **out)
{
    MPI_Count length;
    access_size(access->file, access->count, access->type, &length);
    uint64_t offset = (uint64_t)view_byte_offset(access->file->view, access->position);
    struct transfer *transfer = calloc(1, sizeof *transfer);
    if (transfer == NULL)
        return error_set(MPI_ERR_NO_MEM, "begin access: no memory");
    int begun = access->write ? weir_submit_write(access->file->data, access->buffer,
                                                  (size_t)length, offset, &transfer->op)
                              : weir_submit_read(access->file->data, access->buffer,
                                                 (size_t)length, offset, &transfer->op);
    if (begun < 0) {
        free(transfer);
        return error_of(begun);
    }
    *out = transfer;
    return MPI_SUCCESS;
}

int transfer_test(struct transfer *transfer, bool wait, MPI_Count *bytes, bool *done)
{
    ssize_t result = 0;
    int ended = weir_wait(transfer->op, wait ? -1 : 0, &result);
    *done = ended != 0;
    if (!*done)
        return MPI_SUCCESS;
    *bytes = result < 0 ? 0 : result;
    int class = error_of(ended < 0 ? ended : result);
    weir_op_free(transfer->op);
    free(transfer);
    return class;
}

int access_run_all(const struct access *access, MPI_Count *bytes)
{
    return access_run(access, bytes);
}
