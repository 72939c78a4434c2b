/* What the programs of this directory share. Each is a list of cases; each case runs in a process of
   its own, in the mounted directory, with the preload library. SCRATCH names a directory of another
   file system, BOARD the memory in which the library counts what it did by itself. */
#ifndef CHECK_H
#define CHECK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { KIB = 1024, MIB = 1024 * 1024, BORROWED = 64 * 1024 };

#define CHECK(condition)                                                                             \
    do {                                                                                             \
        if (!(condition)) failed(__FILE__, __LINE__, #condition, "");                                \
    } while (0)
#define EQUAL(left, right)                                                                           \
    do {                                                                                             \
        long long equal_left = (long long)(left), equal_right = (long long)(right);                  \
        if (equal_left != equal_right) {                                                             \
            char equal_text[128];                                                                    \
            snprintf(equal_text, sizeof equal_text, ": %lld, not %lld", equal_left, equal_right);    \
            failed(__FILE__, __LINE__, #left " == " #right, equal_text);                             \
        }                                                                                            \
    } while (0)
/* Fails with this errno. */
#define REFUSED(call, number)                                                                        \
    do {                                                                                             \
        errno = 0;                                                                                   \
        EQUAL(call, -1);                                                                             \
        EQUAL(errno, number);                                                                        \
    } while (0)
/* Does what it should, and the library did so many calls of it by itself. */
#define DIRECTLY(count, statement)                                                                   \
    do {                                                                                             \
        uint64_t directly_before = direct();                                                         \
        statement;                                                                                   \
        EQUAL(direct() - directly_before, count);                                                    \
    } while (0)

static inline void failed(const char *file, int line, const char *what, const char *more)
{
    int error = errno;
    /* Without stdio: a case may have closed it, or be in a signal handler. */
    char text[512];
    int length = snprintf(text, sizeof text, "%s:%d: %s%s (errno %d, %s, process %d)\n", file, line, what,
                          more, error, strerror(error), (int)getpid());
    if (length > (int)sizeof text - 1) length = (int)sizeof text - 1;
    syscall(SYS_write, 2, text, length);
    _exit(1);
}

struct test {
    const char *name;
    void (*run)(void);
};

/* The library's counters: calls by direction, bytes, and so on, for each path. */
struct cell {
    volatile uint64_t reads, writes, bytes[2], ns[2], open, errors[2];
};
static struct board {
    uint64_t magic;
    uint32_t cells;
    unsigned char marks[64 * 1024];
    struct cell cell[4100];
} *board;

/* Calls that the library did by itself so far, in all processes. */
static inline uint64_t direct(void)
{
    uint64_t sum = 0;
    for (int i = 0; i < 4100; i++) sum += board->cell[i].reads + board->cell[i].writes;
    return sum;
}

static inline unsigned char byte_at(unsigned seed, uint64_t offset)
{
    uint64_t word = (offset / 8 + 1) * (0x9E3779B97F4A7C15u ^ (seed * 0xD1B54A32D192ED03u));
    return (unsigned char)(word >> (8 * (offset % 8)));
}

static inline void fill(void *memory, unsigned seed, uint64_t offset, size_t length)
{
    for (size_t i = 0; i < length; i++) ((unsigned char *)memory)[i] = byte_at(seed, offset + i);
}

static inline int filled(const void *memory, unsigned seed, uint64_t offset, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (((const unsigned char *)memory)[i] != byte_at(seed, offset + i)) return 0;
    return 1;
}

static inline void *allocate(size_t length)
{
    void *memory = malloc(length);
    CHECK(memory != NULL);
    return memory;
}

/* Through the kernel, past the library. */
static inline ssize_t bare_pread(int fd, void *memory, size_t length, off_t offset)
{
    return syscall(SYS_pread64, fd, memory, length, offset);
}

static inline ssize_t bare_pwrite(int fd, const void *memory, size_t length, off_t offset)
{
    return syscall(SYS_pwrite64, fd, memory, length, offset);
}

/* A system call that no library sees. */
static inline long unseen(long number, long first, long second, long third)
{
#if defined __x86_64__
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(first), "S"(second), "d"(third)
                     : "rcx", "r11", "memory");
    return result;
#elif defined __aarch64__
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = first;
    register long x1 __asm__("x1") = second;
    register long x2 __asm__("x2") = third;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    return x0;
#else
    return syscall(number, first, second, third);
#endif
}

/* The file holds the pattern there, for the library and for the kernel. */
static inline void holds(int fd, unsigned seed, uint64_t offset, size_t length)
{
    unsigned char *memory = allocate(length + 1);
    EQUAL(pread(fd, memory, length, (off_t)offset), length);
    CHECK(filled(memory, seed, offset, length));
    memset(memory, 0, length);
    EQUAL(bare_pread(fd, memory, length, (off_t)offset), length);
    CHECK(filled(memory, seed, offset, length));
    free(memory);
}

/* Has the library borrow what this is open on: so many requests are worth it. */
static inline void borrow(int fd)
{
    for (int i = 0; i < 4; i++) {
        char byte;
        ssize_t result = pread(fd, &byte, 1, 0);
        CHECK(result >= 0 || errno == EBADF);
    }
}

/* Opens a file and has the library borrow it. */
static inline int borrowed(const char *path, int flags)
{
    int fd = open(path, flags, 0644);
    CHECK(fd >= 0);
    borrow(fd);
    return fd;
}

/* Does enough for the library to make its connections. */
static inline void warm(void)
{
    char *memory = allocate(MIB);
    int fd = open("warm", O_CREAT | O_RDWR, 0644);
    CHECK(fd >= 0);
    fill(memory, 99, 0, MIB);
    for (int i = 0; i < 4; i++) EQUAL(pwrite(fd, memory, MIB, 0), MIB);
    DIRECTLY(2, {
        EQUAL(pwrite(fd, memory, MIB, 0), MIB);
        EQUAL(pread(fd, memory, MIB, 0), MIB);
    });
    EQUAL(close(fd), 0);
    EQUAL(unlink("warm"), 0);
    free(memory);
}

/* A path outside of the pool. */
static inline const char *outside(const char *name)
{
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv("SCRATCH"), name);
    return path;
}

static inline void ends_well(pid_t child)
{
    int status = -1;
    EQUAL(waitpid(child, &status, 0), child);
    EQUAL(status, 0);
}

static inline double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* Tells the test that this program is at work. */
static inline void ready(void)
{
    int fd = open(outside("ready"), O_CREAT | O_RDWR, 0600);
    CHECK(fd >= 0);
    close(fd);
}

static inline void map_board(void)
{
    int fd = open(getenv("BOARD"), O_RDONLY);
    CHECK(fd >= 0);
    board = mmap(NULL, sizeof *board, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(board != MAP_FAILED);
    close(fd);
}

/* `PROGRAM` names the cases, `PROGRAM CASE` runs one. */
static inline int run_tests(int count, char **arguments, const struct test *tests)
{
    for (const struct test *test = tests; test->name; test++) {
        if (count < 2) {
            puts(test->name);
        } else if (strcmp(arguments[1], test->name) == 0) {
            map_board();
            test->run();
            return 0;
        }
    }
    return count < 2 ? 0 : 2;
}

#endif
