/* Descriptors change hands where the library does not see it: by system calls of the program's own, as
   languages without a C library make them, and rings of requests. */
#include "check.h"

#include <pthread.h>
#include <sched.h>

enum { LENGTH = 4096 };

static char memory[LENGTH];

/* A file outside of the pool, empty. */
static int local(void)
{
    int fd = open(outside("local"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0);
    return fd;
}

static void writes(int fd, unsigned seed)
{
    fill(memory, seed, 0, LENGTH);
    EQUAL(pwrite(fd, memory, LENGTH, 0), LENGTH);
}

/* What lies at a path is the pattern, whatever descriptors are. */
static void lies(const char *path, unsigned seed)
{
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0);
    EQUAL(bare_pread(fd, memory, LENGTH, 0), LENGTH);
    CHECK(filled(memory, seed, 0, LENGTH));
    EQUAL(close(fd), 0);
}

static void closed_and_opened(void)
{
    warm();
    EQUAL(close(local()), 0);
    for (unsigned round = 0; round < 4; round++) {
        int fd = borrowed("f", O_CREAT | O_RDWR);
        DIRECTLY(1, writes(fd, 1));
        DIRECTLY(1, writes(fd, 2));
        EQUAL(unseen(SYS_close, fd, 0, 0), 0);
        EQUAL(unseen(SYS_openat, AT_FDCWD, (long)outside("local"), O_RDWR), fd);
        DIRECTLY(0, writes(fd, 3 + round));
        lies(outside("local"), 3 + round);
        lies("f", 2);
        EQUAL(unseen(SYS_close, fd, 0, 0), 0);
        REFUSED(pwrite(fd, memory, LENGTH, 0), EBADF);
        REFUSED(pread(fd, memory, LENGTH, 0), EBADF);
    }
}

/* As `dd` makes its output the standard output: by any of its names it is what it was. */
static void duplicated_before_use(void)
{
    enum { CALLS = 10 };
    warm();
    for (int way = 0; way < 5; way++) {
        int fd = open("f", O_CREAT | O_TRUNC | O_RDWR, 0600), two = 40;
        EQUAL(dup2(fd, two), two);
        if (way == 0) EQUAL(close(fd), 0);
        /* One name is something else by now, which the library has not seen. */
        if (way == 1) EQUAL(unseen(SYS_dup3, local(), fd, 0), fd);
        if (way == 2) EQUAL(unseen(SYS_close, fd, 0, 0), 0);
        if (way == 3) EQUAL(write(fd, memory, 10), 10);
        /* The first three requests are the kernel's. */
        for (unsigned i = 0; i < 3; i++) EQUAL(write(two, memory, 10), 10);
        off_t begin = way == 3 ? 40 : 30;
        DIRECTLY(CALLS, for (unsigned i = 0; i < CALLS; i++) {
            fill(memory, i, 0, LENGTH);
            int name = way >= 3 && i % 2 ? fd : two;
            EQUAL(write(name, memory, LENGTH), LENGTH);
        });
        EQUAL(lseek(two, 0, SEEK_CUR), begin + CALLS * LENGTH);
        for (unsigned i = 0; i < CALLS; i++) {
            EQUAL(bare_pread(two, memory, LENGTH, begin + i * LENGTH), LENGTH);
            CHECK(filled(memory, i, 0, LENGTH));
        }
        if (way == 1) {
            DIRECTLY(0, writes(fd, 7));
            lies(outside("local"), 7);
        }
        if (way != 0 && way != 2) EQUAL(close(fd), 0);
        /* Its number stands for another file. */
        EQUAL(fd, open("g", O_CREAT | O_TRUNC | O_RDWR, 0600));
        for (unsigned i = 0; i < 4; i++) writes(fd, 8);
        DIRECTLY(1, writes(fd, 9));
        lies("g", 9);
        EQUAL(lseek(two, 0, SEEK_END), begin + CALLS * LENGTH);
        EQUAL(close(fd) | close(two), 0);
    }
}

/* One of its names was inherited by a command: so was the position. */
static void duplicated_and_inherited(void)
{
    warm();
    for (int way = 0; way < 2; way++) {
        int fd = open("f", O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600), two = dup(fd);
        EQUAL(system("exit 0"), 0);
        int used = way ? two : fd;
        for (int i = 0; i < 4; i++) EQUAL(write(used, memory, LENGTH), LENGTH);
        DIRECTLY(0, EQUAL(write(fd, memory, LENGTH), LENGTH));
        DIRECTLY(0, EQUAL(write(two, memory, LENGTH), LENGTH));
        EQUAL(lseek(fd, 0, SEEK_CUR), 6 * LENGTH);
        DIRECTLY(1, writes(used, 3));
        EQUAL(close(fd) | close(two), 0);
    }
}

