/* route.c - which names of files are the pool's.
 *
 * weir:NAME is the pool's. So is, unless WEIR_MPI=prefix, every path that leads under WEIR_MOUNT.
 * Both forms of a name are one file, and so is the bare path that a library makes POSIX calls with
 * after it has stripped the prefix: NAME is therefore a path as the program's system calls see it
 * where it lies under the mount, and otherwise one from the pool's root.
 */
#define _GNU_SOURCE
#include "route.h"

#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char prefix[] = "weir:";

static const char *set(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && *value != '\0' ? value : NULL;
}

/* Joins and tidies by text alone: no empty and no "." components, ".." takes the one before away.
 * False where it does not fit. */
static bool tidy(const char *base, const char *path, char out[ROUTE_PATH_MAX])
{
    size_t length = 0;
    const char *parts[2] = {*path == '/' ? "" : base, path};
    for (int index = 0; index < 2; index++) {
        const char *at = parts[index];
        while (*at != '\0') {
            size_t part = strcspn(at, "/");
            if (part == 2 && at[0] == '.' && at[1] == '.') {
                while (length > 0 && out[--length] != '/')
                    continue;
            } else if (part > 0 && !(part == 1 && at[0] == '.')) {
                if (length + 1 + part >= ROUTE_PATH_MAX)
                    return false;
                out[length++] = '/';
                memcpy(out + length, at, part);
                length += part;
            }
            at += part + strspn(at + part, "/");
        }
    }
    if (length == 0)
        out[length++] = '/';
    out[length] = '\0';
    return true;
}

/* Cuts a directory off the front of a path, in place; false where the path is not under it. */
static bool cut(const char *directory, char *path)
{
    size_t length = strlen(directory);
    while (length > 1 && directory[length - 1] == '/')
        length--;
    if (strncmp(path, directory, length) != 0 || (path[length] != '/' && path[length] != '\0'))
        return false;
    if (path[length] == '\0')
        strcpy(path, "/");
    else
        memmove(path, path + length, strlen(path + length) + 1);
    return true;
}

/* The mount's device and real path, asked once: each question is a request to the pool. */
static struct mount {
    const char *path; /* as the environment has it; NULL: there is none, or it cannot be asked */
    dev_t device;
    char real[PATH_MAX];
} known_mount;
static pthread_once_t mount_once = PTHREAD_ONCE_INIT;

static void ask_mount(void)
{
    const char *mount = set("WEIR_MOUNT");
    struct stat root;
    if (mount == NULL || stat(mount, &root) != 0 || realpath(mount, known_mount.real) == NULL)
        return;
    known_mount.device = root.st_dev;
    known_mount.path = mount;
}

/* The path that leads under the mount, by its text or by symbolic links on its way; out is the path
 * within the pool then. */
static bool under_mount(const char *mount, const char *path, char out[ROUTE_PATH_MAX])
{
    char tidied[ROUTE_PATH_MAX], here[PATH_MAX];
    if (*path != '/' && getcwd(here, sizeof here) == NULL)
        return false;
    if (!tidy(here, path, tidied))
        return false;
    strcpy(out, tidied);
    if (cut(mount, out))
        return true;
    /* A question to the kernel, and only at an open: does its directory lie there? */
    struct stat there;
    char *slash = strrchr(tidied, '/');
    const char *parent = slash == tidied ? "/" : tidied;
    const char *name = slash + 1;
    *slash = '\0';
    pthread_once(&mount_once, ask_mount);
    /* Where there is no mount, but a directory that a preload library makes up, devices tell nothing:
     * links that lead there are followed by the kernel, to the directory itself. */
    bool alone = set("WEIR_ALONE") != NULL;
    if (known_mount.path == NULL ||
        (!alone && (stat(parent, &there) != 0 || there.st_dev != known_mount.device)))
        return false;
    char real_parent[PATH_MAX];
    if (realpath(parent, real_parent) == NULL)
        return false;
    if (!tidy(real_parent, name, out))
        return false;
    return cut(known_mount.real, out);
}

enum route route(const char *name, char out[ROUTE_PATH_MAX])
{
    const char *how = set("WEIR_MPI"), *mount = set("WEIR_MOUNT");
    if (name == NULL || (how != NULL && strcmp(how, "off") == 0))
        return ROUTE_OTHER;
    bool prefixed = strncmp(name, prefix, sizeof prefix - 1) == 0;
    if (prefixed)
        name += sizeof prefix - 1;
    else if (mount == NULL || (how != NULL && strcmp(how, "prefix") == 0))
        return ROUTE_OTHER;
    if (mount != NULL && *name != '\0' && under_mount(mount, name, out))
        return prefixed ? ROUTE_PREFIX : ROUTE_PATH;
    if (!prefixed)
        return ROUTE_OTHER;
    return tidy("", name, out) ? ROUTE_PREFIX : ROUTE_TOO_LONG;
}
