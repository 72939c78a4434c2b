/* Another library that stands in front of the C library's functions, as tracers and profilers do, and
   does I/O before `main`. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static volatile long calls;
/* Not the child of one that was interposed: those may do no I/O at all. */
static int first;

#define NEXT(result, name, ...)                                                                      \
    static result (*next)(__VA_ARGS__);                                                              \
    if (!next) next = (result(*)(__VA_ARGS__))(uintptr_t)dlsym(RTLD_NEXT, #name);                    \
    calls++

int open(const char *path, int flags, ...)
{
    NEXT(int, open, const char *, int, ...);
    va_list list;
    va_start(list, flags);
    mode_t mode = va_arg(list, mode_t);
    va_end(list);
    return next(path, flags, mode);
}

ssize_t read(int fd, void *memory, size_t length)
{
    NEXT(ssize_t, read, int, void *, size_t);
    return next(fd, memory, length);
}

ssize_t write(int fd, const void *memory, size_t length)
{
    NEXT(ssize_t, write, int, const void *, size_t);
    return next(fd, memory, length);
}

ssize_t pread(int fd, void *memory, size_t length, off_t offset)
{
    NEXT(ssize_t, pread, int, void *, size_t, off_t);
    return next(fd, memory, length, offset);
}

ssize_t pwrite(int fd, const void *memory, size_t length, off_t offset)
{
    NEXT(ssize_t, pwrite, int, const void *, size_t, off_t);
    return next(fd, memory, length, offset);
}

int close(int fd)
{
    NEXT(int, close, int);
    return next(fd);
}

__attribute__((constructor)) static void begins(void)
{
    char text[64];
    int fd = open("/proc/self/status", O_RDONLY);
    int right = fd >= 0 && read(fd, text, sizeof text) > 0 && close(fd) == 0;
    for (int i = 0; i < 3; i++) {
        FILE *file = fopen("/proc/self/status", "r");
        right = right && file && fileno(file) == fd && fgets(text, sizeof text, file) && fclose(file) == 0;
    }
    /* The shell has libraries of its own preloaded; it need not have these. */
    char *preload = getenv("LD_PRELOAD");
    if (preload && !getenv("INTERPOSED")) {
        setenv("INTERPOSED", "1", 1);
        first = 1;
        FILE *pipe = popen("echo said", "r");
        right = right && pipe && fgets(text, sizeof text, pipe) && text[0] == 's' && pclose(pipe) == 0;
        right = right && system("exit 4") == 4 << 8;
    }
    if (!right) _exit(9);
}

__attribute__((destructor)) static void ends(void)
{
    if (first && calls == 0) _exit(9);
}
