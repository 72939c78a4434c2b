/* ior-hdf5.c - what IOR does through HDF5: each rank writes its blocks of a data set in transfers; open, write and close apart.
 *
 *     mpirun -n N ior-hdf5 --file FILE [--transfer 1M] [--total 64M] [--collective 0|1|2|all] [--chunk 0] [--repeats 5]
 *
 * --collective 2: independent, but after a reduction that keeps
 * the ranks in step, as collective calls of the library make one; all: the three in turns, as cases. --chunk: the data set is chunked, so many bytes each. --total: bytes of one rank. */
#include "common.h"

#include <hdf5.h>

int main(int argc, char **argv)
{
    begin(&argc, &argv);
    const char *name = option(argc, argv, "file", NULL);
    hsize_t transfer = (hsize_t)bytes_of(option(argc, argv, "transfer", "1M")), total = (hsize_t)bytes_of(option(argc, argv, "total", "64M"));
    hsize_t chunk = (hsize_t)bytes_of(option(argc, argv, "chunk", "0"));
    int repeats = atoi(option(argc, argv, "repeats", "5"));
    const char *modes = option(argc, argv, "collective", "0");
    int kinds = strcmp(modes, "all") == 0 ? 3 : 1;
    if (!name || transfer < 8) stop("usage: ior-hdf5 --file FILE ...");
    transfer /= 8;
    hsize_t count = total / 8 / transfer, whole = count * transfer * (hsize_t)ranks;
    unsigned char *data = malloc(count * transfer * 8);
    hid_t access = H5Pcreate(H5P_FILE_ACCESS), how = H5Pcreate(H5P_DATASET_XFER), creation = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_fapl_mpio(access, MPI_COMM_WORLD, MPI_INFO_NULL);
    H5Pset_alloc_time(creation, H5D_ALLOC_TIME_EARLY);
    H5Pset_fill_time(creation, H5D_FILL_TIME_NEVER);
    if (chunk) H5Pset_chunk(creation, 1, (hsize_t[]){chunk / 8});
    hid_t space = H5Screate_simple(1, &whole, NULL), memory = H5Screate_simple(1, &transfer, NULL);
    for (int round = 0; round < (repeats + 1) * kinds; round++) {
        int turn = round / kinds, mode = kinds > 1 ? round % kinds : atoi(modes), collective = mode == 1, same;
        double times[6];
        H5Pset_dxpl_mpio(how, collective ? H5FD_MPIO_COLLECTIVE : H5FD_MPIO_INDEPENDENT);
        for (int reading = 0; reading < 2; reading++) {
            hsize_t first = (hsize_t)rank * count * transfer;
            if (reading) memset(data, 0, count * transfer * 8);
            else fill(data, (long long)first * 8, (long long)(count * transfer * 8), turn);
            double t = start();
            hid_t file = reading ? H5Fopen(name, H5F_ACC_RDONLY, access) : H5Fcreate(name, H5F_ACC_TRUNC, H5P_DEFAULT, access);
            if (file < 0) stop("the file does not open");
            hid_t set = reading ? H5Dopen2(file, "data", H5P_DEFAULT)
                                : H5Dcreate2(file, "data", H5T_NATIVE_INT64, space, H5P_DEFAULT, creation, H5P_DEFAULT);
            if (set < 0) stop("the data set does not open");
            times[3 * reading] = took(t);
            t = start();
            for (hsize_t i = 0; i < count; i++) {
                hsize_t at = first + i * transfer;
                H5Sselect_hyperslab(space, H5S_SELECT_SET, &at, NULL, &transfer, NULL);
                unsigned char *part = data + i * transfer * 8;
                if (mode == 2) MPI_Allreduce(&mode, &same, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
                if ((reading ? H5Dread(set, H5T_NATIVE_INT64, memory, space, how, part) : H5Dwrite(set, H5T_NATIVE_INT64, memory, space, how, part)) < 0) {
                    stop("a transfer failed");
                }
            }
            times[3 * reading + 1] = took(t);
            t = start();
            H5Dclose(set);
            if (H5Fclose(file) < 0) stop("the file does not close");
            times[3 * reading + 2] = took(t);
            if (reading) verify(data, (long long)first * 8, (long long)(count * transfer * 8), turn, "read");
        }
        if (turn == 0 || rank != 0) continue;
        for (int reading = 0; reading < 2; reading++) {
            double *t = times + 3 * reading;
            printf("{\"bench\": \"hdf5\", \"case\": %d, \"op\": \"%s\", \"ranks\": %d, \"rate\": %.0f, \"rate_with_open\": %.0f, \"open_s\": %.6f, \"io_s\": %.6f, \"close_s\": %.6f}\n",
                   kinds > 1 ? mode : 0, reading ? "read" : "write", ranks, (double)whole * 8 / t[1], (double)whole * 8 / (t[0] + t[1] + t[2]), t[0], t[1], t[2]);
        }
    }
    H5Sclose(space), H5Sclose(memory), H5Pclose(access), H5Pclose(how), H5Pclose(creation);
    free(data);
    MPI_Finalize();
    return 0;
}
