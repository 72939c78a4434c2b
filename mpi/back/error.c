#include "error.h"
#include "file.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Thread_local char error_text[ERROR_TEXT_SIZE];

int error_set(int class, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error_text, sizeof error_text, format, arguments);
    va_end(arguments);
    return class;
}

static int class_of(int number)
{
    switch (number) {
    case ENOENT:
        return MPI_ERR_NO_SUCH_FILE;
    case EEXIST:
        return MPI_ERR_FILE_EXISTS;
    case EACCES:
    case EPERM:
        return MPI_ERR_ACCESS;
    case EROFS:
    case EBADF:
        return MPI_ERR_READ_ONLY;
    case ENOSPC:
        return MPI_ERR_NO_SPACE;
    case EDQUOT:
        return MPI_ERR_QUOTA;
    case EBUSY:
        return MPI_ERR_FILE_IN_USE;
    case EISDIR:
    case ENOTDIR:
    case ELOOP:
    case ENAMETOOLONG:
    case EXDEV:
        return MPI_ERR_BAD_FILE;
    case EINVAL:
    case EFBIG:
        return MPI_ERR_ARG;
    case ENOMEM:
        return MPI_ERR_NO_MEM;
    default:
        return MPI_ERR_IO;
    }
}

int error_of(ssize_t result)
{
    if (result >= 0)
        return MPI_SUCCESS;
    return error_set(class_of((int)-result), "%s", weir_error_text());
}

/* One code for each class, so that however many errors there are, codes are not used up: its string
 * is the story of the last one. The MPI is given it too, for what it prints by itself, but MPICH 4.0
 * says something else of codes that are added to its own classes: MPI_Error_string is answered here. */
enum { CODES_MAX = 128 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    int code; /* 0: none yet */
    char story[MPI_MAX_ERROR_STRING];
} codes[CODES_MAX];

static int code_for(int class)
{
    int code = class, found = 0;
    if (class <= 0 || class >= CODES_MAX)
        return class;
    pthread_mutex_lock(&lock);
    if (codes[class].code == 0) {
        codes[class].code = class;
        if (PMPI_Add_error_code(class, &code) == MPI_SUCCESS &&
            PMPI_Error_class(code, &found) == MPI_SUCCESS && found == class)
            codes[class].code = code;
    }
    code = codes[class].code;
    if (code != class) {
        snprintf(codes[class].story, sizeof codes[class].story, "%.*s",
                 (int)sizeof codes[class].story - 1, error_text);
        PMPI_Add_error_string(code, codes[class].story);
    }
    pthread_mutex_unlock(&lock);
    return code;
}

EXPORT int weir_mpi_Error_string(int code, char *string, int *length);
int weir_mpi_Error_string(int code, char *string, int *length)
{
    bool ours = false;
    pthread_mutex_lock(&lock);
    for (int class = 1; class < CODES_MAX && !ours; class++) {
        ours = codes[class].code == code && code != class;
        if (ours) {
            strcpy(string, codes[class].story);
            *length = (int)strlen(string);
        }
    }
    pthread_mutex_unlock(&lock);
    return ours ? MPI_SUCCESS : GENUINE(Error_string)(code, string, length);
}

/* For people whose program does not tell them: WEIR_MPI_ERRORS=yes. */
static void show(void)
{
    const char *wanted = getenv("WEIR_MPI_ERRORS");
    if (wanted != NULL && strcmp(wanted, "yes") == 0)
        fprintf(stderr, "weir: %s\n", error_text);
}

/* Handlers that the program has made in C: what they are is not to be had from the MPI. */
enum { HANDLERS_MAX = 64 };
static struct {
    MPI_Errhandler handler;
    MPI_File_errhandler_function *function;
} handlers[HANDLERS_MAX];
static int handler_count;

EXPORT int weir_mpi_File_create_errhandler(MPI_File_errhandler_function *function,
                                           MPI_Errhandler *handler);
int weir_mpi_File_create_errhandler(MPI_File_errhandler_function *function, MPI_Errhandler *handler)
{
    int result = GENUINE(File_create_errhandler)(function, handler), at = 0;
    if (result != MPI_SUCCESS)
        return result;
    pthread_mutex_lock(&lock);
    /* A handle may be that of one that has gone. */
    while (at < handler_count && handlers[at].handler != *handler)
        at++;
    if (at < HANDLERS_MAX) {
        handlers[at].handler = *handler;
        handlers[at].function = function;
        handler_count += at == handler_count;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static MPI_File_errhandler_function *function_of(MPI_Errhandler handler)
{
    MPI_File_errhandler_function *function = NULL;
    pthread_mutex_lock(&lock);
    for (int at = 0; at < handler_count; at++)
        if (handlers[at].handler == handler)
            function = handlers[at].function;
    pthread_mutex_unlock(&lock);
    return function;
}

void error_inherit(MPI_File file)
{
    MPI_Errhandler wanted, has;
    if (PMPI_File_get_errhandler(MPI_FILE_NULL, &wanted) != MPI_SUCCESS ||
        PMPI_File_get_errhandler(file, &has) != MPI_SUCCESS)
        return;
    if (wanted != has && wanted != MPI_ERRHANDLER_NULL)
        PMPI_File_set_errhandler(file, wanted);
}

/* Open MPI 5 has one more predefined handler than Open MPI 4, whose soname is the same. */
#pragma weak ompi_mpi_errors_abort

/* The handler of MPI_FILE_NULL; the code that it leaves. Open MPI's MPI_File_call_errhandler aborts for it, whatever the
 * handler, so the predefined ones are recognised, and a program's own is called here; one that was
 * made in Fortran by way of a file that has it. */
static int call_default_handler(int code)
{
    MPI_Errhandler handler;
    if (PMPI_File_get_errhandler(MPI_FILE_NULL, &handler) != MPI_SUCCESS ||
        handler == MPI_ERRORS_RETURN || handler == MPI_ERRHANDLER_NULL)
        return code;
    bool fatal = handler == MPI_ERRORS_ARE_FATAL;
    MPI_Comm whom = MPI_COMM_WORLD;
#ifdef MPI_ERRORS_ABORT
    if (handler == MPI_ERRORS_ABORT) {
        fatal = true;
        whom = MPI_COMM_SELF;
    }
#endif
    if (fatal) {
        fprintf(stderr, "weir: %s\n", error_text);
        PMPI_Abort(whom, code);
    }
    MPI_File file = MPI_FILE_NULL;
    MPI_File_errhandler_function *function = function_of(handler);
    if (function != NULL) {
        function(&file, &code, NULL);
        return code;
    }
    if (GENUINE(File_open)(MPI_COMM_SELF, "/dev/null", MPI_MODE_RDONLY, MPI_INFO_NULL, &file) ==
        MPI_SUCCESS) {
        PMPI_File_set_errhandler(file, handler);
        PMPI_File_call_errhandler(file, code);
        GENUINE(File_close)(&file);
    }
    /* The handler is not freed: MPICH gives it out without counting that. */
    return code;
}

int error_raise(struct weir_mpi_file *file, int class)
{
    if (class == MPI_SUCCESS)
        return MPI_SUCCESS;
    int code = code_for(class);
    show();
    if (file == NULL)
        return call_default_handler(code);
    PMPI_File_call_errhandler(file->handle, code);
    return code;
}
