/* weir.h - the C interface to Weirpool, a pooled and striped scratch file store.
 *
 * Compile and link with `pkg-config --cflags --libs weir`. ISO C11; may be included from C++.
 *
 * RETURN VALUES. A function that returns int, ssize_t or a pointer count gives 0 or more on success
 * and a negated error number (-ENOENT) on failure. errno is neither set nor changed, ever. What
 * failed and why is said in words by weir_error_text().
 *
 * ERRORS that any function can return, besides those that it names:
 *   -EINVAL      an argument is NULL that must not be, or means nothing; a handle is used in a
 *                child process after fork()
 *   -EIO         a server does not answer within the connection's silence_ms; what was stored is
 *                lost because its target restarted; a bug in the library (it never aborts the
 *                program, and never lets an exception of its own pass into it)
 *   -ESTALE      this process was silent for longer than its lease (60 s) and the servers have
 *                forgotten its open files: open them again
 *   -EPROTO      a server talks nonsense
 *   -EAGAIN      a server was too busy for a whole minute
 *
 * PATHS are absolute within the pool: "/ckpt/0", or "ckpt/0" for the same. They do not contain the
 * directory under which a pool may be mounted. A path has at most 4095 bytes, a name in it 255.
 * Functions that take one return, where they apply, -ENOENT, -ENOTDIR, -EACCES, -ELOOP,
 * -ENAMETOOLONG. The last component is followed if it is a symbolic link, except where said.
 *
 * THREADS. Every function may be called from any thread at any time, on the same handles too, but
 * for this: a handle must not be used by another call during or after the one that ends it
 * (weir_disconnect, weir_close, weir_closedir, weir_op_free). There are no callbacks. A call is not
 * ended by a signal (no EINTR), is not a cancellation point, and is not safe in a signal handler.
 *
 * FORK. After fork() the child has no use of its parent's handles: every call on one returns
 * -EINVAL and does nothing. It connects anew. The parent is not disturbed. vfork() or posix_spawn()
 * followed by exec is harmless: all descriptors are close-on-exec.
 *
 * BUFFERS belong to the caller. A call uses them until it returns; an operation (weir_submit_*)
 * until it has ended, or weir_op_free() has returned. They may lie anywhere in memory, at any
 * alignment.
 *
 * CONSISTENCY. A write is visible to all clients of the pool when the call that made it returns;
 * nothing is cached or buffered in the library. Concurrent writes to one byte leave one of them.
 *
 * LOADING. The library may be opened by dlopen(); dlclose() leaves it in memory.
 *
 * VERSIONS. Structures that may grow begin with struct_size, which the caller sets to sizeof; so
 * programs compiled against an older or newer header keep working. The library's soname changes
 * when they would not.
 */
#ifndef WEIR_H
#define WEIR_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this header; weir_version() tells that of the library. */
#define WEIR_VERSION "0.1.0"

/* A connected pool. */
typedef struct weir_pool weir_pool;
/* An open regular file. It has no position: each call says where. */
typedef struct weir_file weir_file;
/* An open directory, and a position in it. */
typedef struct weir_dir weir_dir;
/* A read, write or fsync under way. */
typedef struct weir_op weir_op;

/* Do not follow a symbolic link in the last component of a path (the value of
 * AT_SYMLINK_NOFOLLOW). */
#define WEIR_NOFOLLOW 0x100
/* weir_rename: it is an error if the new name exists (the value of RENAME_NOREPLACE). */
#define WEIR_RENAME_NOREPLACE 1u
/* weir_rename: the two names change places (the value of RENAME_EXCHANGE). */
#define WEIR_RENAME_EXCHANGE 2u
/* weir_setxattr: it is an error if the attribute exists (the value of XATTR_CREATE). */
#define WEIR_XATTR_CREATE 1
/* weir_setxattr: it is an error if the attribute does not exist (the value of XATTR_REPLACE). */
#define WEIR_XATTR_REPLACE 2
/* weir_layout.stripe_count: over all targets of the pool. */
#define WEIR_STRIPE_ALL UINT32_MAX

