/* patterns.c - many transfers by each rank, in one of the orders that programs have, independent or collective.
 *
 *     mpirun -n N patterns --file FILE --order sequential|random|strided --transfer BYTES [--total 64M]
 *            [--segment 0] [--sparse 1] [--collective 0] [--repeats 5] [--hint name=value,...] [--also OPTIONS]...
 *
 * sequential: one after another in a region of the rank's own; random: there in random order; strided: the ranks'
 * in turn. --segment: a transfer is made of segments through a view, the ranks' in turn, and between two
 * segments of the file --sparse - 1 remain unwritten. --total: bytes of one rank.
 * --also: a further case, in turns with the first, on a file of its own: what differs from that. */
#include "common.h"

enum { cases_max = 16, words_max = 40 };

struct pattern {
    const char *name;
    long long transfer, total, segment, sparse, count;
    int collective;
    MPI_Info info;
    long long *places;
};

/* The options of a case: `also` comes before those of the command line. */
static struct pattern pattern_of(int argc, char **argv, const char *also, int index)
{
    static char copies[cases_max][1000], names[cases_max][1000];
    char *words[words_max];
    int count = 1;
    words[0] = argv[0];
    snprintf(copies[index], sizeof copies[index], "%s", also);
    for (char *word = strtok(copies[index], " "); word && count < words_max; word = strtok(NULL, " ")) words[count++] = word;
    for (int i = 1; i < argc && count < words_max; i++) words[count++] = argv[i];
#define GET(name, otherwise) option(count, words, name, otherwise)
    const char *file = GET("file", NULL), *order = GET("order", "sequential");
    struct pattern p = {.transfer = bytes_of(GET("transfer", "1M")),
                        .total = bytes_of(GET("total", "64M")),
                        .segment = bytes_of(GET("segment", "0")),
                        .sparse = atoll(GET("sparse", "1")),
                        .collective = atoi(GET("collective", "0")),
                        .info = hints_of(GET("hint", ""))};
#undef GET
    if (!file || p.transfer <= 0 || p.transfer > 1 << 30) stop("usage: patterns --file FILE ...");
    snprintf(names[index], sizeof names[index], "%s.%d", file, index);
    p.name = names[index];
    if (p.segment) p.transfer = p.transfer / p.segment * p.segment;
    p.count = p.total / p.transfer > 0 ? p.total / p.transfer : 1;
    p.total = p.count * p.transfer;
    p.places = malloc(sizeof *p.places * (size_t)p.count);
    for (long long i = 0; i < p.count; i++) p.places[i] = i;
    uint64_t state = 88172645463325252u + (uint64_t)rank;
    if (strcmp(order, "random") == 0) shuffle(p.places, p.count, &state);
    for (long long i = 0; i < p.count; i++) {
        if (p.segment) p.places[i] *= p.transfer; /* in the view */
        else if (strcmp(order, "strided") == 0) p.places[i] = (p.places[i] * ranks + rank) * p.transfer;
        else p.places[i] = (rank * p.count + p.places[i]) * p.transfer;
    }
    return p;
}

/* Writes (or reads, and compares) all of it; gives the seconds of the transfers. */
static double run(const struct pattern *p, unsigned char *data, int turn, int reading)
{
    MPI_File file;
    /* Through a view, places are the rank's own: what it writes must tell of the rank, too. */
    long long own = p->segment ? rank * 1000003LL * 8 : 0, transfer = p->transfer;
    for (long long i = 0; i < p->count; i++) {
        if (reading) memset(data + i * transfer, 0, (size_t)transfer);
        else fill(data + i * transfer, p->places[i] + own, transfer, turn);
    }
    MUST(MPI_File_open(MPI_COMM_WORLD, p->name, MPI_MODE_CREATE | MPI_MODE_RDWR, p->info, &file));
    if (p->segment) {
        MPI_Datatype bytes, view;
        MPI_Type_contiguous((int)p->segment, MPI_BYTE, &bytes);
        MPI_Type_create_resized(bytes, 0, (MPI_Aint)(p->segment * p->sparse * ranks), &view);
        MPI_Type_commit(&view);
        MUST(MPI_File_set_view(file, rank * p->segment * p->sparse, MPI_BYTE, view, "native", p->info));
        MPI_Type_free(&bytes);
        MPI_Type_free(&view);
    }
    double t = start();
    for (long long i = 0; i < p->count; i++) {
        unsigned char *at = data + i * transfer;
        long long place = p->places[i];
        if (reading && p->collective) MUST(MPI_File_read_at_all(file, place, at, (int)transfer, MPI_BYTE, MPI_STATUS_IGNORE));
        else if (reading) MUST(MPI_File_read_at(file, place, at, (int)transfer, MPI_BYTE, MPI_STATUS_IGNORE));
        else if (p->collective) MUST(MPI_File_write_at_all(file, place, at, (int)transfer, MPI_BYTE, MPI_STATUS_IGNORE));
        else MUST(MPI_File_write_at(file, place, at, (int)transfer, MPI_BYTE, MPI_STATUS_IGNORE));
    }
    double seconds = took(t);
    MUST(MPI_File_close(&file));
    for (long long i = 0; reading && i < p->count; i++) verify(data + i * transfer, p->places[i] + own, transfer, turn, "read");
    return seconds;
}

int main(int argc, char **argv)
{
    struct pattern patterns[cases_max];
    int cases = 0, repeats;
    long long most = 0;
    begin(&argc, &argv);
    repeats = atoi(option(argc, argv, "repeats", "5"));
    patterns[cases++] = pattern_of(argc, argv, "", 0);
    for (int i = 1; i + 1 < argc; i++) {
        if (strcmp(argv[i], "--also") != 0) continue;
        if (cases == cases_max) stop("too many cases");
        patterns[cases] = pattern_of(argc, argv, argv[i + 1], cases);
        cases++;
    }
    for (int i = 0; i < cases; i++) most = patterns[i].total > most ? patterns[i].total : most;
    /* All that a rank writes, so that filling it costs no time while the clock runs. */
    unsigned char *data = malloc((size_t)most);
    long long order[cases_max];
    for (int i = 0; i < cases; i++) order[i] = i;
    for (int turn = 0; turn < repeats + 1; turn++) {
        shuffle(order, cases, &turns_state);
        for (int k = 0; k < cases; k++) {
            int i = (int)order[k];
            for (int reading = 0; reading < 2; reading++) {
                double seconds = run(&patterns[i], data, turn, reading);
                /* The first turn warms up. */
                if (turn == 0 || rank != 0) continue;
                printf("{\"bench\": \"pattern\", \"case\": %d, \"op\": \"%s\", \"ranks\": %d, \"rate\": %.0f}\n", i, reading ? "read" : "write", ranks,
                       (double)patterns[i].total * ranks / seconds);
            }
        }
    }
    for (int i = 0; i < cases; i++) {
        if (patterns[i].info != MPI_INFO_NULL) MPI_Info_free(&patterns[i].info);
        free(patterns[i].places);
    }
    free(data);
    MPI_Finalize();
    return 0;
}
