#include "table.h"

#include <stdlib.h>

static size_t place(const struct table *table, weir_word key)
{
    /* Handles are addresses or small numbers: multiply, and take the upper bits. */
    uint64_t mixed = (uint64_t)key * UINT64_C(0x9e3779b97f4a7c15);
    size_t at = (size_t)(mixed >> 32) & (table->size - 1);
    while (table->slots[at].key != 0 && table->slots[at].key != key)
        at = (at + 1) & (table->size - 1);
    return at;
}

static bool grow(struct table *table)
{
    struct table larger = {.size = table->size > 0 ? 2 * table->size : 64};
    larger.slots = calloc(larger.size, sizeof *larger.slots);
    if (larger.slots == NULL)
        return false;
    for (size_t at = 0; at < table->size; at++)
        if (table->slots[at].key != 0)
            larger.slots[place(&larger, table->slots[at].key)] = table->slots[at];
    free(table->slots);
    table->slots = larger.slots;
    table->size = larger.size;
    return true;
}

bool table_add(struct table *table, weir_word key, void *value)
{
    pthread_rwlock_wrlock(&table->lock);
    bool room = 2 * (atomic_load(&table->count) + 1) <= table->size || grow(table);
    if (room) {
        table->slots[place(table, key)] = (struct slot){key, value};
        atomic_fetch_add(&table->count, 1);
    }
    pthread_rwlock_unlock(&table->lock);
    return room;
}

void *table_find(struct table *table, weir_word key)
{
    if (atomic_load_explicit(&table->count, memory_order_acquire) == 0 || key == 0)
        return NULL;
    pthread_rwlock_rdlock(&table->lock);
    void *value = table->size > 0 ? table->slots[place(table, key)].value : NULL;
    pthread_rwlock_unlock(&table->lock);
    return value;
}

void *table_remove(struct table *table, weir_word key)
{
    void *value = NULL;
    pthread_rwlock_wrlock(&table->lock);
    size_t at = table->size > 0 && key != 0 ? place(table, key) : 0;
    if (table->size > 0 && key != 0 && table->slots[at].key == key) {
        value = table->slots[at].value;
        table->slots[at] = (struct slot){0, NULL};
        atomic_fetch_sub(&table->count, 1);
        /* Those behind it that would not be found any more move up. */
        size_t next = at;
        while (table->slots[next = (next + 1) & (table->size - 1)].key != 0) {
            struct slot moved = table->slots[next];
            table->slots[next] = (struct slot){0, NULL};
            table->slots[place(table, moved.key)] = moved;
        }
    }
    pthread_rwlock_unlock(&table->lock);
    return value;
}
