// Sequential 4 KiB pwrite and pread of two files, and records of 800 bytes read and written again and
// again at a few places, in turns: one file that is plain and one that is buffered. Prints microseconds for each call on the one and the other; verifies every byte.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PIECE = 4096, PIECES = 8192, RECORD = 800, PLACES = 20, STEPS = 20000 };

static double now_us(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void fill(uint64_t *words, int piece, uint64_t seed) {
    for (size_t i = 0; i < PIECE / sizeof *words; i++)
        words[i] = seed * 0x9e3779b97f4a7c15u + (uint64_t)piece * PIECE + i;
}

static double write_all(int fd, uint64_t seed) {
    static uint64_t words[PIECE / sizeof(uint64_t)];
    double spent = 0;
    for (int piece = 0; piece < PIECES; piece++) {
        fill(words, piece, seed);
        double begun = now_us();
        if (pwrite(fd, words, PIECE, (off_t)piece * PIECE) != PIECE)
            fail("pwrite");
        spent += now_us() - begun;
    }
    // What is buffered must be paid for.
    double begun = now_us();
    if (fsync(fd) != 0)
        fail("fsync");
    return (spent + now_us() - begun) / PIECES;
}

static double read_all(int fd, uint64_t seed) {
    static uint64_t words[PIECE / sizeof(uint64_t)], expected[PIECE / sizeof(uint64_t)];
    double spent = 0;
    for (int piece = 0; piece < PIECES; piece++) {
        double begun = now_us();
        if (pread(fd, words, PIECE, (off_t)piece * PIECE) != PIECE)
            fail("pread");
        spent += now_us() - begun;
        fill(expected, piece, seed);
        if (memcmp(words, expected, PIECE) != 0) {
            fprintf(stderr, "wrong bytes in piece %d\n", piece);
            exit(1);
        }
    }
    return spent / PIECES;
}

// Reads a record, changes some, and goes on to another place.
static double go_to_and_fro(int fd, uint64_t seed) {
    static unsigned char records[PLACES][RECORD], found[RECORD];
    const off_t distance = (off_t)PIECES / PLACES * PIECE;
    for (int place = 0; place < PLACES; place++)
        if (pread(fd, records[place], RECORD, place * distance) != RECORD)
            fail("pread");
    double spent = 0;
    for (int step = 0; step < STEPS; step++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        int place = (int)((seed >> 33) % PLACES);
        double begun = now_us();
        if (pread(fd, found, RECORD, place * distance) != RECORD)
            fail("pread");
        spent += now_us() - begun;
        if (memcmp(found, records[place], RECORD) != 0) {
            fprintf(stderr, "wrong bytes at place %d\n", place);
            exit(1);
        }
        if (step % 3 != 0)
            continue;
        memset(records[place], step, RECORD);
        begun = now_us();
        if (pwrite(fd, records[place], RECORD, place * distance) != RECORD)
            fail("pwrite");
        spent += now_us() - begun;
    }
    double begun = now_us();
    if (fsync(fd) != 0)
        fail("fsync");
    return (spent + now_us() - begun) / (STEPS + (STEPS + 2) / 3);
}

int main(int count, char **arguments) {
    if (count != 3) {
        fprintf(stderr, "usage: small-io PLAIN BUFFERED\n");
        return 2;
    }
    int files[2];
    for (int i = 0; i < 2; i++)
        if ((files[i] = open(arguments[i + 1], O_RDWR | O_CREAT, 0600)) < 0)
            fail(arguments[i + 1]);
    for (uint64_t turn = 0; turn < 2; turn++) {
        double written[2], read[2], both[2];
        for (int i = 0; i < 2; i++)
            written[i] = write_all(files[i], turn * 2 + (uint64_t)i);
        for (int i = 0; i < 2; i++)
            read[i] = read_all(files[i], turn * 2 + (uint64_t)i);
        for (int i = 0; i < 2; i++)
            both[i] = go_to_and_fro(files[i], turn);
        // The first turn warms up: memory of the servers, connections.
        if (turn > 0) {
            printf("C 4 KiB pwrite %.3f %.3f\n", written[0], written[1]);
            printf("C 4 KiB pread %.3f %.3f\n", read[0], read[1]);
            printf("C 800 B to and fro %.3f %.3f\n", both[0], both[1]);
        }
    }
    return 0;
}
