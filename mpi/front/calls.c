/* calls.c - the calls of MPI that this library stands before.
 *
 * It is not linked to any MPI and knows none of their headers: whatever an argument means, it is
 * passed on in the register it came in. All calls here have six arguments at most, so that none is
 * on the stack; the callee takes as many as it has, and of as many bits.
 */
#define _GNU_SOURCE
#include "front.h"
#include "loaded.h"
#include "route.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int call_function(weir_word, weir_word, weir_word, weir_word, weir_word, weir_word);
#define PARAMETERS weir_word a, weir_word b, weir_word c, weir_word d, weir_word e, weir_word f
#define ARGUMENTS a, b, c, d, e, f
#define EXPORT __attribute__((visibility("default")))

/* Given for what no MPI can be asked about; no implementation has it as MPI_SUCCESS. */
#define FAILED 16

/* A call's functions, found when they are first wanted. */
struct call {
    const char *name;            /* without MPI_ */
    _Atomic(call_function *) genuine[2]; /* MPI_, PMPI_ */
    _Atomic(call_function *) back;
};

static int no_such_call(struct call *call)
{
    fprintf(stderr, "weir: MPI_%s: the MPI that is loaded (%s) has no such call\n", call->name,
            loaded_soname() != NULL ? loaded_soname() : "none that is known");
    return FAILED;
}

static call_function *genuine(struct call *call, int profiled)
{
    call_function *function = atomic_load_explicit(&call->genuine[profiled], memory_order_acquire);
    if (function == NULL) {
        char name[128];
        snprintf(name, sizeof name, "%sMPI_%s", profiled ? "P" : "", call->name);
        function = (call_function *)loaded_genuine(name);
        atomic_store_explicit(&call->genuine[profiled], function, memory_order_release);
    }
    return function;
}

static call_function *ours(struct call *call)
{
    call_function *function = atomic_load_explicit(&call->back, memory_order_acquire);
    if (function == NULL) {
        function = (call_function *)loaded_back_function(call->name);
        atomic_store_explicit(&call->back, function, memory_order_release);
    }
    return function;
}

static int pass_on(struct call *call, int profiled, PARAMETERS)
{
    call_function *function = genuine(call, profiled);
    return function != NULL ? function(ARGUMENTS) : no_such_call(call);
}

static int serve(struct call *call, int profiled, PARAMETERS)
{
    call_function *function = ours(call);
    return function != NULL ? function(ARGUMENTS) : pass_on(call, profiled, ARGUMENTS);
}

static bool is_ours(weir_word file)
{
    const struct weir_mpi_back *back = loaded_back_already();
    return back != NULL && back->owns(file);
}

/* Both names of a call, each with the body serve_it. */
#define BOTH(name, serve_it)                                                                      \
    int MPI_##name(PARAMETERS);                                                                   \
    int PMPI_##name(PARAMETERS);                                                                  \
    static struct call call_##name = {#name, {NULL, NULL}, NULL};                                 \
    EXPORT int MPI_##name(PARAMETERS) { return serve_it(&call_##name, 0, ARGUMENTS); }            \
    EXPORT int PMPI_##name(PARAMETERS) { return serve_it(&call_##name, 1, ARGUMENTS); }

static int on_file(struct call *call, int profiled, PARAMETERS)
{
    return (is_ours(a) ? serve : pass_on)(call, profiled, ARGUMENTS);
}

static int on_requests(struct call *call, int profiled, PARAMETERS)
{
    bool idle = atomic_load_explicit(&loaded_outstanding, memory_order_acquire) == 0;
    return (idle ? pass_on : serve)(call, profiled, ARGUMENTS);
}

#define ON_FILE(name) BOTH(File_##name, on_file)
#define ON_REQUESTS(name) BOTH(name, on_requests)
#include "../calls.h"

/* An MPI_File is a pointer in every MPI there is, also in the standard ABI. */
static int on_close(struct call *call, int profiled, PARAMETERS)
{
    bool mine = a != 0 && is_ours(*(const weir_word *)a);
    return (mine ? serve : pass_on)(call, profiled, ARGUMENTS);
}

