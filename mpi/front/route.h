/* route.h - which names of files are the pool's. */
#ifndef WEIR_MPI_ROUTE_H
#define WEIR_MPI_ROUTE_H

#include <stdbool.h>
#include <stddef.h>

enum route {
    ROUTE_OTHER,    /* the MPI's own business */
    ROUTE_PREFIX,   /* the pool's, because it says so: never anybody else's */
    ROUTE_PATH,     /* the pool's, because it lies under its mount */
    ROUTE_TOO_LONG, /* the pool's by its prefix, but longer than a path may be */
};

/* Longest path within a pool, with its NUL: bytes. */
#define ROUTE_PATH_MAX 4096

/* Decides where a name goes, and gives the path within the pool in out. */
enum route route(const char *name, char out[ROUTE_PATH_MAX]);

#endif