/* How to connect. Zero in a field: the default. */
typedef struct weir_connect_options {
    size_t struct_size;     /* sizeof(weir_connect_options) */
    uint32_t connections;   /* to each server, 1 to 16; default 1 */
    uint32_t silence_ms;    /* a server that was silent for so long is lost: milliseconds, 100 to
                               3600000; default 8000 */
    uint64_t transfer_size; /* bytes of a contiguous read or write that go into one request, 4096
                               to 8388608; default 1048576 */
} weir_connect_options;

/* How a file is striped over the pool's targets, or should be. */
typedef struct weir_layout {
    size_t struct_size;    /* sizeof(weir_layout) */
    uint64_t stripe_size;  /* bytes on one target before the next: a multiple of 4096 up to 2^30;
                              0: not said */
    uint32_t stripe_count; /* targets, WEIR_STRIPE_ALL: all there are; 0: not said */
    uint32_t reserved;     /* 0 */
} weir_layout;

/* A range of bytes of a file. */
typedef struct weir_extent {
    uint64_t offset; /* first byte */
    uint64_t length; /* how many; may be 0 */
} weir_extent;

/* What is known of a file, directory or symbolic link. */
struct weir_stat {
    uint64_t ino;       /* inode number, unique in the pool, not used again */
    uint32_t mode;      /* type and permissions, as st_mode: S_ISDIR(mode) etc. apply */
    uint32_t nlink;     /* names; of a directory: 2 and one for each directory in it */
    uint32_t uid;       /* owner */
    uint32_t gid;       /* group */
    uint64_t rdev;      /* device number of a special file */
    uint64_t size;      /* bytes */
    uint64_t allocated; /* bytes of it that the pool holds: all but its holes */
    int64_t atime_ns;   /* last read, as far as somebody set it: nanoseconds since the epoch */
    int64_t mtime_ns;   /* last write: nanoseconds since the epoch */
    int64_t ctime_ns;   /* last change of the inode: nanoseconds since the epoch */
    uint64_t reserved[4];
};

/* A name in a directory. */
struct weir_dirent {
    uint64_t ino;         /* inode number */
    uint32_t mode;        /* the type bits of st_mode: S_ISDIR(mode) etc. apply */
    uint32_t name_length; /* bytes of name, without the NUL */
    char name[256];       /* ended by a NUL */
};

/* How full a pool is. */
struct weir_statfs {
    uint64_t capacity;          /* bytes that files can hold in all */
    uint64_t used;              /* bytes of these in use */
    uint64_t inodes;            /* files, directories and symbolic links there are */
    uint64_t metadata_capacity; /* memory for names and attributes: bytes */
    uint64_t metadata_used;     /* bytes of these in use */
    uint32_t servers;           /* servers of the pool */
    uint32_t targets;           /* targets of the pool */
    uint64_t reserved[4];
};

/* ---- the library ------------------------------------------------------------------------- */

/* Version of the library, "major.minor.patch". The string is constant. Does not fail. */
const char *weir_version(void);

/* The story of the calling thread's last call that failed: "operation object: cause; consequence".
 * "" if none has failed yet. Never NULL. The string is valid until the next call of the library in
 * this thread that fails, or the thread's end; calls that succeed leave it alone. The failure of an
 * operation is told to the thread that gets its result from weir_poll() or weir_wait(). */
const char *weir_error_text(void);

/* ---- pools ------------------------------------------------------------------------------- */

/* Connects to a pool.
 *
 * pool     A directory (anything with a slash in it) that holds the pool's pool.json and secret, as
 *          `weir up` and `weir run` make it; or a pool's name, for the directory $WEIR_HOME/pools/
 *          NAME, or ~/.weir/pools/NAME where WEIR_HOME is not set. NULL: what the environment
 *          variable WEIR_POOL says; `weir run` sets it for the program that it runs.
 * options  NULL for the defaults.
 * out      Receives the pool; NULL on failure. To be ended by weir_disconnect().
 *
 * Whoever can read the secret is the pool's owner: files are made, and permissions checked, as his,
 * whatever the process's user. One thread is started, which keeps the lease of the process's open
 * files while nothing else is called; connections are made when they are first needed.
 *
 * Errors: -ENOENT no such pool, or WEIR_POOL is wanted and not set; -EACCES the secret cannot be
 * read, or is not this pool's; -EINVAL malformed pool.json or secret, option out of range; -E2BIG
 * options has fields that are set and that this library does not know; -EIO no server answers;
 * -ENXIO the servers belong to no pool yet; -EPROTONOSUPPORT the servers are of another version. */
