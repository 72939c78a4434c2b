/* ior-hdf5.c - what IOR does, through HDF5; see ior.h. */
#include "ior.h"

#include <hdf5.h>

static hid_t access_list, transfer_list, file, set, space;

static hid_t ok(hid_t result, const char *what)
{
    if (result < 0) stop(what);
    return result;
}
#define OK(call) ok(call, #call)

static hid_t by_mpi(void)
{
    if (access_list <= 0) {
        access_list = OK(H5Pcreate(H5P_FILE_ACCESS));
        OK(H5Pset_fapl_mpio(access_list, MPI_COMM_WORLD, MPI_INFO_NULL));
    }
    return access_list;
}

static void make_file(const char *name, size_t whole, size_t chunk)
{
    hid_t creation = OK(H5Pcreate(H5P_DATASET_CREATE));
    OK(H5Pset_alloc_time(creation, H5D_ALLOC_TIME_EARLY));
    OK(H5Pset_fill_time(creation, H5D_FILL_TIME_NEVER));
    if (chunk) OK(H5Pset_chunk(creation, 1, (hsize_t[]){chunk}));
    space = OK(H5Screate_simple(1, (hsize_t[]){whole}, NULL));
    file = OK(H5Fcreate(name, H5F_ACC_TRUNC, H5P_DEFAULT, by_mpi()));
    set = OK(H5Dcreate2(file, "data", H5T_NATIVE_INT64, space, H5P_DEFAULT, creation, H5P_DEFAULT));
    OK(H5Pclose(creation));
}

static void open_file(const char *name)
{
    file = OK(H5Fopen(name, H5F_ACC_RDONLY, by_mpi()));
    set = OK(H5Dopen2(file, "data", H5P_DEFAULT));
    space = OK(H5Dget_space(set));
}

static void set_collective(int collective)
{
    if (transfer_list <= 0) transfer_list = OK(H5Pcreate(H5P_DATASET_XFER));
    OK(H5Pset_dxpl_mpio(transfer_list, collective ? H5FD_MPIO_COLLECTIVE : H5FD_MPIO_INDEPENDENT));
}

static void move(int reading, size_t at, size_t count, long long *data)
{
    hid_t memory = OK(H5Screate_simple(1, (hsize_t[]){count}, NULL));
    OK(H5Sselect_hyperslab(space, H5S_SELECT_SET, (hsize_t[]){at}, NULL, (hsize_t[]){count}, NULL));
    if (reading) OK(H5Dread(set, H5T_NATIVE_INT64, memory, space, transfer_list, data));
    else OK(H5Dwrite(set, H5T_NATIVE_INT64, memory, space, transfer_list, data));
    OK(H5Sclose(memory));
}

static void close_file(void)
{
    OK(H5Sclose(space));
    OK(H5Dclose(set));
    OK(H5Fclose(file));
}

int main(int argc, char **argv)
{
    return ior(argc, argv, &(struct library){"hdf5", make_file, open_file, set_collective, move, close_file});
}
