#!/usr/bin/env python3
"""Check a run of NWChem on the pool.

    check.py INPUT.nw NWCHEM_OUTPUT [WEIR_REPORT.json]

The energy must be the reference that the input names, to 1e-7 hartree. If the
report of `weir run` is given, the servers must have been asked for every byte
of the integral file in every pass that NWChem made over it: fewer means that
something else, such as the page cache, answered for them.
"""

import json
import re
import sys

ENERGY_TOLERANCE = 1e-7  # hartree


def number(text, pattern, what):
    """The last match of a pattern with one group, as a number."""
    found = re.findall(pattern, text, re.MULTILINE)
    if not found:
        raise SystemExit(f"check: {what} not found in NWChem's output")
    return float(found[-1].replace("D", "E"))


def integral_file_bytes(output):
    """A lower bound on the size of all processes' integral files together.

    Only the first process prints its file's size. The number of integrals is
    printed for all of them together, to four digits: we take the smallest
    that is printed so. Files are whole records, hence larger by a little.
    """
    count = number(output, r"#integrals = *([0-9.D+]+)", "number of integrals")
    half_last_digit = 0.5 * 10 ** (len(str(int(count))) - 4)
    # How many integrals a record holds depends on the bits of their labels.
    record_integrals = number(output, r"No\. of integs per rec *= *([0-9]+)", "integrals per record")
    record_bytes = 8 * number(output, r"Record size in doubles *= *([0-9]+)", "record size")
    return int((count - half_last_digit) / record_integrals * record_bytes)


def passes(output):
    """How often NWChem read the integral file from its beginning to its end.

    More often than there are SCF iterations, as each of them builds several
    Fock matrices. A pass begins with a read that is waited for (column `read`
    of the file's statistics) and goes on with reads ahead (`aread`), each of a
    record. Records that NWChem moved to another process's file, so that all
    are as long ("File balance"), were read once more: less than a pass.
    """
    pattern = r"aoints\.0\" size=([0-9]+) bytes\n(?:.*\n){3} *calls: +[0-9]+ +([0-9]+) +[0-9]+ +([0-9]+)"
    found = re.search(pattern, output)
    if not found:
        raise SystemExit("check: statistics of the integral file not found in NWChem's output")
    size, waited_for, ahead = map(int, found.groups())
    record_bytes = 8 * number(output, r"Record size in doubles *= *([0-9]+)", "record size")
    return int((waited_for + ahead) // (size / record_bytes))


def iterations(output):
    return int(number(output, r"^ +([0-9]+) +-[0-9]+\.[0-9]{10} +[0-9]\.[0-9]{2}D", "SCF iterations"))


def main():
    if len(sys.argv) not in (3, 4):
        raise SystemExit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        reference = number(file.read(), r"^# reference energy: (-[0-9.]+)", "reference energy")
    with open(sys.argv[2], encoding="utf-8", errors="replace") as file:
        output = file.read()

    failures = []

    def check(good, text):
        print(("  ok      " if good else "  FAILED  ") + text)
        if not good:
            failures.append(text)

    energy = number(output, r"Total SCF energy = *(-[0-9.]+)", "SCF energy")
    error = abs(energy - reference)
    check(
        error <= ENERGY_TOLERANCE,
        f"SCF energy {energy:.8f} hartree, reference {reference:.8f}, difference {error:.1e} (at most {ENERGY_TOLERANCE:g})",
    )

    # Integrals that find no room are computed anew instead of being read.
    direct = number(output, r"#direct = *([0-9.]+)%", "share of direct integrals")
    check(direct == 0, f"{direct:g} % of the integrals computed anew, the others read from the file")

    size = integral_file_bytes(output)
    pass_count = passes(output)
    needed = size * pass_count
    print(
        f"          integral file of {size / 1e9:.3f} GB, read {pass_count} times"
        f" in {iterations(output)} SCF iterations: {needed / 1e9:.1f} GB"
    )

    if len(sys.argv) == 4:
        with open(sys.argv[3], encoding="utf-8") as file:
            report = json.load(file)
        servers = report["servers"]
        read = sum(server["bytes_read"] for server in servers)
        written = sum(server["bytes_written"] for server in servers)
        check(report["exit_status"] == 0, f"exit status {report['exit_status']}")
        check(read >= needed, f"{len(servers)} servers counted {read / 1e9:.1f} GB read, {needed / 1e9:.1f} GB needed")
        check(written >= size, f"{len(servers)} servers counted {written / 1e9:.2f} GB written, {size / 1e9:.2f} GB needed")
        idle = [index for index, server in enumerate(servers) if server["bytes_read"] == 0]
        check(not idle, f"servers without a read: {idle if idle else 'none'}")
        totals = (report["totals"]["bytes_read"], report["totals"]["bytes_written"])
        check(totals == (read, written), "totals of the report are the sums over the servers")

    if failures:
        raise SystemExit(f"check: {len(failures)} of the checks failed")


if __name__ == "__main__":
    main()