int weir_connect(const char *pool, const weir_connect_options *options, weir_pool **out);

/* Ends a pool's handle; NULL is allowed and does nothing. Files, directories and operations that
 * are still open stay usable; connections and thread end with the last of them. Returns 0. */
int weir_disconnect(weir_pool *pool);

/* How full the pool is, into *out. Asks all servers. */
int weir_statfs(weir_pool *pool, struct weir_statfs *out);

/* Describes the pool as JSON text: name, epoch, stripe_size, stripe_count, and of each of its
 * servers the address and the targets with id and memory in bytes. Nobody is asked. As snprintf()
 * does, writes at most size bytes into buffer, a NUL in any case if size is not 0, and returns the
 * length of the whole text without NUL. buffer may be NULL if size is 0. */
ssize_t weir_describe(weir_pool *pool, char *buffer, size_t size);

/* ---- open files -------------------------------------------------------------------------- */

/* Opens a regular file, and makes it if it is wanted.
 *
 * flags   One of O_RDONLY, O_WRONLY, O_RDWR of fcntl.h, and any of
 *           O_CREAT   made if there is none
 *           O_EXCL    with O_CREAT: -EEXIST if the name exists, a symbolic link too
 *           O_TRUNC   cut to nothing (only if opened for writing)
 *           O_APPEND  weir_pwrite() and weir_submit_write() write at the file's end, whatever
 *                     offset they are given, and no two appends overlap, whoever makes them;
 *                     list writes are refused with -EINVAL
 *           O_CLOEXEC, O_NOCTTY, O_DIRECT: without effect here
 *         Any other is refused with -EINVAL.
 * mode    Permission bits (07777) of a file that is made. The process's umask is not applied.
 * layout  How a file that is made is striped; NULL, or 0 in a field: as its directory says, or else
 *         the pool. A file that exists keeps its layout.
 * out     Receives the file; NULL on failure. To be ended by weir_close().
 *
 * Errors: -EEXIST; -EISDIR a directory; -EACCES; -ENOSPC no room for metadata; -EINVAL. */
int weir_open(weir_pool *pool, const char *path, int flags, mode_t mode,
              const weir_layout *layout, weir_file **out);

/* Ends a file's handle, and settles the file's size and times; NULL is allowed and does nothing.
 * The handle is gone whatever is returned, but for -EBUSY: operations on the file are under way;
 * wait for them or free them, then close again. All that was written is visible long since: a
 * failure here loses no data. */
int weir_close(weir_file *file);

/* Reads length bytes at offset into buffer. Gives the number of bytes read: less than length only
 * where the file ends (0: at or behind its end); what of buffer lies behind them is left as it was.
 * Holes read as zeros. After a failure the whole buffer is undefined.
 *
 * Errors: -EBADF not open for reading; -EFBIG offset + length is beyond what a file can have;
 * -EIO see above: zeros are never given in place of what is lost. */
ssize_t weir_pread(weir_file *file, void *buffer, size_t length, uint64_t offset);

/* Writes length bytes of buffer at offset (at the end with O_APPEND). Gives length: there are no
 * short writes. After a failure, part of the bytes may have been stored.
 *
 * Errors: -EBADF not open for writing; -EFBIG; -ENOSPC the pool is full: everything that was stored
 * before stays readable; -EIO. */
ssize_t weir_pwrite(weir_file *file, const void *buffer, size_t length, uint64_t offset);

/* Writes length bytes of buffer at the file's end, which is found and reserved in one step: no two
 * appends overlap, whoever makes them. Gives length, and in *offset, unless it is NULL, where they
 * lie. The file need not be open with O_APPEND. Errors as weir_pwrite(). */
ssize_t weir_append(weir_file *file, const void *buffer, size_t length, uint64_t *offset);

/* Reads the extents of the file, one behind the other, into the memory that iov names, one piece
 * behind the other. The two are cut independently but must be of the same length in all. Each target
 * is asked once, whatever the number of extents (more often above 16384 extents or 8 MiB on one
 * target). The numbers of extents and of pieces of memory are not limited.
 *
 * Gives the number of bytes that lie before the file's end; memory that belongs to
 * what lies behind it is left as it was, or becomes zeros unless extents ascend without overlapping.
 * Pieces of memory must not overlap; extents may.
 *
 * Errors: as weir_pread(); -EINVAL the lengths differ. */
