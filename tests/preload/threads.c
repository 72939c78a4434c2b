/* Threads and signal handlers that work on the same files at the same time. */
#include "check.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <sys/time.h>

enum { THREADS = 6, PART = 64 * KIB + 8, PARTS = 60 };

static int fd;

static void together(void *(*work)(void *))
{
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

static void *own_regions(void *argument)
{
    uint64_t thread = (uint64_t)argument;
    unsigned char *memory = allocate(PART);
    for (uint64_t round = 0; round < 20; round++) {
        off_t at = (off_t)((round * THREADS + thread) * PART);
        fill(memory, (unsigned)thread, 0, PART);
        EQUAL(pwrite(fd, memory, PART, at), PART);
        memset(memory, 0, PART);
        EQUAL((round % 2 ? pread : bare_pread)(fd, memory, PART, at), PART);
        CHECK(filled(memory, (unsigned)thread, 0, PART));
    }
    free(memory);
    return NULL;
}

static void regions(void)
{
    warm();
    fd = open("f", O_CREAT | O_RDWR, 0600);
    together(own_regions);
    unsigned char *memory = allocate(PART);
    for (unsigned part = 0; part < 20 * THREADS; part++) {
        EQUAL(bare_pread(fd, memory, PART, (off_t)part * PART), PART);
        CHECK(filled(memory, part % THREADS, 0, PART));
    }
    free(memory);
}

static atomic_int seen[PARTS];
static pthread_barrier_t start;

static void *reads_on(void *argument)
{
    unsigned char *memory = allocate(PART);
    pthread_barrier_wait(&start);
    for (;;) {
        ssize_t got = read(fd, memory, PART);
        if (got == 0) break;
        EQUAL(got, PART);
        uint64_t part;
        memcpy(&part, memory, sizeof part);
        CHECK(part < PARTS);
        CHECK(filled(memory + 8, (unsigned)part, 0, PART - 8));
        atomic_fetch_add(&seen[part], 1);
    }
    (void)argument;
    free(memory);
    return NULL;
}

/* Each part comes to one thread, also while the descriptor is being borrowed. */
static void one_position(void)
{
    warm();
    CHECK(pthread_barrier_init(&start, NULL, THREADS) == 0);
    unsigned char *memory = allocate(PART);
    fd = open("f", O_CREAT | O_RDWR, 0600);
    for (uint64_t part = 0; part < PARTS; part++) {
        memcpy(memory, &part, sizeof part);
        fill(memory + 8, (unsigned)part, 0, PART - 8);
        EQUAL(write(fd, memory, PART), PART);
    }
    for (int round = 0; round < 30; round++) {
        EQUAL(close(fd), 0);
        fd = open("f", O_RDWR);
        for (int part = 0; part < PARTS; part++) seen[part] = 0;
        together(reads_on);
        for (int part = 0; part < PARTS; part++) EQUAL(seen[part], 1);
        EQUAL(lseek(fd, 0, SEEK_CUR), (off_t)PARTS * PART);
    }
    free(memory);
}

static int copies[THREADS];

static void *writes_on(void *argument)
{
    unsigned char line[16];
    memset(line, 'a' + (int)(long)argument, sizeof line);
    for (int i = 0; i < 200; i++) EQUAL(write(copies[(long)argument], line, sizeof line), sizeof line);
    return NULL;
}

/* What was duplicated has one position: nobody writes over what another one has written. */
static void duplicates(void)
{
    warm();
    for (int round = 0; round < 2; round++) {
        fd = open("f", O_CREAT | O_TRUNC | O_RDWR, 0600);
        if (round) borrow(fd);
        for (int i = 0; i < THREADS; i++) copies[i] = i % 2 ? dup(fd) : fcntl(fd, F_DUPFD_CLOEXEC, 30 + i);
        together(writes_on);
        EQUAL(lseek(fd, 0, SEEK_CUR), THREADS * 200 * 16);
        EQUAL(lseek(copies[1], 0, SEEK_END), THREADS * 200 * 16);
        int count[THREADS] = {0};
        unsigned char line[16];
        for (int i = 0; i < THREADS * 200; i++) {
            EQUAL(bare_pread(fd, line, sizeof line, 16 * i), sizeof line);
            for (int j = 1; j < 16; j++) EQUAL(line[j], line[0]);
            count[line[0] - 'a']++;
        }
        for (int i = 0; i < THREADS; i++) EQUAL(count[i], 200);
        for (int i = 0; i < THREADS; i++) close(copies[i]);
        close(fd);
    }
}

static void *opens_and_closes(void *argument)
{
    char name[16];
    unsigned char *memory = allocate(PART);
    snprintf(name, sizeof name, "f%ld", (long)argument);
    for (unsigned round = 0; round < 60; round++) {
        int own = open(name, O_CREAT | O_RDWR, 0600);
        CHECK(own >= 0);
        fill(memory, round, 0, PART);
        EQUAL(write(own, memory, PART), PART);
        holds(own, round, 0, PART);
        EQUAL(lseek(own, 0, SEEK_CUR), PART);
        EQUAL(close(own), 0);
    }
    free(memory);
    return NULL;
}

static void numbers_change_hands(void)
{
    warm();
    together(opens_and_closes);
}

static int pipes[2];

static void *waits_in_pipe(void *argument)
{
    char byte;
    (void)argument;
    CHECK(read(pipes[0], &byte, 1) == 1);
    return NULL;
}

static void *reads_for_ever(void *argument)
{
    unsigned char *memory = argument;
    while (memory) EQUAL(pread(fd, memory, PART, 0), PART);
    return NULL;
}

/* Threads end where they are cancelled, in what is not ours and in what is. */
static void cancelled(void)
{
    warm();
    CHECK(pipe(pipes) == 0);
    unsigned char *memory = allocate(PART);
    fd = borrowed("f", O_CREAT | O_RDWR);
    fill(memory, 1, 0, PART);
    EQUAL(pwrite(fd, memory, PART, 0), PART);
    for (int round = 0; round < 20; round++) {
        pthread_t threads[2];
        CHECK(pthread_create(&threads[0], NULL, waits_in_pipe, NULL) == 0);
        CHECK(pthread_create(&threads[1], NULL, reads_for_ever, allocate(PART)) == 0);
        usleep(3000);
        for (int i = 0; i < 2; i++) {
            void *result;
            EQUAL(pthread_cancel(threads[i]), 0);
            EQUAL(pthread_join(threads[i], &result), 0);
            CHECK(result == PTHREAD_CANCELED);
        }
        holds(fd, 1, 0, PART);
    }
    DIRECTLY(1, EQUAL(pread(fd, memory, PART, 0), PART));
}

static int log_fd;
static volatile sig_atomic_t signals;

/* Writes to another file and to the one that may be at work. */
static void on_timer(int number)
{
    static unsigned char memory[1024];
    int error = errno;
    (void)number;
    fill(memory, 4, 0, sizeof memory);
    EQUAL(pwrite(fd, memory, sizeof memory, 3 * PART), sizeof memory);
    EQUAL(pread(fd, memory, sizeof memory, 3 * PART), sizeof memory);
    CHECK(filled(memory, 4, 0, sizeof memory));
    EQUAL(write(log_fd, memory, 100), 100);
    int own = open("own", O_CREAT | O_RDWR, 0600);
    CHECK(own >= 0);
    EQUAL(write(own, memory, sizeof memory), sizeof memory);
    EQUAL(close(own), 0);
    signals++;
    errno = error;
}

static void ticks(int microseconds)
{
    struct itimerval timer = {{0, microseconds}, {0, microseconds}};
    struct sigaction action = {.sa_handler = on_timer, .sa_flags = SA_RESTART};
    EQUAL(sigaction(SIGALRM, &action, NULL), 0);
    EQUAL(setitimer(ITIMER_REAL, &timer, NULL), 0);
}

static void signalled(void)
{
    warm();
    unsigned char *memory = allocate(PART);
    fd = borrowed("f", O_CREAT | O_RDWR);
    log_fd = borrowed("log", O_CREAT | O_RDWR | O_APPEND);
    ticks(2000);
    for (unsigned round = 0; signals < 300; round++) {
        fill(memory, round, 0, PART);
        errno = 77;
        EQUAL(pwrite(fd, memory, PART, 0), PART);
        EQUAL(pread(fd, memory, PART, 0), PART);
        EQUAL(errno, 77);
        CHECK(filled(memory, round, 0, PART));
        EQUAL(lseek(fd, PART, SEEK_SET), PART);
        EQUAL(write(fd, memory, PART), PART);
        EQUAL(lseek(fd, 0, SEEK_CUR), 2 * PART);
        int own = open("other", O_CREAT | O_RDWR, 0600);
        EQUAL(write(own, memory, PART), PART);
        EQUAL(close(own), 0);
    }
    ticks(0);
    EQUAL(lseek(log_fd, 0, SEEK_END), 100 * signals);
    EQUAL(pread(fd, memory, 1024, 3 * PART), 1024);
    CHECK(filled(memory, 4, 0, 1024));
}

/* The handler may interrupt the allocator, which must not be entered again. */
static void signalled_while_allocating(void)
{
    warm();
    fd = borrowed("f", O_CREAT | O_RDWR);
    log_fd = borrowed("log", O_CREAT | O_RDWR);
    ticks(1000);
    void *kept[64] = {NULL};
    for (unsigned long round = 0; signals < 500; round++) {
        free(kept[round % 64]);
        kept[round % 64] = allocate(16 + round * 37 % 5000);
    }
    ticks(0);
}

static sigjmp_buf back;

static void jumps(int number)
{
    (void)number;
    siglongjmp(back, 1);
}

/* A program that limits a call's time by jumping out of it goes on, by the kernel at worst. */
static void jumped_out_of(void)
{
    warm();
    unsigned char *memory = allocate(PART);
    fd = borrowed("f", O_CREAT | O_RDWR);
    fill(memory, 1, 0, PART);
    EQUAL(pwrite(fd, memory, PART, 0), PART);
    signal(SIGALRM, jumps);
    for (volatile int round = 0; round < 50; round++) {
        if (sigsetjmp(back, 1) == 0) {
            struct itimerval timer = {{0, 0}, {0, 300 + 50 * round}};
            EQUAL(setitimer(ITIMER_REAL, &timer, NULL), 0);
            for (;;) EQUAL(pread(fd, memory, PART, 0), PART);
        }
        holds(fd, 1, 0, PART);
        int own = open("own", O_CREAT | O_RDWR, 0600);
        EQUAL(write(own, memory, PART), PART);
        EQUAL(close(own), 0);
    }
    pid_t child = fork();
    if (child == 0) {
        holds(fd, 1, 0, PART);
        _exit(0);
    }
    ends_well(child);
}

static const struct test tests[] = {
    {"regions", regions},
    {"one_position", one_position},
    {"duplicates", duplicates},
    {"numbers_change_hands", numbers_change_hands},
    {"cancelled", cancelled},
    {"signalled", signalled},
    {"signalled_while_allocating", signalled_while_allocating},
    {"jumped_out_of", jumped_out_of},
    {NULL, NULL},
};

int main(int count, char **arguments)
{
    return run_tests(count, arguments, tests);
}
