/* Functions on paths, directories and attributes. */
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/xattr.h>

static void make(weir_pool *pool, const char *path, const char *content)
{
    weir_file *file = open_with(pool, path, O_RDWR | O_CREAT | O_EXCL);
    EQUAL(weir_pwrite(file, content, strlen(content), 0), strlen(content));
    EQUAL(weir_close(file), 0);
}

static void constants(void)
{
    EQUAL(WEIR_NOFOLLOW, AT_SYMLINK_NOFOLLOW);
    EQUAL(WEIR_RENAME_NOREPLACE, RENAME_NOREPLACE);
    EQUAL(WEIR_RENAME_EXCHANGE, RENAME_EXCHANGE);
    EQUAL(WEIR_XATTR_CREATE, XATTR_CREATE);
    EQUAL(WEIR_XATTR_REPLACE, XATTR_REPLACE);
}

static void tree(weir_pool *pool)
{
    struct weir_stat stat, other;
    EQUAL(weir_mkdir(pool, "/d", 0751), 0);
    EQUAL(weir_mkdir(pool, "/d", 0751), -EEXIST);
    CHECK(strstr(weir_error_text(), "mkdir /d: ") == weir_error_text());
    EQUAL(weir_mkdir(pool, "/x/y", 0751), -ENOENT);
    EQUAL(weir_stat(pool, "/d", 0, &stat), 0);
    CHECK(S_ISDIR(stat.mode));
    EQUAL(stat.mode & 07777, 0751);
    EQUAL(stat.nlink, 2);
    EQUAL(weir_stat(pool, "/d", 1, &stat), -EINVAL);
    EQUAL(weir_stat(pool, "/none", 0, &stat), -ENOENT);
    EQUAL(weir_stat(pool, "/d", 0, NULL), -EINVAL);

    make(pool, "/d/a", "alpha");
    EQUAL(weir_rmdir(pool, "/d"), -ENOTEMPTY);
    EQUAL(weir_rmdir(pool, "/d/a"), -ENOTDIR);
    EQUAL(weir_unlink(pool, "/d"), -EISDIR);
    EQUAL(weir_unlink(pool, "/d/none"), -ENOENT);
    EQUAL(weir_stat(pool, "/d/a/b", 0, &stat), -ENOTDIR);

    EQUAL(weir_link(pool, "/d/a", "/d/b"), 0);
    EQUAL(weir_link(pool, "/d/a", "/d/b"), -EEXIST);
    EQUAL(weir_link(pool, "/d", "/e"), -EPERM);
    EQUAL(weir_stat(pool, "/d/a", 0, &stat), 0);
    EQUAL(weir_stat(pool, "/d/b", 0, &other), 0);
    EQUAL(stat.ino, other.ino);
    EQUAL(stat.nlink, 2);
    EQUAL(stat.size, 5);

    char text[16];
    EQUAL(weir_symlink(pool, "d/a", "/s"), 0);
    EQUAL(weir_symlink(pool, "d/a", "/s"), -EEXIST);
    EQUAL(weir_symlink(pool, NULL, "/t"), -EINVAL);
    EQUAL(weir_readlink(pool, "/s", text, sizeof text), 3);
    EQUAL(memcmp(text, "d/a", 3), 0);
    EQUAL(weir_readlink(pool, "/s", text, 2), 2);
    EQUAL(weir_readlink(pool, "/s", text, 0), -EINVAL);
    EQUAL(weir_readlink(pool, "/d", text, sizeof text), -EINVAL);
    EQUAL(weir_stat(pool, "/s", 0, &other), 0);
    EQUAL(other.ino, stat.ino);
    EQUAL(weir_stat(pool, "/s", WEIR_NOFOLLOW, &other), 0);
    CHECK(S_ISLNK(other.mode));
    weir_file *file = open_with(pool, "/s", O_RDONLY);
    EQUAL(weir_pread(file, text, sizeof text, 0), 5);
    EQUAL(weir_close(file), 0);
    EQUAL(weir_open(pool, "/s", O_RDWR | O_CREAT | O_EXCL, 0644, NULL, &file), -EEXIST);

    EQUAL(weir_rename(pool, "/d/b", "/c", 0), 0);
    EQUAL(weir_stat(pool, "/d/b", 0, &stat), -ENOENT);
    make(pool, "/n", "new");
    EQUAL(weir_rename(pool, "/n", "/c", WEIR_RENAME_NOREPLACE), -EEXIST);
    CHECK(strstr(weir_error_text(), "rename /n to /c: ") == weir_error_text());
    EQUAL(weir_rename(pool, "/n", "/c", WEIR_RENAME_EXCHANGE), 0);
    EQUAL(weir_stat(pool, "/c", 0, &stat), 0);
    EQUAL(stat.size, 3);
    EQUAL(weir_rename(pool, "/n", "/c", 0), 0);
    EQUAL(weir_stat(pool, "/c", 0, &stat), 0);
    EQUAL(stat.size, 5);
    EQUAL(weir_rename(pool, "/n", "/c", 0), -ENOENT);
    EQUAL(weir_rename(pool, "/c", "/n", 3), -EINVAL);
    EQUAL(weir_rename(pool, "/d", "/d/e", 0), -EINVAL);
    EQUAL(weir_rename(pool, "/c", NULL, 0), -EINVAL);

    EQUAL(weir_truncate(pool, "/c", 2), 0);
    EQUAL(weir_stat(pool, "/c", 0, &stat), 0);
    EQUAL(stat.size, 2);
    EQUAL(weir_truncate(pool, "/d", 2), -EISDIR);
    EQUAL(weir_truncate(pool, "/none", 2), -ENOENT);
    EQUAL(weir_truncate(pool, "/c", UINT64_MAX), -EFBIG);

    EQUAL(weir_unlink(pool, "/s"), 0);
    EQUAL(weir_unlink(pool, "/c"), 0);
    EQUAL(weir_unlink(pool, "/d/a"), 0);
    EQUAL(weir_rmdir(pool, "/d"), 0);
    EQUAL(weir_rmdir(pool, "/d"), -ENOENT);

    char name[300];
    memset(name, 'n', sizeof name);
    name[0] = '/';
    name[257] = 0;
    EQUAL(weir_mkdir(pool, name, 0755), -ENAMETOOLONG);
    name[256] = 0;
    EQUAL(weir_mkdir(pool, name, 0755), 0);
    EQUAL(weir_rmdir(pool, name), 0);
}

