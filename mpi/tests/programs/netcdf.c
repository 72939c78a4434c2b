/* netcdf.c - NetCDF-4 in parallel: variables with fixed and unlimited dimensions, independent and collective.
 *
 *     mpirun -n N netcdf FILE
 */
#include <mpi.h>
#include <netcdf.h>
#include <netcdf_par.h>
#include <stdio.h>
#include <stdlib.h>

enum { steps = 6, rows = 48, columns = 100 };

static int rank, size, failures;

static void check(int status, int line)
{
    if (status == NC_NOERR) return;
    failures++;
    fprintf(stderr, "netcdf.c:%d: rank %d: %s\n", line, rank, nc_strerror(status));
}
#define OK(call) check(call, __LINE__)

static double value(int variable, size_t step, size_t row, size_t column)
{
    return variable * 1e6 + (double)step * 1e4 + (double)row * columns + (double)column;
}

int main(int argc, char **argv)
{
    int file, dimensions[3], variables[3];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc != 2 || rows % size) MPI_Abort(MPI_COMM_WORLD, 2);
    size_t mine = (size_t)(rows / size), first = mine * (size_t)rank;
    double *data = malloc(sizeof(double) * mine * columns);
    OK(nc_create_par(argv[1], NC_NETCDF4 | NC_CLOBBER, MPI_COMM_WORLD, MPI_INFO_NULL, &file));
    OK(nc_def_dim(file, "step", NC_UNLIMITED, &dimensions[0]));
    OK(nc_def_dim(file, "row", rows, &dimensions[1]));
    OK(nc_def_dim(file, "column", columns, &dimensions[2]));
    OK(nc_def_var(file, "history", NC_DOUBLE, 3, dimensions, &variables[0]));
    OK(nc_def_var(file, "collective", NC_DOUBLE, 2, dimensions + 1, &variables[1]));
    OK(nc_def_var(file, "independent", NC_DOUBLE, 2, dimensions + 1, &variables[2]));
    OK(nc_put_att_text(file, NC_GLOBAL, "title", 4, "test"));
    OK(nc_enddef(file));
    OK(nc_var_par_access(file, variables[0], NC_COLLECTIVE));
    OK(nc_var_par_access(file, variables[1], NC_COLLECTIVE));
    OK(nc_var_par_access(file, variables[2], NC_INDEPENDENT));
    for (size_t step = 0; step < steps + 2; step++) {
        int variable = step < steps ? 0 : (int)(step - steps) + 1;
        size_t start[] = {step, first, 0}, count[] = {1, mine, columns};
        for (size_t i = 0; i < mine * columns; i++) data[i] = value(variable, variable ? 0 : step, first + i / columns, i % columns);
        OK(nc_put_vara_double(file, variables[variable], variable ? start + 1 : start, variable ? count + 1 : count, data));
    }
    OK(nc_close(file));

    OK(nc_open_par(argv[1], NC_NOWRITE, MPI_COMM_WORLD, MPI_INFO_NULL, &file));
    /* Another rank's rows. */
    first = mine * (size_t)((rank + 1) % size);
    for (int variable = 0; variable < 3; variable++) {
        OK(nc_var_par_access(file, variables[variable], variable == 1 ? NC_INDEPENDENT : NC_COLLECTIVE));
        for (size_t step = 0; step < (variable ? 1 : steps); step++) {
            size_t start[] = {step, first, 0}, count[] = {1, mine, columns};
            int wrong = 0;
            OK(nc_get_vara_double(file, variables[variable], variable ? start + 1 : start, variable ? count + 1 : count, data));
            for (size_t i = 0; i < mine * columns; i++) wrong += data[i] != value(variable, step, first + i / columns, i % columns);
            if (wrong) failures++, fprintf(stderr, "netcdf.c: rank %d: %d of variable %d, step %zu are wrong\n", rank, wrong, variable, step);
        }
    }
    OK(nc_close(file));
    free(data);
    int all;
    MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0) printf("netcdf: %d failures\n", all);
    MPI_Finalize();
    return all != 0;
}
