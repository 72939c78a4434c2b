/* Files that one process opens and others use: loans, counters, locks. */
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PROCESSES = 4, BLOCK = 300000, ADDS = 50 };

/* What all processes see. */
struct board {
    char loan[4096];
    ssize_t loan_length;
    _Atomic int inside, most_inside, seen[PROCESSES * ADDS];
};

static void pause_ms(long ms)
{
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

/* A process that borrows, writes its block, reads another's, counts, and locks. */
static void borrower(struct board *board, int number)
{
    weir_pool *pool = connect_default();
    weir_file *file = NULL;
    unsigned char *mine = allocate(BLOCK), *found = allocate(BLOCK);
    EQUAL(weir_borrow(pool, board->loan, (size_t)board->loan_length, &file), 0);
    fill(mine, BLOCK, (uint64_t)number);
    EQUAL(weir_pwrite(file, mine, BLOCK, (uint64_t)number * BLOCK), BLOCK);
    EQUAL(weir_pread(file, found, BLOCK, (uint64_t)number * BLOCK), BLOCK);
    EQUAL(memcmp(mine, found, BLOCK), 0);
    for (int i = 0; i < ADDS; i++) {
        uint64_t before = 0;
        EQUAL(weir_counter_add(file, 3, 1, &before), 0);
        CHECK(before < PROCESSES * ADDS);
        /* No two were given the same. */
        EQUAL(board->seen[before]++, 0);
    }
    for (int i = 0; i < 10; i++) {
        EQUAL(weir_lock(file, 100, 50, 1), 0);
        int inside = ++board->inside;
        if (inside > board->most_inside)
            board->most_inside = inside;
        pause_ms(1);
        board->inside--;
        EQUAL(weir_unlock(file, 100, 50), 0);
    }
    /* What the loan itself does not do is done all the same. */
    uint64_t offset = 0;
    EQUAL(weir_append(file, mine, 10, &offset), 10);
    CHECK(offset >= PROCESSES * BLOCK);
    EQUAL(weir_fsync(file), 0);
    EQUAL(weir_close(file), 0);
    EQUAL(weir_disconnect(pool), 0);
    free(mine);
    free(found);
}

static void several_processes(weir_pool *pool, struct board *board)
{
    weir_file *file = open_with(pool, "/lent", O_RDWR | O_CREAT);
    EQUAL(weir_lend(file, board->loan, 3), -ERANGE);
    board->loan_length = weir_lend(file, board->loan, sizeof board->loan);
    CHECK(board->loan_length > 0);
    EQUAL(weir_lend(file, NULL, 0), board->loan_length);
    /* So that appends are behind all blocks. */
    EQUAL(weir_ftruncate(file, PROCESSES * BLOCK), 0);
    pid_t children[PROCESSES];
    for (int i = 0; i < PROCESSES; i++) {
        children[i] = fork();
        CHECK(children[i] >= 0);
        if (children[i] == 0) {
            borrower(board, i);
            _exit(0);
        }
    }
    for (int i = 0; i < PROCESSES; i++) {
        int status = -1;
        EQUAL(waitpid(children[i], &status, 0), children[i]);
        EQUAL(status, 0);
    }
    EQUAL(board->most_inside, 1);
    uint64_t before = 0;
    EQUAL(weir_counter_add(file, 3, 0, &before), 0);
    EQUAL(before, PROCESSES * ADDS);
    struct weir_stat stat;
    EQUAL(weir_fstat(file, &stat), 0);
    EQUAL(stat.size, PROCESSES * BLOCK + PROCESSES * 10);
    unsigned char *expected = allocate(BLOCK), *found = allocate(BLOCK);
    for (int i = 0; i < PROCESSES; i++) {
        fill(expected, BLOCK, (uint64_t)i);
        EQUAL(weir_pread(file, found, BLOCK, (uint64_t)i * BLOCK), BLOCK);
        EQUAL(memcmp(expected, found, BLOCK), 0);
    }
    EQUAL(weir_close(file), 0);
    EQUAL(weir_stat(pool, "/lent", 0, &stat), 0);
    EQUAL(stat.size, PROCESSES * BLOCK + PROCESSES * 10);
    free(expected);
    free(found);
}

static void refusals(weir_pool *pool, struct board *board)
{
    weir_file *file = open_with(pool, "/refused", O_RDONLY | O_CREAT), *borrowed = NULL;
    EQUAL(weir_borrow(pool, "nonsense", 8, &borrowed), -EINVAL);
    CHECK(borrowed == NULL);
    ssize_t length = weir_lend(file, board->loan, sizeof board->loan);
    CHECK(length > 0);
    EQUAL(weir_borrow(pool, board->loan, (size_t)length - 1, &borrowed), -EINVAL);
    EQUAL(weir_borrow(pool, board->loan, (size_t)length, &borrowed), 0);
    EQUAL(weir_pwrite(borrowed, "x", 1, 0), -EBADF);
    EQUAL(weir_ftruncate(borrowed, 5), -EINVAL);
    EQUAL(weir_lock(borrowed, 0, 0, 1), -EINVAL);
    EQUAL(weir_lock(borrowed, UINT64_MAX, 2, 1), -EINVAL);
    /* Old numbers are driven out by new ones. */
    for (uint32_t number = 0; number < 9; number++)
        EQUAL(weir_counter_add(borrowed, number, number + 1, NULL), 0);
    uint64_t before = 0;
    EQUAL(weir_counter_add(borrowed, 0, 1, &before), -EINVAL);
    EQUAL(weir_counter_add(borrowed, 8, 1, &before), 0);
    EQUAL(before, 9);
    /* The lender goes first, which he should not: what was lent still reads, but counts no more. */
    EQUAL(weir_close(file), 0);
    weir_file *other = open_with(pool, "/other", O_RDONLY | O_CREAT);
    EQUAL(weir_counter_add(borrowed, 8, 1, &before), -EBADF);
    EQUAL(weir_close(other), 0);
    EQUAL(weir_close(borrowed), 0);
}

static void *take_and_keep(void *argument)
{
    weir_file *file = argument;
    EQUAL(weir_lock(file, 0, 10, 1), 0);
    return NULL;
}

/* Locks end with their file, and one thread's wait does not keep the other's from ending. */
static void locks_and_threads(weir_pool *pool)
{
    weir_file *holder = open_with(pool, "/locked", O_RDWR | O_CREAT);
    weir_file *waiting[2] = {open_with(pool, "/locked", O_RDWR), open_with(pool, "/locked", O_RDWR)};
    pthread_t threads[2];
    EQUAL(weir_lock(holder, 5, 10, 0), 0);
    EQUAL(weir_lock(waiting[0], 0, 10, 0), 0);
    EQUAL(weir_unlock(waiting[0], 0, 10), 0);
    for (int i = 0; i < 2; i++)
        EQUAL(pthread_create(&threads[i], NULL, take_and_keep, waiting[i]), 0);
    pause_ms(50);
    EQUAL(weir_close(holder), 0);
    /* One of them has it now, and the other one gets it when that one's file is closed. */
    int first = -1;
    while (first < 0) {
        for (int i = 0; i < 2 && first < 0; i++)
            if (pthread_tryjoin_np(threads[i], NULL) == 0)
                first = i;
        pause_ms(5);
    }
    EQUAL(weir_close(waiting[first]), 0);
    EQUAL(pthread_join(threads[1 - first], NULL), 0);
    EQUAL(weir_close(waiting[1 - first]), 0);
}

int main(void)
{
    struct board *board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE,
                               MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(board != MAP_FAILED);
    weir_pool *pool = connect_default();
    several_processes(pool, board);
    refusals(pool, board);
    locks_and_threads(pool);
    EQUAL(weir_disconnect(pool), 0);
    return 0;
}
