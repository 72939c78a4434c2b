/* hdf5.c - parallel HDF5: independent, collective, chunked, strided hyperslabs; written, closed, read back.
 *
 *     mpirun -n N hdf5 FILE
 *
 * The file's bytes depend on N alone. */
#include <hdf5.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { rows = 120, columns = 500 };

static int rank, size, failures;

#define CHECK(condition)                                                                     \
    do {                                                                                     \
        if (!(condition)) {                                                                  \
            failures++;                                                                      \
            fprintf(stderr, "hdf5.c:%d: rank %d: %s\n", __LINE__, rank, #condition);         \
        }                                                                                    \
    } while (0)

static int value(hsize_t row, hsize_t column, int set)
{
    return (int)(set * 10000000 + row * columns + column);
}

/* One data set: each rank has rows in turn (interleaved) or one after another. */
static void access(hid_t file, int set, int chunked, int collective, int interleaved, int write)
{
    char name[32];
    hsize_t sizes[2] = {rows, columns}, chunk[2] = {16, 128}, start[2], stride[2], count[2] = {rows / (hsize_t)size, columns};
    int *data = malloc(sizeof(int) * count[0] * columns);
    snprintf(name, sizeof name, "/set-%d", set);
    hid_t transfer = H5Pcreate(H5P_DATASET_XFER);
    H5Pset_dxpl_mpio(transfer, collective ? H5FD_MPIO_COLLECTIVE : H5FD_MPIO_INDEPENDENT);
    start[0] = interleaved ? (hsize_t)rank : (hsize_t)rank * count[0], start[1] = 0;
    stride[0] = interleaved ? (hsize_t)size : 1, stride[1] = 1;
    hid_t dataset, space = H5Screate_simple(2, sizes, NULL), memory = H5Screate_simple(2, count, NULL);
    if (write) {
        hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
        H5Pset_obj_track_times(creation, 0);
        H5Pset_alloc_time(creation, H5D_ALLOC_TIME_EARLY);
        if (chunked) H5Pset_chunk(creation, 2, chunk);
        dataset = H5Dcreate2(file, name, H5T_NATIVE_INT, space, H5P_DEFAULT, creation, H5P_DEFAULT);
        H5Pclose(creation);
    } else {
        dataset = H5Dopen2(file, name, H5P_DEFAULT);
    }
    CHECK(dataset >= 0);
    H5Sselect_hyperslab(space, H5S_SELECT_SET, start, stride, count, NULL);
    for (hsize_t i = 0; i < count[0]; i++) {
        for (hsize_t k = 0; k < columns; k++) data[i * columns + k] = write ? value(start[0] + i * stride[0], k, set) : -1;
    }
    if (write) {
        CHECK(H5Dwrite(dataset, H5T_NATIVE_INT, memory, space, transfer, data) >= 0);
    } else {
        CHECK(H5Dread(dataset, H5T_NATIVE_INT, memory, space, transfer, data) >= 0);
        int wrong = 0;
        for (hsize_t i = 0; i < count[0]; i++) {
            for (hsize_t k = 0; k < columns; k++) wrong += data[i * columns + k] != value(start[0] + i * stride[0], k, set);
        }
        CHECK(wrong == 0);
    }
    H5Sclose(space), H5Sclose(memory), H5Pclose(transfer), H5Dclose(dataset);
    free(data);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc != 2 || rows % size) MPI_Abort(MPI_COMM_WORLD, 2);
    hid_t properties = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_fapl_mpio(properties, MPI_COMM_WORLD, MPI_INFO_NULL);
    hid_t file = H5Fcreate(argv[1], H5F_ACC_TRUNC, H5P_DEFAULT, properties);
    CHECK(file >= 0);
    if (file >= 0) {
        for (int set = 0; set < 8; set++) access(file, set, set & 1, set & 2, set & 4, 1);
        CHECK(H5Fflush(file, H5F_SCOPE_GLOBAL) >= 0);
        CHECK(H5Fclose(file) >= 0);
        file = H5Fopen(argv[1], H5F_ACC_RDONLY, properties);
        CHECK(file >= 0);
        for (int set = 0; set < 8 && file >= 0; set++) {
            access(file, set, set & 1, set & 2, set & 4, 0);
            /* As it was not written, too. */
            access(file, set, set & 1, !(set & 2), !(set & 4), 0);
        }
        CHECK(H5Fclose(file) >= 0);
    }
    H5Pclose(properties);
    int all;
    MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0) printf("hdf5: %d failures\n", all);
    MPI_Finalize();
    return all != 0;
}
