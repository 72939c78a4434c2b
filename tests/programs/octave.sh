#!/usr/bin/env bash
# Octave: variables saved and loaded in its formats, files by its own calls.
set -euo pipefail
# shellcheck source=tests/programs/lib.sh
. "$PROGRAMS/lib.sh"
octave --no-gui --norc --quiet --eval '
a = reshape(1:60000, 300, 200) / 7; s.x = {1, "two", [3 4]}; s.y = int8(5);
for f = {"-text", "-binary", "-mat7-binary", "-v6", "-hdf5", "-zip"}
  save(f{1}, "file", "a", "s"); b = load("file"); printf("%s %d %d\n", f{1}, isequal(a, b.a), isequal(s, b.s));
end
h = fopen("raw", "w+"); fwrite(h, a, "double"); fseek(h, 800, SEEK_SET); fwrite(h, pi, "double"); frewind(h);
c = fread(h, size(a), "double"); fclose(h); printf("%d %g\n", sum(c(:) != a(:)), c(101));
dlmwrite("d.csv", a(1:20, 1:5), "precision", 17); printf("%d\n", isequal(dlmread("d.csv"), a(1:20, 1:5)));
h = fopen("lines", "at"); for i = 1:1000 fprintf(h, "%d\n", i); end; fclose(h);
h = fopen("lines"); n = 0; while ischar(fgetl(h)) n++; end; fclose(h); disp(n)
mkdir("sub"); movefile("raw", "sub/raw"); copyfile("sub", "sub2"); disp(exist("sub2/raw", "file")); unlink("sub2/raw"); disp(numel(dir("sub2")))
'