BOTH(File_close, on_close)

/* Calls of which a back end must know before there is a file of the pool. A program that is run on
 * no pool, or whose MPI is not served, makes them as ever. */
static bool has_pool(void)
{
    const char *why, *pool = getenv("WEIR_POOL");
    return pool != NULL && *pool != '\0' && loaded_back(&why) != NULL;
}

/* Register_datarep(name, read, write, extent, extra_state). No MPI converts by functions of the
 * program's, so that a representation that has some is ours alone. */
static int on_representation(struct call *call, int profiled, PARAMETERS)
{
    if (!has_pool())
        return pass_on(call, profiled, ARGUMENTS);
    if (b == 0 && c == 0) {
        int result = pass_on(call, profiled, ARGUMENTS);
        if (result != 0)
            return result;
    }
    return serve(call, profiled, ARGUMENTS);
}

BOTH(Register_datarep, on_representation)
BOTH(Register_datarep_c, on_representation)

/* File_create_errhandler(function, handler) */
static int on_handler(struct call *call, int profiled, PARAMETERS)
{
    return (has_pool() ? serve : pass_on)(call, profiled, ARGUMENTS);
}

BOTH(File_create_errhandler, on_handler)

/* Error_string(code, string, length): the back end knows what it gave codes to. */
static int on_error_string(struct call *call, int profiled, PARAMETERS)
{
    return (loaded_back_already() != NULL ? serve : pass_on)(call, profiled, ARGUMENTS);
}

BOTH(Error_string, on_error_string)

/* A name that is the pool's, but cannot be served: said in words once, and then an error of the
 * MPI's own making, by the file's error handler, on all ranks. Its path can exist nowhere, so that
 * no local file is ever opened or made in the pool's stead. */
static int refuse(struct call *call, int profiled, const char *name, const char *why, PARAMETERS)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    static const char nowhere[] = "/proc/weir: this MPI is not served/file of the pool";
    if (!atomic_flag_test_and_set(&told))
        fprintf(stderr, "weir: MPI_%s %s: %s; it is not opened, and no local file in its stead\n",
                call->name, name, why);
    if (strcmp(call->name, "File_open") == 0)
        b = (weir_word)nowhere;
    else
        a = (weir_word)nowhere;
    return pass_on(call, profiled, ARGUMENTS);
}

/* Where the pool is to serve a name: the path within it instead. */
static int by_name(struct call *call, int profiled, bool first, PARAMETERS)
{
    char path[ROUTE_PATH_MAX];
    const char *name = (const char *)(first ? a : b), *why = "the path is too long";
    enum route where = route(name, path);
    if (where == ROUTE_OTHER)
        return pass_on(call, profiled, ARGUMENTS);
    if (where == ROUTE_TOO_LONG || loaded_back(&why) == NULL) {
        /* Under the mount the kernel serves it all the same. */
        if (where == ROUTE_PATH)
            return pass_on(call, profiled, ARGUMENTS);
        return refuse(call, profiled, name, why, ARGUMENTS);
    }
    if (first)
        a = (weir_word)path;
    else
        b = (weir_word)path;
    return serve(call, profiled, ARGUMENTS);
}

/* open(comm, name, amode, info, file) */
static int on_open(struct call *call, int profiled, PARAMETERS)
{
    return by_name(call, profiled, false, ARGUMENTS);
}

BOTH(File_open, on_open)

/* delete(name, info) */
static int on_delete(struct call *call, int profiled, PARAMETERS)
{
    return by_name(call, profiled, true, ARGUMENTS);
}

BOTH(File_delete, on_delete)

/* finalize(): what the back end keeps goes first. */
static int on_finalize(struct call *call, int profiled, PARAMETERS)
{
    return (loaded_back_already() != NULL ? serve : pass_on)(call, profiled, ARGUMENTS);
}

BOTH(Finalize, on_finalize)
