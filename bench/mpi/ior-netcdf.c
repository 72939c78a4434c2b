/* ior-netcdf.c - the same as ior-hdf5.c through NetCDF-4: each rank writes its part of a variable in transfers; open, I/O and close apart.
 *
 *     mpirun -n N ior-netcdf --file FILE [--transfer 1M] [--total 64M] [--collective 0|1|2|all] [--chunk 0] [--repeats 5]
 *
 * --collective 2: independent, but after a reduction that keeps
 * the ranks in step, as collective calls of the library make one; all: the three in turns, as cases. --chunk: the variable is chunked, so many bytes each. --total: bytes of one rank. */
#include "common.h"

#include <netcdf.h>
#include <netcdf_par.h>

static void ok(int status, const char *what)
{
    char text[300];
    if (status == NC_NOERR) return;
    snprintf(text, sizeof text, "%s: %s", what, nc_strerror(status));
    stop(text);
}
#define OK(call) ok(call, #call)

int main(int argc, char **argv)
{
    begin(&argc, &argv);
    const char *name = option(argc, argv, "file", NULL);
    size_t transfer = (size_t)bytes_of(option(argc, argv, "transfer", "1M")), total = (size_t)bytes_of(option(argc, argv, "total", "64M"));
    size_t chunk = (size_t)bytes_of(option(argc, argv, "chunk", "0")) / 8;
    int repeats = atoi(option(argc, argv, "repeats", "5"));
    const char *modes = option(argc, argv, "collective", "0");
    int kinds = strcmp(modes, "all") == 0 ? 3 : 1;
    if (!name || transfer < 8) stop("usage: ior-netcdf --file FILE ...");
    transfer /= 8;
    size_t count = total / 8 / transfer > 0 ? total / 8 / transfer : 1, whole = count * transfer * (size_t)ranks;
    unsigned char *data = malloc(count * transfer * 8);
    for (int round = 0; round < (repeats + 1) * kinds; round++) {
        int turn = round / kinds, mode = kinds > 1 ? round % kinds : atoi(modes), collective = mode == 1, same;
        double times[6];
        for (int reading = 0; reading < 2; reading++) {
            size_t first = (size_t)rank * count * transfer;
            int file, dimension, variable;
            if (reading) memset(data, 0, count * transfer * 8);
            else fill(data, (long long)first * 8, (long long)(count * transfer * 8), turn);
            double t = start();
            if (reading) {
                OK(nc_open_par(name, NC_NOWRITE, MPI_COMM_WORLD, MPI_INFO_NULL, &file));
                OK(nc_inq_varid(file, "data", &variable));
            } else {
                OK(nc_create_par(name, NC_NETCDF4 | NC_CLOBBER, MPI_COMM_WORLD, MPI_INFO_NULL, &file));
                OK(nc_def_dim(file, "place", whole, &dimension));
                OK(nc_def_var(file, "data", NC_INT64, 1, &dimension, &variable));
                OK(nc_def_var_chunking(file, variable, chunk ? NC_CHUNKED : NC_CONTIGUOUS, chunk ? &chunk : NULL));
                OK(nc_def_var_fill(file, variable, NC_NOFILL, NULL));
                OK(nc_enddef(file));
            }
            OK(nc_var_par_access(file, variable, collective ? NC_COLLECTIVE : NC_INDEPENDENT));
            times[3 * reading] = took(t);
            t = start();
            for (size_t i = 0; i < count; i++) {
                size_t at = first + i * transfer;
                if (mode == 2) MPI_Allreduce(&mode, &same, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
                long long *part = (long long *)(void *)(data + i * transfer * 8);
                if (reading) OK(nc_get_vara_longlong(file, variable, &at, &transfer, part));
                else OK(nc_put_vara_longlong(file, variable, &at, &transfer, part));
            }
            times[3 * reading + 1] = took(t);
            t = start();
            OK(nc_close(file));
            times[3 * reading + 2] = took(t);
            if (reading) verify(data, (long long)first * 8, (long long)(count * transfer * 8), turn, "read");
        }
        if (turn == 0 || rank != 0) continue;
        for (int reading = 0; reading < 2; reading++) {
            double *t = times + 3 * reading;
            printf("{\"bench\": \"netcdf\", \"case\": %d, \"op\": \"%s\", \"ranks\": %d, \"rate\": %.0f, \"rate_with_open\": %.0f, \"open_s\": %.6f, \"io_s\": %.6f, \"close_s\": %.6f}\n",
                   kinds > 1 ? mode : 0, reading ? "read" : "write", ranks, (double)whole * 8 / t[1], (double)whole * 8 / (t[0] + t[1] + t[2]), t[0], t[1], t[2]);
        }
    }
    free(data);
    MPI_Finalize();
    return 0;
}