static void attributes(weir_pool *pool)
{
    struct weir_stat stat;
    make(pool, "/f", "x");
    EQUAL(weir_symlink(pool, "f", "/l"), 0);
    EQUAL(weir_chmod(pool, "/l", 0600), 0);
    EQUAL(weir_stat(pool, "/f", 0, &stat), 0);
    EQUAL(stat.mode & 07777, 0600);
    EQUAL(weir_chmod(pool, "/none", 0600), -ENOENT);

    EQUAL(weir_chown(pool, "/f", stat.uid, stat.gid, 0), 0);
    EQUAL(weir_chown(pool, "/l", (uid_t)-1, (gid_t)-1, WEIR_NOFOLLOW), 0);
    EQUAL(weir_chown(pool, "/l", stat.uid, stat.gid, 4), -EINVAL);

    struct timespec times[2] = {{1000000000, 5}, {-7, 999999999}};
    EQUAL(weir_utimens(pool, "/f", times, 0), 0);
    EQUAL(weir_stat(pool, "/f", 0, &stat), 0);
    EQUAL(stat.atime_ns, 1000000000000000005);
    EQUAL(stat.mtime_ns, -7000000000 + 999999999);
    times[0].tv_nsec = UTIME_OMIT;
    times[1].tv_nsec = UTIME_NOW;
    EQUAL(weir_utimens(pool, "/f", times, 0), 0);
    EQUAL(weir_stat(pool, "/f", 0, &stat), 0);
    EQUAL(stat.atime_ns, 1000000000000000005);
    CHECK(stat.mtime_ns > 1700000000000000000);
    EQUAL(weir_utimens(pool, "/f", NULL, 0), 0);
    EQUAL(weir_stat(pool, "/f", 0, &stat), 0);
    CHECK(stat.atime_ns > 1700000000000000000);
    times[0].tv_nsec = 1000000000;
    EQUAL(weir_utimens(pool, "/f", times, 0), -EINVAL);
    times[0] = (struct timespec){INT64_MAX, 0};
    EQUAL(weir_utimens(pool, "/f", times, 0), -EINVAL);

    char value[8];
    EQUAL(weir_setxattr(pool, "/f", "user.one", "1234", 4, WEIR_XATTR_CREATE), 0);
    EQUAL(weir_setxattr(pool, "/f", "user.one", "1", 1, WEIR_XATTR_CREATE), -EEXIST);
    EQUAL(weir_setxattr(pool, "/f", "user.two", "1", 1, WEIR_XATTR_REPLACE), -ENODATA);
    EQUAL(weir_setxattr(pool, "/f", "user.two", NULL, 0, 0), 0);
    EQUAL(weir_setxattr(pool, "/f", "user.two", NULL, 1, 0), -EINVAL);
    EQUAL(weir_getxattr(pool, "/f", "user.one", NULL, 0, 0), 4);
    EQUAL(weir_getxattr(pool, "/l", "user.one", value, sizeof value, 0), 4);
    EQUAL(memcmp(value, "1234", 4), 0);
    EQUAL(weir_getxattr(pool, "/f", "user.one", value, 3, 0), -ERANGE);
    EQUAL(weir_getxattr(pool, "/f", "user.none", value, 3, 0), -ENODATA);
    EQUAL(weir_getxattr(pool, "/f", NULL, value, 3, 0), -EINVAL);
    EQUAL(weir_listxattr(pool, "/f", NULL, 0, 0), 18);
    char list[18];
    EQUAL(weir_listxattr(pool, "/f", list, sizeof list, 0), 18);
    EQUAL(memcmp(list, "user.one\0user.two", 18), 0);
    EQUAL(weir_removexattr(pool, "/f", "user.one", 0), 0);
    EQUAL(weir_removexattr(pool, "/f", "user.one", 0), -ENODATA);
    EQUAL(weir_unlink(pool, "/f"), 0);
    EQUAL(weir_unlink(pool, "/l"), 0);
}

