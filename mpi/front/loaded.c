/* loaded.c - finding the MPI of the process by its soname, and the back end made for it.
 *
 * A back end of another ABI is a crash, so nothing is guessed: a library counts only if its soname
 * is one that MPI implementations use for their C interface, and it defines MPI_File_open itself.
 * It may have been loaded late and with RTLD_LOCAL, which is why the symbols of the process are not
 * asked.
 */
#define _GNU_SOURCE
#include "loaded.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

atomic_long loaded_outstanding;

struct mpi {
    char soname[128];
    void *library;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct mpi mpi;         /* under the lock until found is set */
static atomic_bool found;
static _Atomic(const struct weir_mpi_back *) back;
static void *back_library;     /* set before back */
static char *trouble;          /* why there is no back end; under the lock */

/* Sonames that C libraries of MPI implementations bear, each followed by a version. */
static bool is_known(const char *soname)
{
    static const char *const known[] = {"libmpi.so.", "libmpich.so.", "libmpi_abi.so.",
                                        "libmpi_cray.so.", "libmpi_gnu.so.", "libpmpi.so."};
    for (size_t index = 0; index < sizeof known / sizeof *known; index++)
        if (strncmp(soname, known[index], strlen(known[index])) == 0)
            return true;
    return false;
}

static const char *soname_of(const struct dl_phdr_info *object)
{
    for (size_t index = 0; index < object->dlpi_phnum; index++) {
        if (object->dlpi_phdr[index].p_type != PT_DYNAMIC)
            continue;
        const ElfW(Dyn) *entry = (const void *)(object->dlpi_addr + object->dlpi_phdr[index].p_vaddr);
        uintptr_t strings = 0, name = 0;
        bool named = false;
        for (; entry->d_tag != DT_NULL; entry++) {
            if (entry->d_tag == DT_STRTAB)
                strings = entry->d_un.d_ptr;
            else if (entry->d_tag == DT_SONAME) {
                name = entry->d_un.d_val;
                named = true;
            }
        }
        if (!named || strings == 0)
            return NULL;
        /* Some loaders relocate the address in place, others leave it as it is in the file. */
        if (strings < object->dlpi_addr)
            strings += object->dlpi_addr;
        return (const char *)(strings + name);
    }
    return NULL;
}

struct candidates {
    int count;
    struct {
        char soname[128];
        char path[4096];
        uintptr_t base;
    } list[8];
};

static int collect(struct dl_phdr_info *object, size_t size, void *into)
{
    struct candidates *candidates = into;
    const char *soname = soname_of(object);
    (void)size;
    if (soname == NULL || !is_known(soname) || object->dlpi_name == NULL || candidates->count == 8)
        return 0;
    int index = candidates->count;
    if (strlen(soname) >= sizeof candidates->list[index].soname ||
        strlen(object->dlpi_name) >= sizeof candidates->list[index].path)
        return 0;
    strcpy(candidates->list[index].soname, soname);
    strcpy(candidates->list[index].path, object->dlpi_name);
    candidates->list[index].base = object->dlpi_addr;
    candidates->count++;
    return 0;
}

static bool is_initialized(void *library)
{
    int (*initialized)(int *) = (int (*)(int *))dlsym(library, "PMPI_Initialized");
    int flag = 0;
    return initialized != NULL && initialized(&flag) == 0 && flag != 0;
}

/* Finds the MPI; under the lock. Where several are loaded, the one that was initialised counts. */
static void find(void)
{
    struct candidates *candidates = calloc(1, sizeof *candidates);
    if (candidates == NULL)
        return;
    dl_iterate_phdr(collect, candidates);
    struct mpi best = {{0}, NULL};
    bool best_initialized = false;
    for (int index = 0; index < candidates->count; index++) {
        void *library = dlopen(candidates->list[index].path, RTLD_LAZY | RTLD_NOLOAD);
        if (library == NULL)
            continue;
        void *open = dlsym(library, "MPI_File_open");
        Dl_info info;
        struct link_map *map = NULL;
        /* A library that only depends on the MPI finds the function too, elsewhere. */
        bool own = open != NULL && dladdr1(open, &info, (void **)&map, RTLD_DL_LINKMAP) != 0 &&
                   map != NULL && map->l_addr == candidates->list[index].base;
        bool initialized = own && is_initialized(library);
        if (own && (best.library == NULL || (initialized && !best_initialized))) {
            strcpy(best.soname, candidates->list[index].soname);
            best.library = library;
            best_initialized = initialized;
        }
        /* The handles of the others are kept: what is loaded stays loaded anyway. */
    }
    free(candidates);
    if (best.library == NULL)
        return;
    mpi = best;
    atomic_store(&found, true);
}

static bool look(void)
{
    if (atomic_load(&found))
        return true;
    pthread_mutex_lock(&lock);
    if (!atomic_load(&found))
        find();
    pthread_mutex_unlock(&lock);
    return atomic_load(&found);
}

void *loaded_genuine(const char *name)
{
    if (look())
        return dlsym(mpi.library, name);
    /* An MPI under an unknown soname: its own calls are still handed on to it. */
    return dlsym(RTLD_NEXT, name);
}

const char *loaded_soname(void)
{
    return look() ? mpi.soname : NULL;
}

static const struct weir_mpi_front front = {WEIR_MPI_SEAM, loaded_genuine, &loaded_outstanding};

/* The directory of this library, without a slash behind it. */
static void own_directory(char *out, size_t size)
{
    Dl_info info;
    out[0] = '\0';
    if (dladdr((void *)own_directory, &info) == 0 || info.dli_fname == NULL)
        return;
    const char *slash = strrchr(info.dli_fname, '/');
    if (slash != NULL && (size_t)(slash - info.dli_fname) < size) {
        memcpy(out, info.dli_fname, slash - info.dli_fname);
        out[slash - info.dli_fname] = '\0';
    }
}

/* libweir must be there before a back end, which names it by its soname alone: in a build tree it
 * lies beside this library under another name. */
static void load_libweir(const char *directory)
{
    static const char *const names[] = {"libweir.so.0", "libweir.so"};
    char path[4200];
    for (size_t index = 0; index < 2; index++) {
        snprintf(path, sizeof path, "%s/%s", directory, names[index]);
        if (dlopen(path, RTLD_NOW | RTLD_LOCAL) != NULL)
            return;
    }
}

static const struct weir_mpi_back *try_directory(const char *directory, char *said, size_t size)
{
    char path[4400];
    snprintf(path, sizeof path, "%s/libweir_mpi-%s.so", directory, mpi.soname);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        const char *error = dlerror();
        size_t length = strlen(said);
        snprintf(said + length, size - length, "%s%s", length > 0 ? "; " : "",
                 error != NULL ? error : path);
        return NULL;
    }
    weir_mpi_begin_function *begin =
        (weir_mpi_begin_function *)dlsym(library, "weir_mpi_begin");
    const struct weir_mpi_back *got = begin != NULL ? begin(&front) : NULL;
    if (got == NULL || got->seam != WEIR_MPI_SEAM) {
        size_t length = strlen(said);
        snprintf(said + length, size - length, "%s%s is of another build", length > 0 ? "; " : "",
                 path);
        return NULL;
    }
    back_library = library;
    return got;
}

