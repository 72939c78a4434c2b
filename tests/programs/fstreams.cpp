// C++'s streams in random histories: writing, reading, seeking, both ways and one way, by small pieces and large ones.
// fstreams SEED STEPS: prints what each step found.
#include <cstdint>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>

namespace {

std::uint64_t state;

unsigned below(unsigned limit)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<unsigned>(state >> 33) % limit;
}

std::string bytes()
{
    const unsigned sizes[] = {8, 500, 9000, 200000};
    std::string text(1 + below(sizes[below(4)]), '\0');
    unsigned seed = below(1000);
    for (std::size_t at = 0; at < text.size(); at++) text[at] = static_cast<char>(seed + at * 7);
    return text;
}

std::uint64_t sum(const std::string &text)
{
    std::uint64_t sum = text.size();
    for (unsigned char byte : text) sum = sum * 31 + byte;
    return sum;
}

template <typename Stream> void read_some(Stream &stream)
{
    std::string text(bytes().size(), '\0');
    stream.read(&text[0], static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<std::size_t>(stream.gcount()));
    std::cout << "read " << text.size() << ' ' << sum(text) << ' ' << stream.eof() << '\n';
    stream.clear();
}

void whole(const char *path)
{
    std::ifstream stream(path, std::ios::binary);
    std::ostringstream text;
    text << stream.rdbuf();
    std::cout << "whole " << text.str().size() << ' ' << sum(text.str()) << '\n';
}

void both_ways(unsigned steps)
{
    std::fstream stream("file", std::ios::in | std::ios::out | std::ios::trunc | std::ios::binary);
    for (unsigned step = 0; step < steps; step++) {
        switch (below(6)) {
        case 0:
        case 1: {
            std::string text = bytes();
            stream.write(text.data(), static_cast<std::streamsize>(text.size()));
            std::cout << "write " << stream.good() << ' ' << stream.tellp() << '\n';
            break;
        }
        case 2:
            stream.seekg(below(300000));
            read_some(stream);
            break;
        case 3:
            stream.seekp(below(300000));
            break;
        case 4:
            stream.seekg(0, std::ios::end);
            std::cout << "end " << stream.tellg() << '\n';
            break;
        case 5:
            stream.flush();
            whole("file");
            stream.seekg(below(1000), std::ios::cur);
            stream.clear();
            break;
        }
        stream.seekp(stream.tellp());
    }
    stream.close();
    whole("file");
}

void one_way(unsigned steps)
{
    for (unsigned round = 0; round < 3; round++) {
        auto mode = std::ios::binary | (round ? std::ios::app : std::ios::trunc);
        std::ofstream stream("file", mode);
        for (unsigned step = 0; step < steps; step++) {
            if (below(3) == 0) {
                stream << step << ' ' << below(100000) * 0.5 << std::endl;
            } else {
                std::string text = bytes();
                stream.write(text.data(), static_cast<std::streamsize>(text.size()));
            }
        }
        std::cout << "written " << stream.good() << ' ' << stream.tellp() << '\n';
        stream.close();
        std::ifstream back("file", std::ios::binary);
        for (unsigned step = 0; step < steps; step++) {
            if (below(4) == 0) back.seekg(below(500000));
            read_some(back);
        }
        std::string line;
        back.seekg(0);
        std::getline(back, line);
        std::cout << "line " << line.size() << ' ' << sum(line) << '\n';
    }
    whole("file");
}

} // namespace

int main(int count, char **words)
{
    if (count != 3) return 2;
    state = std::stoull(words[1]);
    unsigned steps = static_cast<unsigned>(std::stoul(words[2]));
    both_ways(steps);
    one_way(steps);
    return std::cout.good() ? 0 : 1;
}
