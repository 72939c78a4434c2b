/* ior-netcdf.c - what IOR does, through NetCDF-4; see ior.h. */
#include "ior.h"

#include <netcdf.h>
#include <netcdf_par.h>

static int file, variable;

static void ok(int status, const char *what)
{
    char text[300];
    if (status == NC_NOERR) return;
    snprintf(text, sizeof text, "%s: %s", what, nc_strerror(status));
    stop(text);
}
#define OK(call) ok(call, #call)

static void make_file(const char *name, size_t whole, size_t chunk)
{
    int dimension;
    OK(nc_create_par(name, NC_NETCDF4 | NC_CLOBBER, MPI_COMM_WORLD, MPI_INFO_NULL, &file));
    OK(nc_def_dim(file, "place", whole, &dimension));
    OK(nc_def_var(file, "data", NC_INT64, 1, &dimension, &variable));
    OK(nc_def_var_chunking(file, variable, chunk ? NC_CHUNKED : NC_CONTIGUOUS, chunk ? &chunk : NULL));
    OK(nc_def_var_fill(file, variable, NC_NOFILL, NULL));
    OK(nc_enddef(file));
}

static void open_file(const char *name)
{
    OK(nc_open_par(name, NC_NOWRITE, MPI_COMM_WORLD, MPI_INFO_NULL, &file));
    OK(nc_inq_varid(file, "data", &variable));
}

static void set_collective(int collective)
{
    OK(nc_var_par_access(file, variable, collective ? NC_COLLECTIVE : NC_INDEPENDENT));
}

static void move(int reading, size_t at, size_t count, long long *data)
{
    if (reading) OK(nc_get_vara_longlong(file, variable, &at, &count, data));
    else OK(nc_put_vara_longlong(file, variable, &at, &count, data));
}

static void close_file(void)
{
    OK(nc_close(file));
}

int main(int argc, char **argv)
{
    return ior(argc, argv, &(struct library){"netcdf", make_file, open_file, set_collective, move, close_file});
}