static void layouts(weir_pool *pool)
{
    weir_layout layout = {.struct_size = sizeof layout};
    EQUAL(weir_mkdir(pool, "/p", 0755), 0);
    EQUAL(weir_get_layout(pool, "/p", &layout), 0);
    EQUAL(layout.stripe_size, 0);
    EQUAL(layout.stripe_count, 0);
    layout.stripe_size = 4096;
    layout.stripe_count = WEIR_STRIPE_ALL;
    EQUAL(weir_set_layout(pool, "/p", &layout), 0);
    layout = (weir_layout){.struct_size = sizeof layout};
    EQUAL(weir_get_layout(pool, "/p", &layout), 0);
    EQUAL(layout.stripe_size, 4096);
    EQUAL(layout.stripe_count, WEIR_STRIPE_ALL);
    EQUAL(weir_close(open_with(pool, "/p/f", O_RDONLY | O_CREAT)), 0);
    EQUAL(weir_get_layout(pool, "/p/f", &layout), 0);
    EQUAL(layout.stripe_size, 4096);
    EQUAL(layout.stripe_count, 4);
    layout.stripe_count = 1;
    EQUAL(weir_set_layout(pool, "/p/f", &layout), 0);
    layout.stripe_count = 0;
    EQUAL(weir_get_layout(pool, "/p/f", &layout), 0);
    EQUAL(layout.stripe_count, 1);
    EQUAL(weir_close(open_with(pool, "/p/f", O_WRONLY)), 0);
    EQUAL(weir_set_layout(pool, "/p/f", &layout), -EBUSY);
    layout.stripe_size = 4097;
    EQUAL(weir_set_layout(pool, "/p", &layout), -EINVAL);
    EQUAL(weir_set_layout(pool, "/p", NULL), -EINVAL);
    EQUAL(weir_get_layout(pool, "/p", NULL), -EINVAL);
    EQUAL(weir_get_layout(pool, "/none", &layout), -ENOENT);
    EQUAL(weir_unlink(pool, "/p/f"), 0);
    EQUAL(weir_rmdir(pool, "/p"), 0);
}

/* More names than one answer holds. */
static void listing(weir_pool *pool)
{
    enum { COUNT = 2500 };
    char path[32];
    EQUAL(weir_mkdir(pool, "/many", 0755), 0);
    for (int i = 0; i < COUNT; i++) {
        snprintf(path, sizeof path, "/many/%05d", i);
        EQUAL(weir_symlink(pool, "x", path), 0);
    }
    weir_dir *dir = (weir_dir *)1;
    EQUAL(weir_opendir(pool, "/none", &dir), -ENOENT);
    CHECK(dir == NULL);
    EQUAL(weir_opendir(pool, "/many/00000", &dir), -ENOENT);
    EQUAL(weir_opendir(pool, "/many", NULL), -EINVAL);
    EQUAL(weir_opendir(pool, "/many", &dir), 0);
    struct weir_dirent entry;
    struct weir_stat stat;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < COUNT; i++) {
            /* With, without, and now and then with what is known of each. */
            int asked = round == 0 || (round == 2 && i % 100 == 99);
            memset(&stat, 0, sizeof stat);
            EQUAL(weir_readdir(dir, &entry, asked ? &stat : NULL), 1);
            snprintf(path, sizeof path, "%05d", i);
            EQUAL(strcmp(entry.name, path), 0);
            EQUAL(entry.name_length, 5);
            CHECK(S_ISLNK(entry.mode));
            EQUAL(stat.ino, asked ? entry.ino : 0);
            EQUAL(stat.size, asked ? 1 : 0);
        }
        EQUAL(weir_readdir(dir, &entry, NULL), 0);
        EQUAL(weir_readdir(dir, &entry, NULL), 0);
        EQUAL(weir_rewinddir(dir), 0);
    }
    EQUAL(weir_readdir(dir, NULL, NULL), -EINVAL);
    EQUAL(weir_readdir(NULL, &entry, NULL), -EINVAL);
    EQUAL(weir_rewinddir(NULL), -EINVAL);
    EQUAL(weir_closedir(dir), 0);
    EQUAL(weir_closedir(NULL), 0);
    make(pool, "/file", "");
    EQUAL(weir_opendir(pool, "/file", &dir), -ENOTDIR);
    EQUAL(weir_unlink(pool, "/file"), 0);
    for (int i = 0; i < COUNT; i++) {
        snprintf(path, sizeof path, "/many/%05d", i);
        EQUAL(weir_unlink(pool, path), 0);
    }
    EQUAL(weir_rmdir(pool, "/many"), 0);
}

int main(void)
{
    constants();
    weir_pool *pool = connect_default();
    tree(pool);
    attributes(pool);
    layouts(pool);
    listing(pool);
    EQUAL(weir_disconnect(pool), 0);
    return 0;
}