/* Where back ends may be: where the user says, beside this library, in the user's own directory
 * (which needs no leave to install). */
static const struct weir_mpi_back *find_back(char *said, size_t size)
{
    char beside[4096], own[4096] = "";
    const char *asked = getenv("WEIR_MPI_BACK"), *home = getenv("WEIR_HOME");
    own_directory(beside, sizeof beside);
    if (home != NULL && *home != '\0')
        snprintf(own, sizeof own, "%s/mpi", home);
    else if ((home = getenv("HOME")) != NULL && *home != '\0')
        snprintf(own, sizeof own, "%s/.weir/mpi", home);
    load_libweir(beside);
    const struct weir_mpi_back *got = NULL;
    if (asked != NULL && *asked != '\0')
        got = try_directory(asked, said, size);
    if (got == NULL && *beside != '\0')
        got = try_directory(beside, said, size);
    if (got == NULL && *own != '\0')
        got = try_directory(own, said, size);
    return got;
}

const struct weir_mpi_back *loaded_back_already(void)
{
    return atomic_load_explicit(&back, memory_order_acquire);
}

const struct weir_mpi_back *loaded_back(const char **why)
{
    const struct weir_mpi_back *got = loaded_back_already();
    if (got != NULL)
        return got;
    if (!look()) {
        *why = "no MPI library with a soname known to Weirpool is loaded";
        return NULL;
    }
    pthread_mutex_lock(&lock);
    got = loaded_back_already();
    if (got == NULL && trouble == NULL) {
        char said[6000] = "", whole[6400];
        got = find_back(said, sizeof said);
        if (got != NULL) {
            atomic_store_explicit(&back, got, memory_order_release);
        } else {
            snprintf(whole, sizeof whole,
                     "no back end fits the MPI that is loaded, %s (%s); 'weir doctor' says how to "
                     "build one",
                     mpi.soname, said);
            trouble = strdup(whole);
        }
    }
    *why = trouble != NULL ? trouble : "no memory";
    pthread_mutex_unlock(&lock);
    return got;
}

void *loaded_back_function(const char *call)
{
    char name[128];
    if (loaded_back_already() == NULL)
        return NULL;
    snprintf(name, sizeof name, "weir_mpi_%s", call);
    return dlsym(back_library, name);
}