/* What the C library opens for a program is this process's own, too. */
static void temporary(void)
{
    warm();
    for (int way = 0; way < 4; way++) {
        char name[] = "tXXXXXX.c";
        if (way < 2) name[7] = 0;
        int fd = way == 0   ? mkstemp(name)
                 : way == 1 ? mkostemp(name, O_CLOEXEC)
                 : way == 2 ? mkstemps(name, 2)
                            : mkostemps(name, 2, O_CLOEXEC);
        CHECK(fd >= 0);
        fill(memory, 5, 0, LENGTH);
        for (int i = 0; i < 3; i++) EQUAL(write(fd, memory, LENGTH), LENGTH);
        DIRECTLY(1, EQUAL(write(fd, memory, LENGTH), LENGTH));
        EQUAL(lseek(fd, 0, SEEK_CUR), 4 * LENGTH);
        EQUAL(close(fd), 0);
        lies(name, 5);
    }
}

static void duplicated_over(void)
{
    warm();
    int fd = borrowed("f", O_CREAT | O_RDWR), two = dup(fd), other = local();
    CHECK(two >= 0);
    DIRECTLY(1, writes(two, 1));
    DIRECTLY(1, writes(fd, 1));
    EQUAL(unseen(SYS_dup3, other, two, 0), two);
    DIRECTLY(0, writes(two, 2));
    lies(outside("local"), 2);
    DIRECTLY(1, writes(fd, 3));
    lies("f", 3);
    lies(outside("local"), 2);
    /* Another opening of the same file, and another file of the pool. */
    int again = borrowed("f", O_RDONLY);
    EQUAL(unseen(SYS_dup3, again, fd, 0), fd);
    REFUSED(pwrite(fd, memory, LENGTH, 0), EBADF);
    int next = borrowed("g", O_CREAT | O_RDWR);
    EQUAL(unseen(SYS_dup3, next, fd, 0), fd);
    writes(fd, 4);
    lies("f", 3);
    lies("g", 4);
    EQUAL(close(again) + close(next) + close(fd) + close(two) + close(other), 0);
}

/* What a child has too is known by its file alone, which may be open by another name. */
static void another_name(void)
{
    warm();
    int fd = borrowed("f", O_CREAT | O_RDWR), other = local();
    EQUAL(link("f", "also"), 0);
    pid_t child = fork();
    if (child == 0) _exit(0);
    ends_well(child);
    borrow(fd);
    writes(fd, 1);
    int also = open("also", O_RDWR);
    CHECK(also >= 0);
    EQUAL(unseen(SYS_dup3, also, fd, 0), fd);
    EQUAL(unseen(SYS_close, also, 0, 0), 0);
    for (unsigned round = 2; round < 8; round++) writes(fd, round);
    EQUAL(unseen(SYS_dup3, other, fd, 0), fd);
    DIRECTLY(0, writes(fd, 8));
    lies(outside("local"), 8);
    lies("f", 7);
    EQUAL(close(fd) + close(other), 0);
}

static int shared_fd;
static pthread_barrier_t turn;

static void *apart(void *nothing)
{
    int other = local();
    EQUAL(unshare(CLONE_FILES), 0);
    EQUAL(unseen(SYS_dup3, other, shared_fd, 0), shared_fd);
    for (unsigned round = 0; round < 4; round++) {
        pthread_barrier_wait(&turn);
        EQUAL(pwrite(shared_fd, "local", 5, 0), 5);
        pthread_barrier_wait(&turn);
    }
    char text[5];
    EQUAL(pread(other, text, 5, 0), 5);
    EQUAL(memcmp(text, "local", 5), 0);
    return nothing;
}

/* A thread with descriptors of its own has another file under the same number. */
static void tables_apart(void)
{
    warm();
    shared_fd = borrowed("f", O_CREAT | O_RDWR);
    DIRECTLY(1, writes(shared_fd, 1));
    pthread_t thread;
    EQUAL(pthread_barrier_init(&turn, NULL, 2), 0);
    EQUAL(pthread_create(&thread, NULL, apart, NULL), 0);
    for (unsigned round = 0; round < 4; round++) {
        borrow(shared_fd);
        DIRECTLY(1, writes(shared_fd, 2 + round));
        pthread_barrier_wait(&turn);
        pthread_barrier_wait(&turn);
        lies("f", 2 + round);
    }
    EQUAL(pthread_join(thread, NULL), 0);
    EQUAL(close(shared_fd), 0);
}

static const struct test tests[] = {
    {"closed_and_opened", closed_and_opened},
    {"duplicated_before_use", duplicated_before_use},
    {"duplicated_and_inherited", duplicated_and_inherited},
    {"temporary", temporary},
    {"duplicated_over", duplicated_over},
    {"another_name", another_name},
    {"tables_apart", tables_apart},
    {NULL, NULL},
};

int main(int count, char **arguments)
{
    return run_tests(count, arguments, tests);
}
