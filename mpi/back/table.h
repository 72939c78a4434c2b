/* table.h - from handles to what is ours. */
#ifndef WEIR_MPI_TABLE_H
#define WEIR_MPI_TABLE_H

#include "back.h"

#include <pthread.h>

/* Open addressing, never more than half full. Zeros are an empty one. */
struct table {
    struct slot {
        weir_word key; /* 0: empty */
        void *value;
    } *slots;
    size_t size; /* a power of two, or 0 */
    atomic_size_t count;
    pthread_rwlock_t lock;
};

#define TABLE_EMPTY {NULL, 0, 0, PTHREAD_RWLOCK_INITIALIZER}

/* False: no memory. A key must not be there yet. */
bool table_add(struct table *table, weir_word key, void *value);
void *table_find(struct table *table, weir_word key);
void *table_remove(struct table *table, weir_word key);

#endif
