#!/usr/bin/env bash
# A small project: make -j, gcc, ar, a shared library, and what it made is run from here.
set -euo pipefail
# shellcheck source=tests/programs/lib.sh
. "$PROGRAMS/lib.sh"

mkdir -p src include
for ((index = 0; index < 12; index++)); do
    cat >"src/part$index.c" <<C
#include "parts.h"
#include <string.h>
int part$index(int x) { char text[] = "part$index"; return x + (int)strlen(text) * $index; }
C
done
{
    echo '#ifndef PARTS_H'
    echo '#define PARTS_H'
    for ((index = 0; index < 12; index++)); do echo "int part$index(int);"; done
    echo 'int shared(const char *);'
    echo '#endif'
} >include/parts.h
{
    echo '#include "parts.h"'
    echo '#include <stdio.h>'
    echo 'int main(int count, char **words) { (void)count; int x = 0;'
    for ((index = 0; index < 12; index++)); do echo "x = part$index(x);"; done
    # shellcheck disable=SC2028 # for C to expand
    echo 'printf("%d %d\n", x, shared(words[0])); return 3; }'
} >src/main.c
cat >src/shared.c <<'C'
#include "parts.h"
#include <stdio.h>
int shared(const char *path) {
    FILE *file = fopen(path, "rb");
    int first = file == 0 ? -1 : fgetc(file);
    if (file != 0) fclose(file);
    return first;
}
C
cat >Makefile <<'M'
CFLAGS = -O1 -g -Wall -Werror -Iinclude -MMD
PARTS := $(patsubst src/%.c,build/%.o,$(wildcard src/part*.c))
all: program static
program: build/main.o build/libparts.a build/libshared.so
	$(CC) -o $@ build/main.o -Lbuild -lparts -lshared -Wl,-rpath,'$$ORIGIN/build'
static: build/main.o build/libparts.a build/shared.o
	$(CC) -static -o $@ $^ -Lbuild -lparts
build/libparts.a: $(PARTS)
	$(AR) rcs $@ $^
build/libshared.so: src/shared.c
	$(CC) $(CFLAGS) -shared -fPIC -o $@ $<
build/%.o: src/%.c | build
	$(CC) $(CFLAGS) -c -o $@ $<
build/libshared.so: | build
build:
	mkdir -p $@
clean:
	rm -rf build program static
-include $(wildcard build/*.d)
.PHONY: all clean
M
make -s -j4
./program || echo "status $?"
./static || echo "status $?"
echo "nothing to do"
make -q && echo "up to date"
echo "what is touched is made again"
sleep 0.01
touch src/part3.c
! make -q || fail "make sees no newer file"
make -n | grep -c part3.c
make -s -j4 && make -q && ./program || echo "status $?"
sleep 0.01
touch include/parts.h
make -n | grep -c '\.c$'
# One may replace what runs; not write to it.
cat >wait.c <<'C'
#include <stdio.h>
int main(void) { puts("runs"); fflush(stdout); return getchar() == 'x' ? 0 : 1; }
C
gcc -o running wait.c
mkfifo go
./running <go >started &
job=$!
exec 3>go
soon test -s started
rm running && gcc -o running wait.c
printf x >&3
exec 3>&-
wait $job && echo "ran to its end"
objdump -d program | grep -c '>:$' | { read -r count; ((count > 10)) || fail "objdump"; }
strip -o stripped program && cp -a build "$TMPDIR/" && ./stripped || echo "status $?"
ar t build/libparts.a | sort | tr '\n' ' '
make -s clean && ls