ssize_t weir_readv_list(weir_file *file, const weir_extent *extents, size_t extent_count,
                        const struct iovec *iov, size_t iov_count);

/* Writes memory into extents of the file, as weir_readv_list() reads them. Where extents overlap,
 * the later one counts. Gives the number of bytes. Errors: as weir_pwrite(); -EINVAL the lengths
 * differ, or the file was opened with O_APPEND. */
ssize_t weir_writev_list(weir_file *file, const weir_extent *extents, size_t extent_count,
                         const struct iovec *iov, size_t iov_count);

/* Makes what was written before safe, as far as the kind of pool promises it (a scratch pool: as
 * long as its servers live). Fails with -EIO if any of it was lost. */
int weir_fsync(weir_file *file);

/* Sets the file's size in bytes. What is cut off is gone; what is added reads as zeros.
 * Errors: -EINVAL not open for writing; -EFBIG. */
int weir_ftruncate(weir_file *file, uint64_t size);

/* What is known of an open file, into *out. Size and times are true at the time of asking. */
int weir_fstat(weir_file *file, struct weir_stat *out);

/* The file's own layout, into *out (whose struct_size must be set). Nobody is asked. */
int weir_flayout(weir_file *file, weir_layout *out);

/* ---- open files of several processes ------------------------------------------------------ */

/* Lends an open file to other processes that are connected to the same pool: with what is written
 * into buffer, weir_borrow() there gives the same open file without anybody being asked, so that a
 * parallel program opens a file with one request, however many processes it has.
 *
 * Gives the number of bytes, some hundreds; with size 0 only that, and buffer may be NULL. Who has the
 * bytes can read and write the file, as far as it is open for that: they are to be kept as the secret
 * is. They are good while the lender has the file open, for five minutes at least.
 *
 * The lender closes last: what a borrower then does with the file fails. Errors: -ERANGE more than
 * size bytes. */
ssize_t weir_lend(weir_file *file, void *buffer, size_t size);

/* The file that another process has lent, from the size bytes at loan. out: receives it, NULL on
 * failure; to be ended by weir_close(). Reading and writing need nobody else but the file's targets.
 * What else needs leave of the metadata service (weir_append(), weir_ftruncate(), weir_lock(),
 * weir_lend(); and reading and writing once the loan's time is over) opens the file once more, by
 * itself.
 * Errors: -EINVAL the bytes are no loan; -EXDEV of another pool. */
int weir_borrow(weir_pool *pool, const void *loan, size_t size, weir_file **out);

/* Adds to a counter and gives what it was before in *before (unless that is NULL), in one step,
 * whoever else does so. An open file has counters of its own, each at 0 to begin with; who borrows the
 * file has the same ones, and they end with the lender's weir_close(). Up to 8 numbers are in use at
 * once: a larger one drives out the smallest, which then fails with -EINVAL. Errors: -EBADF the
 * lender has closed the file. */
int weir_counter_add(weir_file *file, uint32_t number, uint64_t add, uint64_t *before);

/* Locks a range of bytes against all other open files, exclusively or against exclusive locks alone,
 * and waits for it as long as it takes. The locks of one open file do not see each other: a newer one
 * replaces what it covers of older ones. Locks only meet other locks (weir_lock(), and fcntl() through
 * a mount); nothing keeps others from reading and writing. They end with weir_unlock(), weir_close(),
 * or the process. Errors: -EINVAL no such range; -EDEADLK its holder waits for a lock of this one;
 * -ENOLCK too many. */
int weir_lock(weir_file *file, uint64_t offset, uint64_t length, int exclusive);

/* Gives back what is locked in a range. */
int weir_unlock(weir_file *file, uint64_t offset, uint64_t length);

/* ---- operations: I/O that overlaps with other I/O and with computing --------------------- */

/* Begins what weir_pread() does, and returns without waiting for its end. The request is on its way
 * when the call returns, as far as the connection took it.
 *
 * There is no thread behind it: an operation goes on while any thread is inside a call on the same
 * pool, and at the servers and in the kernel's buffers always. A program that computes for long
 * between calls gains by calling weir_poll() now and then where it moves more than a few MiB.
 *
 * out receives the operation; NULL on failure. To be ended by weir_op_free(). The buffer is the
 * operation's until it has ended or was freed. Any number may be under way; 64 on one connection are
 * at the server at once, up to 16384 more wait for it, and beyond those they end with -E2BIG.
 * Operations under way together happen in any order.
 *
 * Errors of the call itself: -EINVAL. All others are the operation's result. */
