/* check.h - what the conformance tests have in common.
 *
 * Each test is a normal MPI program, which knows nothing of pools:
 *
 *     mpirun -n 4 PROGRAM DIRECTORY [--seed N] [--rounds N] [--limit SECONDS] [CASE...]
 *
 * DIRECTORY is where it may make files, in any form that MPI_File_open takes: /tmp/x, weir:/x. A check that
 * fails is told and counted, and the case goes on, so that all ranks keep making the same collective calls.
 */
#ifndef CHECK_H
#define CHECK_H

#include <mpi.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* In MPI_COMM_WORLD. */
extern int rank, size;
/* --rounds: how often cases with random input try. */
extern int rounds;
/* Whether the pool's driver is what is tested, rather than an MPI's own I/O: then what a standard leaves
 * open, and this project promises, is checked as well (WEIR_MPI_TESTED=driver in the environment). */
extern bool driver;

struct check_case {
    const char *name;
    void (*run)(void);
};

/* The whole of main: runs the cases (the last one has no name), gives the exit status. */
int check_main(int argc, char **argv, const struct check_case *cases);

/* A name for a file of this case, the same on all ranks, until the next call but seven. */
const char *path(const char *name);

/* Tells of a failure of this rank, and counts it. */
void fail(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Tells of something that is worth knowing and no failure: once, from rank 0. */
void note(const char *format, ...) __attribute__((format(printf, 1, 2)));

#define CHECK(condition, ...)                                                                        \
    do {                                                                                             \
        if (!(condition)) fail(__FILE__, __LINE__, #condition ": " __VA_ARGS__);                     \
    } while (0)

/* Two integers are the same. */
#define EQUAL(found, expected)                                                                       \
    do {                                                                                             \
        long long found_ = (long long)(found), expected_ = (long long)(expected);                    \
        if (found_ != expected_)                                                                     \
            fail(__FILE__, __LINE__, "%s is %lld, not %lld", #found, found_, expected_);             \
    } while (0)

/* A call that must succeed; whether it did. */
#define OK(call) check_ok((call), #call, __FILE__, __LINE__)
bool check_ok(int error, const char *what, const char *file, int line);

/* A call that must fail, with one of these classes, or with ANY. */
#define ANY MPI_SUCCESS
#define FAILS(call, ...) check_fails((call), #call, __FILE__, __LINE__, (int[]){__VA_ARGS__, MPI_SUCCESS})
void check_fails(int error, const char *what, const char *file, int line, const int *classes);

/* Whether it is true on all ranks of the communicator. */
bool everywhere(MPI_Comm comm, bool here);

/* Opens a file that must be there to be opened; on all ranks or none. MPI_FILE_NULL: none. */
MPI_File opened_(MPI_Comm comm, const char *name, int amode, MPI_Info info, const char *file, int line);
#define opened(comm, name, amode) opened_(comm, name, amode, MPI_INFO_NULL, __FILE__, __LINE__)
#define opened_with(comm, name, amode, info) opened_(comm, name, amode, info, __FILE__, __LINE__)
/* A new, empty file for reading and writing. */
#define created(comm, name) created_(comm, name, __FILE__, __LINE__)
MPI_File created_(MPI_Comm comm, const char *name, const char *file, int line);

/* Removes a file, which need not exist, from rank 0; all ranks of MPI_COMM_WORLD call it. */
void removed(const char *name);

/* What any rank has written so far, all of them see from here on: sync, barrier, sync. */
void settle(MPI_File file);

/* The status says so many bytes, and as many elements of the type. */
#define COUNTED(status, type, count) check_counted(&(status), type, count, __FILE__, __LINE__)
void check_counted(const MPI_Status *status, MPI_Datatype type, long long count, const char *file, int line);

/* The bytes at an offset of a file, by its first rank, through a view of its own; told where they differ first. */
#define HOLDS(name, offset, bytes, length) check_holds(name, offset, bytes, length, __FILE__, __LINE__)
void check_holds(const char *name, MPI_Offset offset, const void *bytes, size_t length, const char *file, int line);
/* Same, of memory. */
#define SAME(found, expected, length) check_same(found, expected, length, __FILE__, __LINE__)
bool check_same(const void *found, const void *expected, size_t length, const char *file, int line);

/* Random numbers: the same on all ranks, and of this rank's own. */
struct random {
    uint64_t state;
};
extern struct random common, own;
uint64_t random_next(struct random *);
/* From least to most. */
long random_between(struct random *, long least, long most);
void random_fill(struct random *, void *bytes, size_t length);

/* A byte that tells where in which file it belongs, never 0. */
static inline unsigned char stamp(long long offset, unsigned file)
{
    uint64_t x = ((uint64_t)offset + 1) * 0x9e3779b97f4a7c15u + file * 0xc2b2ae3d27d4eb4fu;
    return (unsigned char)(1 + (x >> 40) % 255);
}
void stamp_fill(void *bytes, long long offset, size_t length, unsigned file);

#endif
