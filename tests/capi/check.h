/* What the test programs of the C interface share. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weir.h"

/* Ends the program unless the two numbers are equal. */
#define EQUAL(actual, expected)                                                                  \
    check_equal((long long)(actual), (long long)(expected), #actual, __FILE__, __LINE__)
/* Ends the program unless it holds. */
#define CHECK(condition) check_equal(!!(condition), 1, #condition, __FILE__, __LINE__)

static inline void check_equal(long long actual, long long expected, const char *what,
                               const char *file, int line)
{
    if (actual == expected)
        return;
    fprintf(stderr, "%s:%d: %s is %lld, not %lld (%s)\n", file, line, what, actual, expected,
            weir_error_text());
    exit(1);
}

/* A stream of numbers, the same for the same seed. */
static inline uint32_t random_next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

static inline void fill(void *buffer, size_t length, uint64_t seed)
{
    unsigned char *bytes = buffer;
    for (size_t i = 0; i < length; i++)
        bytes[i] = (unsigned char)(random_next(&seed) >> 8);
}

static inline void *allocate(size_t length)
{
    void *memory = malloc(length ? length : 1);
    CHECK(memory != NULL);
    return memory;
}

static inline weir_pool *connect_default(void)
{
    weir_pool *pool = NULL;
    EQUAL(weir_connect(NULL, NULL, &pool), 0);
    CHECK(pool != NULL);
    return pool;
}

static inline weir_file *open_with(weir_pool *pool, const char *path, int flags)
{
    weir_file *file = NULL;
    EQUAL(weir_open(pool, path, flags, 0644, NULL, &file), 0);
    CHECK(file != NULL);
    return file;
}

#endif
