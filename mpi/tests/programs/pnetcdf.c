/* pnetcdf.c - PnetCDF: blocking and nonblocking, strided, fixed and record variables, collective and independent.
 *
 *     mpirun -n N pnetcdf FILE
 */
#include <mpi.h>
#include <pnetcdf.h>
#include <stdio.h>
#include <stdlib.h>

enum { records = 5, rows = 48, columns = 90 };

static int rank, size, failures;

static void check(int status, int line)
{
    if (status == NC_NOERR) return;
    failures++;
    fprintf(stderr, "pnetcdf.c:%d: rank %d: %s\n", line, rank, ncmpi_strerror(status));
}
#define OK(call) check(call, __LINE__)

static int value(int variable, MPI_Offset record, MPI_Offset row, MPI_Offset column)
{
    return (int)(variable * 1000000 + record * 10000 + row * columns + column);
}

int main(int argc, char **argv)
{
    int file, dimensions[3], variables[3], requests[records], statuses[records];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc != 2 || rows % size) MPI_Abort(MPI_COMM_WORLD, 2);
    MPI_Offset mine = rows / size, first = mine * rank;
    int *data = malloc(sizeof(int) * records * (size_t)mine * columns);
    OK(ncmpi_create(MPI_COMM_WORLD, argv[1], NC_CLOBBER | NC_64BIT_DATA, MPI_INFO_NULL, &file));
    OK(ncmpi_def_dim(file, "record", NC_UNLIMITED, &dimensions[0]));
    OK(ncmpi_def_dim(file, "row", rows, &dimensions[1]));
    OK(ncmpi_def_dim(file, "column", columns, &dimensions[2]));
    OK(ncmpi_def_var(file, "records", NC_INT, 3, dimensions, &variables[0]));
    OK(ncmpi_def_var(file, "strided", NC_INT, 2, dimensions + 1, &variables[1]));
    OK(ncmpi_def_var(file, "alone", NC_INT, 2, dimensions + 1, &variables[2]));
    OK(ncmpi_put_att_text(file, NC_GLOBAL, "title", 4, "test"));
    OK(ncmpi_enddef(file));
    /* All records of a rank in one go. */
    for (MPI_Offset record = 0; record < records; record++) {
        MPI_Offset start[] = {record, first, 0}, count[] = {1, mine, columns};
        int *part = data + record * mine * columns;
        for (MPI_Offset i = 0; i < mine * columns; i++) part[i] = value(0, record, first + i / columns, i % columns);
        OK(ncmpi_iput_vara_int(file, variables[0], start, count, part, &requests[record]));
    }
    OK(ncmpi_wait_all(file, records, requests, statuses));
    for (int record = 0; record < records; record++) OK(statuses[record]);
    {
        /* Rank r has rows r, r + size, ... */
        MPI_Offset start[] = {rank, 0}, count[] = {mine, columns}, stride[] = {size, 1};
        for (MPI_Offset i = 0; i < mine * columns; i++) data[i] = value(1, 0, rank + i / columns * size, i % columns);
        OK(ncmpi_put_vars_int_all(file, variables[1], start, count, stride, data));
    }
    OK(ncmpi_begin_indep_data(file));
    {
        MPI_Offset start[] = {first, 0}, count[] = {mine, columns};
        for (MPI_Offset i = 0; i < mine * columns; i++) data[i] = value(2, 0, first + i / columns, i % columns);
        OK(ncmpi_put_vara_int(file, variables[2], start, count, data));
    }
    OK(ncmpi_end_indep_data(file));
    OK(ncmpi_close(file));

    OK(ncmpi_open(MPI_COMM_WORLD, argv[1], NC_NOWRITE, MPI_INFO_NULL, &file));
    first = mine * ((rank + 1) % size);
    for (int variable = 0; variable < 3; variable++) {
        for (MPI_Offset record = 0; record < (variable ? 1 : records); record++) {
            MPI_Offset start[] = {record, first, 0}, count[] = {1, mine, columns};
            int wrong = 0;
            OK(ncmpi_get_vara_int_all(file, variables[variable], variable ? start + 1 : start, variable ? count + 1 : count, data));
            for (MPI_Offset i = 0; i < mine * columns; i++) wrong += data[i] != value(variable, record, first + i / columns, i % columns);
            if (wrong) failures++, fprintf(stderr, "pnetcdf.c: rank %d: %d of variable %d, record %lld are wrong\n", rank, wrong, variable, (long long)record);
        }
    }
    OK(ncmpi_close(file));
    free(data);
    int all;
    MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0) printf("pnetcdf: %d failures\n", all);
    MPI_Finalize();
    return all != 0;
}