int weir_submit_read(weir_file *file, void *buffer, size_t length, uint64_t offset, weir_op **out);

/* Begins what weir_pwrite() does, as weir_submit_read() does. */
int weir_submit_write(weir_file *file, const void *buffer, size_t length, uint64_t offset,
                      weir_op **out);

/* Begins what weir_readv_list() does, as weir_submit_read() does. The arrays extents and iov are
 * copied; the memory that iov names is not. */
int weir_submit_readv_list(weir_file *file, const weir_extent *extents, size_t extent_count,
                           const struct iovec *iov, size_t iov_count, weir_op **out);

/* Begins what weir_writev_list() does, as weir_submit_readv_list() does. */
int weir_submit_writev_list(weir_file *file, const weir_extent *extents, size_t extent_count,
                            const struct iovec *iov, size_t iov_count, weir_op **out);

/* Begins what weir_fsync() does, as weir_submit_read() does. It covers writes that had ended when it
 * was submitted, not those still under way. */
int weir_submit_fsync(weir_file *file, weir_op **out);

/* Moves on what is under way, without waiting, and tells whether the operation has ended: 1 if so,
 * with its result (what the plain call would have returned: bytes, or a negated error number) in
 * *result unless that is NULL; 0 if not. An operation that has ended can be asked again. */
int weir_poll(weir_op *op, ssize_t *result);

/* As weir_poll(), but waits for the end of the operation, up to timeout_ms milliseconds (negative:
 * without limit): 1 if it has ended, 0 if not. */
int weir_wait(weir_op *op, int timeout_ms, ssize_t *result);

/* Waits for the end of any one of count operations, up to timeout_ms milliseconds (negative: without
 * limit). Gives the index of the first in the array that has ended; weir_poll() tells its result.
 * Entries that are NULL are passed over. Errors: -ETIMEDOUT none has ended; -EINVAL there is none, or
 * they are not all of one pool. */
ssize_t weir_wait_any(weir_op *const *ops, size_t count, int timeout_ms);

/* Frees an operation; NULL is allowed and does nothing. One that is under way is cancelled: its
 * buffer is not touched any more when the call returns, and a write may have been carried out, wholly
 * or in part, or not. Other operations are not disturbed. */
void weir_op_free(weir_op *op);

/* ---- names ------------------------------------------------------------------------------- */

/* What is known of what a path names, into *out. flags: 0 or WEIR_NOFOLLOW. */
int weir_stat(weir_pool *pool, const char *path, int flags, struct weir_stat *out);

/* Sets a file's size by its path, as weir_ftruncate() does. Errors: -EISDIR, -EACCES, -EFBIG. */
int weir_truncate(weir_pool *pool, const char *path, uint64_t size);

/* Makes a directory, with these permission bits (07777); the umask is not applied.
 * Errors: -EEXIST, -ENOSPC. */
int weir_mkdir(weir_pool *pool, const char *path, mode_t mode);

/* Removes an empty directory. Errors: -ENOTEMPTY, -ENOTDIR, -EBUSY or -EINVAL for the root. */
int weir_rmdir(weir_pool *pool, const char *path);

/* Removes a name of what is not a directory; a symbolic link itself, not what it names. A file that
 * is open stays usable until it is closed. Errors: -EISDIR. */
int weir_unlink(weir_pool *pool, const char *path);

/* Moves a name, in one step: others see the old name or the new one, never both or none. What the
 * new name named is replaced, if it is of the same kind (a directory: if it is empty).
 * flags: 0, WEIR_RENAME_NOREPLACE or WEIR_RENAME_EXCHANGE. Symbolic links are not followed.
 * Errors: -EEXIST with NOREPLACE; -EISDIR, -ENOTDIR, -ENOTEMPTY; -EINVAL a directory into itself. */
int weir_rename(weir_pool *pool, const char *from, const char *to, unsigned flags);

/* Gives what path names (a symbolic link itself) a further name. Errors: -EEXIST; -EPERM for a
 * directory; -EMLINK. */
