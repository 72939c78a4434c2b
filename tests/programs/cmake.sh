#!/usr/bin/env bash
# CMake with Ninja and with make: configured, built, built again, changed, installed.
set -euo pipefail
# shellcheck source=tests/programs/lib.sh
. "$PROGRAMS/lib.sh"
mkdir -p src
for ((index = 0; index < 24; index++)); do
    echo "int f$index(void) { return $index; }" >"src/f$index.c"
done
{
    for ((index = 0; index < 24; index++)); do echo "int f$index(void);"; done
    echo '#include <stdio.h>'
    echo 'int main(void) { int sum = 0;'
    for ((index = 0; index < 24; index++)); do echo "sum += f$index();"; done
    printf '%s\n' 'printf("%d\n", sum); return 0; }'
} >src/main.c
cat >src/CMakeLists.txt <<'C'
cmake_minimum_required(VERSION 3.18)
project(p C)
file(GLOB parts CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/f*.c)
add_library(parts STATIC ${parts})
add_executable(p main.c)
target_link_libraries(p parts)
configure_file(in.h.in in.h)
install(TARGETS p DESTINATION bin)
enable_testing()
add_test(NAME runs COMMAND p)
C
echo '#define X @PROJECT_NAME@' >src/in.h.in
for generator in Ninja 'Unix Makefiles'; do
    rm -rf build
    cmake -S src -B build -G "$generator" -DCMAKE_INSTALL_PREFIX="$PWD/out" >said || { tail said >&2; fail "cmake $generator"; }
    cmake --build build -j 3 >said
    build/p
    cmake --build build -j 3 | tail -1 | sed 's/.*\(no work to do\|Built target p\).*/\1/'
    sed -i 's/return 3;/return 103;/' src/f3.c
    cmake --build build -j 3 >said
    build/p
    sed -i 's/return 103;/return 3;/' src/f3.c
    echo 'int f99(void) { return 0; }' >src/f99.c
    cmake --build build -j 3 >said
    rm src/f99.c
    (cd build && ctest 2>&1 | grep 'tests passed')
    cmake --install build >/dev/null
    out/bin/p
done
