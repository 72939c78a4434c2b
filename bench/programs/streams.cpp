// Records of 4 KiB and of 1 MiB, written and read one behind the other by C's streams or by C++'s, 64 MiB each.
// streams c|c++ FILE: prints MiB/s for each; verifies every byte, outside of what is timed.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

namespace {

constexpr std::size_t TOTAL = 64 << 20;

void need(bool good, const char *what)
{
    if (good) return;
    std::perror(what);
    std::exit(1);
}

struct Clock {
    std::chrono::duration<double> spent{0};
    template <typename Work> void time(Work work)
    {
        auto begun = std::chrono::steady_clock::now();
        work();
        spent += std::chrono::steady_clock::now() - begun;
    }
    double rate() const { return TOTAL / double(1 << 20) / spent.count(); }
};

void fill(std::string &record, std::size_t at)
{
    std::memset(&record[0], static_cast<int>(at / record.size() * 7 + 1), record.size());
}

template <typename Move> double go_through(std::size_t size, const Move &move, bool verifies)
{
    Clock clock;
    std::string record(size, '\0'), expected(size, '\0');
    for (std::size_t at = 0; at < TOTAL; at += size) {
        fill(expected, at);
        if (!verifies) record = expected;
        clock.time([&] { move(record); });
        need(record == expected, "wrong bytes");
    }
    clock.time([&] { move.end(); });
    return clock.rate();
}

struct C {
    FILE *stream;
    bool writes;
    void operator()(std::string &record) const
    {
        std::size_t done = writes ? fwrite(record.data(), record.size(), 1, stream)
                                  : fread(&record[0], record.size(), 1, stream);
        need(done == 1, "stream");
    }
    void end() const { need(fclose(stream) == 0, "fclose"); }
};

template <typename Stream> struct Cpp {
    Stream &stream;
    void operator()(std::string &record) const
    {
        auto size = static_cast<std::streamsize>(record.size());
        if constexpr (std::is_same<Stream, std::ofstream>::value) stream.write(record.data(), size);
        else stream.read(&record[0], size);
        need(stream.good(), "fstream");
    }
    void end() const { stream.close(); }
};

FILE *open(const char *path, const char *mode)
{
    FILE *stream = fopen(path, mode);
    need(stream != nullptr, path);
    return stream;
}

} // namespace

int main(int count, char **words)
{
    if (count != 3) return 2;
    bool is_c = std::strcmp(words[1], "c") == 0;
    const char *path = words[2];
    for (int turn = 0; turn < 2; turn++) {
        for (std::size_t size : {std::size_t(4) << 10, std::size_t(1) << 20}) {
            double written, read;
            if (is_c) {
                written = go_through(size, C{open(path, "w"), true}, false);
                read = go_through(size, C{open(path, "r"), false}, true);
            } else {
                std::ofstream out(path, std::ios::binary);
                written = go_through(size, Cpp<std::ofstream>{out}, false);
                std::ifstream in(path, std::ios::binary);
                read = go_through(size, Cpp<std::ifstream>{in}, true);
            }
            // The first turn warms up: memory of the servers, connections.
            if (turn == 0) continue;
            const char *label = size < (1 << 20) ? "4 KiB" : "1 MiB";
            std::printf("%s %s\t%f\n", is_c ? "fwrite" : "ofstream", label, written);
            std::printf("%s %s\t%f\n", is_c ? "fread" : "ifstream", label, read);
        }
    }
}