int weir_link(weir_pool *pool, const char *path, const char *new_path);

/* Makes a symbolic link at path with this text, 1 to 4095 bytes, which is not looked at.
 * Errors: -EEXIST. */
int weir_symlink(weir_pool *pool, const char *text, const char *path);

/* A symbolic link's text into buffer, without a NUL. Gives the number of bytes: size at most, the
 * rest is cut off. Errors: -EINVAL not a symbolic link, or size is 0. */
ssize_t weir_readlink(weir_pool *pool, const char *path, char *buffer, size_t size);

/* Sets permission bits (07777). Errors: -EPERM. */
int weir_chmod(weir_pool *pool, const char *path, mode_t mode);

/* Sets owner and group; (uid_t)-1 and (gid_t)-1 leave theirs as they are. flags: 0 or WEIR_NOFOLLOW.
 * Errors: -EPERM. */
int weir_chown(weir_pool *pool, const char *path, uid_t uid, gid_t gid, int flags);

/* Sets times of last read (times[0]) and last write (times[1]); UTIME_NOW and UTIME_OMIT as for
 * utimensat(), NULL for both now, by the server's clock. flags: 0 or WEIR_NOFOLLOW.
 * Errors: -EPERM; -EINVAL tv_nsec out of range. */
int weir_utimens(weir_pool *pool, const char *path, const struct timespec times[2], int flags);

/* ---- layouts ----------------------------------------------------------------------------- */

/* The layout of a file, or what a directory wishes for files that are made in it (0: not said),
 * into *out (whose struct_size must be set). */
int weir_get_layout(weir_pool *pool, const char *path, weir_layout *out);

/* Sets what a directory wishes for files that are made in it from now on, or the layout of a file
 * that was never opened for writing (to say it when a file is made is simpler: see weir_open()).
 * Errors: -EINVAL stripe size out of range; -EBUSY the file was opened for writing. */
int weir_set_layout(weir_pool *pool, const char *path, const weir_layout *layout);

/* ---- directories ------------------------------------------------------------------------- */

/* Opens a directory, to read names from its beginning. out: receives it, NULL on failure; to be ended
 * by weir_closedir(). Errors: -ENOTDIR. */
int weir_opendir(weir_pool *pool, const char *path, weir_dir **out);

/* The next name, into *entry: 1, or 0 behind the last. Names come in the order of their bytes,
 * without "." and "..". Names made or removed since weir_opendir() may be seen or not; all others are
 * seen exactly once. stat: unless NULL, receives what is known of the entry, as weir_stat() with
 * WEIR_NOFOLLOW; many come in one request if the first call asks for it. Threads that read from one
 * handle get different names. */
int weir_readdir(weir_dir *dir, struct weir_dirent *entry, struct weir_stat *stat);

/* Goes back to the beginning. */
int weir_rewinddir(weir_dir *dir);

/* Ends a directory's handle; NULL is allowed and does nothing. Returns 0. */
int weir_closedir(weir_dir *dir);

/* ---- extended attributes ----------------------------------------------------------------- */

/* An attribute's value into buffer. Gives its length; with size 0 only that, and buffer may be NULL.
 * flags (of all four): 0 or WEIR_NOFOLLOW. Errors: -ENODATA no such attribute; -ERANGE it is longer
 * than size. */
ssize_t weir_getxattr(weir_pool *pool, const char *path, const char *name, void *buffer, size_t size,
                      int flags);

/* Sets an attribute to size bytes at value, at most 65536. flags: WEIR_NOFOLLOW, WEIR_XATTR_CREATE,
 * WEIR_XATTR_REPLACE. Errors: -EEXIST, -ENODATA; -ENOSPC; -E2BIG, -EINVAL or -ERANGE too long;
 * -EOPNOTSUPP no attributes of this name here. */
int weir_setxattr(weir_pool *pool, const char *path, const char *name, const void *value, size_t size,
                  int flags);

/* The names of all attributes into buffer, each ended by a NUL. Returns as weir_getxattr(). */
ssize_t weir_listxattr(weir_pool *pool, const char *path, char *buffer, size_t size, int flags);

/* Removes an attribute. Errors: -ENODATA. */
int weir_removexattr(weir_pool *pool, const char *path, const char *name, int flags);

#ifdef __cplusplus
}
#endif

#endif
