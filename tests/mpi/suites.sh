# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034  # what tests/mpi.sh sets and reads
# Other people's tests of MPI-IO and of libraries on it, on pools: those of ROMIO and MPICH, of HDF5 (testpar),
# of NetCDF, of PnetCDF, of mpi4py and of h5py, from Debian's source packages, PyPI, and what is installed. To be
# sourced by tests/mpi.sh, whose functions and variables it uses. docs/mpi.md says what does not apply.

suites=$PWD/target/mpi/suites
packages_suites=(dpkg-dev m4 python3-pytest python3-pytest-mpi)

# Source packages without a word in the machine's own configuration of apt.
suites_fetch() {
    need_packages "${packages_suites[@]}"
    mkdir -p "$suites/apt/lists/partial" "$suites/apt/cache/archives/partial" "$suites/src"
    # Named after what is there, as more may be wanted than once was.
    local complete=$suites/src/.complete-mpich-hdf5-netcdf-pnetcdf
    if [[ ! -e $complete ]]; then
        local file package
        : >"$suites/apt/sources.list"
        rm -rf "$suites/apt/parts" && mkdir "$suites/apt/parts"
        for file in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
            grep -qE 'debian|ubuntu' "$file" 2>/dev/null || continue
            case $file in
            *.sources) sed 's/^Types:.*/Types: deb-src/' "$file" >"$suites/apt/parts/${file##*/}" ;;
            *.list) sed -n 's/^deb /deb-src /p' "$file" >>"$suites/apt/sources.list" ;;
            esac
        done
        cat >"$suites/apt/apt.conf" <<EOF
Dir::Etc::SourceList "$suites/apt/sources.list";
Dir::Etc::SourceParts "$suites/apt/parts";
Dir::State::Lists "$suites/apt/lists";
Dir::Cache "$suites/apt/cache";
APT::Sandbox::User "root";
EOF
        export APT_CONFIG=$suites/apt/apt.conf
        say "fetching the sources of mpich, hdf5, netcdf, pnetcdf and mpi4py, into target/mpi/suites"
        run_limited 120 apt-get -qq update || die "apt-get update failed"
        for package in mpich hdf5 netcdf pnetcdf; do
            (cd "$suites/src" && run_limited 120 apt-get -qq source "$package" >/dev/null) ||
                say "no source package $package: its tests are left out"
        done
        unset APT_CONFIG
        for package in 3.1.4 4.1.2; do
            if run_limited 90 python3 -m pip download -q --no-deps --no-binary mpi4py -d "$suites/src" "mpi4py==$package"; then
                tar -xzf "$suites/src/mpi4py-$package.tar.gz" -C "$suites/src"
            else
                say "no sources of mpi4py $package"
            fi
        done
        touch "$complete"
    fi
    mpich_source=$(compgen -G "$suites/src/mpich-*/test/mpi" | head -n 1 || true)
    romio_source=$(compgen -G "$suites/src/mpich-*/src/mpi/romio/test" | head -n 1 || true)
    hdf5_source=$(compgen -G "$suites/src/hdf5-*/testpar" | head -n 1 || true)
    netcdf_source=$(compgen -G "$suites/src/netcdf-4*/nc_test4" | head -n 1 || true)
    netcdf_source=${netcdf_source%/nc_test4}
    pnetcdf_source=$(compgen -G "$suites/src/pnetcdf-*/test" | head -n 1 || true)
    hdf5_source=${hdf5_source%/testpar} pnetcdf_source=${pnetcdf_source%/test}
}

# compile OUT ARGUMENT...: nothing to do if it is there. What does not compile with this MPI is told of and
# left out: some tests use what MPI 3 has removed.
compile() {
    local out=$1
    shift
    [[ ! -e $out ]] || return 0
    "$mpicc" -w -g -O1 -D_GNU_SOURCE -DOMPI_OMIT_MPI1_COMPAT_DECLS=0 -DMPIO_USES_MPI_REQUEST -DMPIO_Request=MPI_Request -DMPIO_Wait=MPI_Wait -DMPIO_Test=MPI_Test -o "$out" "$@" >"$out.log" 2>&1 ||
        echo "note    $mpi: ${out#"$suites/"} does not compile: $(grep -m1 -E 'error|undefined' "$out.log" | cut -c1-120)"
}

# What their configure scripts would find out on any machine that this runs on.
suites_headers() {
    cat >"$1/mpitestconf.h" <<'EOF'
#define HAVE_STDARG_H 1
#define HAVE_STDLIB_H 1
#define HAVE_STRING_H 1
#define HAVE_STDINT_H 1
#define HAVE_INTTYPES_H 1
#define HAVE_UNISTD_H 1
#define HAVE_SYS_TIME_H 1
#define HAVE_SYS_RESOURCE_H 1
#define HAVE_SYS_STAT_H 1
#define HAVE_SYS_TYPES_H 1
#define HAVE_STRDUP 1
#define HAVE_USLEEP 1
#define HAVE_GETRUSAGE 1
#define HAVE_LONG_LONG 1
#define HAVE_LONG_DOUBLE 1
#define HAVE_PTHREAD_H 1
#define HAVE_MPI_IO 1
#define HAVE_MPI_WIN_CREATE 1
#define SIZEOF_INT 4
#define SIZEOF_LONG 8
#define SIZEOF_LONG_LONG 8
#define SIZEOF_SHORT 2
#define SIZEOF_VOID_P 8
#define SIZEOF_MPI_OFFSET 8
#define POINTERINT_t long
#define USE_STRICT_MPI 1
#define THREAD_PACKAGE_NAME THREAD_PACKAGE_POSIX
EOF
    printf '#define HAVE_DECL_MPI_OFFSET 1\n#define HAVE_UNISTD_H 1\n#define HAVE_STRDUP 1\n' >"$1/config.h"
    echo '#define config_srcdir "/nowhere"' >"$1/H5srcdir_str.h"
}

# The same of NetCDF, whose build the installed library is of.
suites_netcdf_header() {
    cat >"$1/netcdf/config.h" <<'EOF'
#include <stdint.h>
#define HAVE_UNISTD_H 1
#define HAVE_STRDUP 1
#define HAVE_STDINT_H 1
#define HAVE_STDBOOL_H 1
#define HAVE_SYS_TIME_H 1
#define HAVE_GETTIMEOFDAY 1
#define USE_HDF5 1
#define USE_NETCDF4 1
#define USE_PARALLEL 1
#define USE_PARALLEL4 1
#define HAS_PAR_FILTERS 1
#define HDF5_SUPPORTS_PAR_FILTERS 1
#define TEMP_LARGE "."
#define CHUNK_CACHE_SIZE 16777216
#define CHUNK_CACHE_NELEMS 4133
#define CHUNK_CACHE_PREEMPTION 0.75
EOF
}

suites_build() {
    local out=$suites/$mpi source name
    mkdir -p "$out"/{mpich,romio,hdf5,netcdf,pnetcdf}
    suites_headers "$out"
    if [[ -n $mpich_source ]] && { wanted mpich || wanted romio; }; then
        local common=("$mpich_source"/util/{mtest,mtest_common,dtypes,mtest_thread}.c -I"$out" -I"$mpich_source/include" -lm -lpthread)
        for source in "$mpich_source"/io/*.c "$mpich_source"/errors/io/*.c; do
            name=${source##*/}
            compile "$out/mpich/${name%.c}" "$source" "${common[@]}"
        done
        sed 's/%@LL@/%lld/g' "$romio_source/misc.c.in" >"$out/romio/misc.c"
        for source in "$romio_source"/*.c "$out/romio/misc.c"; do
            name=${source##*/}
            compile "$out/romio/${name%.c}" "$source" -lm
        done
    fi
    if [[ -n $hdf5_source && ($mpi == mpich || $mpi == openmpi) ]] && wanted hdf5; then
        local from=$hdf5_source/testpar kit=("$hdf5_source"/test/{h5test,testframe}.c)
        # shellcheck disable=SC2046,SC2207  # words
        kit+=(-I"$out" -I"/usr/include/hdf5/$mpi" -I"$hdf5_source/test" -I"$hdf5_source/src" -I"$from" $(pkg-config --cflags --libs "hdf5-$mpi") -lm)
        compile "$out/hdf5/testphdf5" "$from"/{testphdf5,t_dset,t_file,t_file_image,t_mdset,t_ph5basic,t_coll_chunk,t_span_tree,t_chunk_alloc,t_filter_read,t_prop,t_coll_md_read}.c "${kit[@]}"
        for name in t_mpi t_bigio t_pread t_pshutdown t_prestart t_init_term t_shapesame t_filters_parallel; do
            compile "$out/hdf5/$name" "$from/$name.c" "${kit[@]}"
        done
    fi
    if [[ -n $netcdf_source && $mpi == openmpi ]] && wanted netcdf; then
        suites_netcdf_header "$out"
        local from=$netcdf_source kit=(-DHAVE_CONFIG_H -I"$out/netcdf" -I"$netcdf_source/include")
        # shellcheck disable=SC2046,SC2207  # words
        kit+=(-I"$(pkg-config --variable=libdir netcdf-mpi)/netcdf/mpi/include" $(pkg-config --cflags --libs netcdf-mpi hdf5-openmpi) -lm)
        for source in "$from"/nc_test4/{tst_mode,tst_mpi_parallel,tst_parallel,tst_parallel3,tst_parallel4,tst_parallel5,tst_parallel6,tst_nc4perf,tst_simplerw_coll_r,tst_parallel_zlib,tst_parallel_compress,tst_quantize_par}.c "$from"/h5_test/tst_h_par{,_compress}.c; do
            name=${source##*/}
            compile "$out/netcdf/${name%.c}" "$source" "${kit[@]}"
        done
    fi
    if [[ -n $pnetcdf_source && $mpi == openmpi ]] && wanted pnetcdf; then
        local kit=("$pnetcdf_source/test/common/testutils.c" -DHAVE_CONFIG_H -I"$out" -I"$pnetcdf_source/test/common" -I"$pnetcdf_source/src/include")
        # shellcheck disable=SC2207
        kit+=($(pkg-config --cflags --libs pnetcdf) -lm -lpthread)
        for source in "$pnetcdf_source"/test/{testcases,nonblocking,C}/*.m4; do
            [[ -e $source ]] || continue
            name=${source##*/}
            m4 -I"$pnetcdf_source/m4" "$source" >"$out/pnetcdf/${name%.m4}.c" 2>/dev/null
        done
        for source in "$pnetcdf_source"/test/{testcases,nonblocking,C}/*.c "$pnetcdf_source"/examples/{C,tutorial}/*.c "$out"/pnetcdf/*.c; do
            name=${source##*/}
            compile "$out/pnetcdf/${name%.c}" "$source" "${kit[@]}"
        done
    fi
}

# in_suite PROGRAM RANKS SECONDS ARGUMENT...: one test on a pool, with the mount as its directory; @ in an
# argument stands for it, as weir: does for the prefix. It must succeed and have found no errors: not all of
# them tell that by their status.
in_suite() {
    local program=$1 ranks=$2 limit_s=$3
    shift 3
    local path=$suites/$mpi/$program
    [[ -x $path ]] || return 0
    # shellcheck disable=SC2016  # for the shell below
    checked_on_pool "$program, $ranks ranks $*" "$((limit_s + 20))" bash -c '
        cd "$WEIR_MOUNT"
        export HDF5_PARAPREFIX=$WEIR_MOUNT
        log=$(mktemp) limit_s=$1 expect=$2
        shift 2
        status=0
        # A test that reads what another one writes.
        [[ -z ${before:-} ]] || timeout "$limit_s" bash -c "${before//@/$WEIR_MOUNT}" >"$log" 2>&1
        timeout "$limit_s" "${@//@/$WEIR_MOUNT}" >"$log" 2>&1 || status=$?
        grep -v "^ok" "$log" | tail -n 40
        if grep -qiE "found [1-9][0-9]* err|[^a-z]FAILED|should be|mismatch|unexpected" "$log"; then exit 1; fi
        [[ -z $expect ]] || grep -qi "$expect" "$log" || exit 1
        exit "$status"' - "$limit_s" "${expect:-}" "${mpirun[@]}" -n "$ranks" "$path" "$@"
}

# For each of the lines of standard input "PROGRAM RANKS ARGUMENT...".
suite() {
    local name=$1 program ranks arguments
    wanted "$name" || return 0
    while read -r program ranks arguments; do
        # shellcheck disable=SC2086  # words
        in_suite "$name/$program" "$ranks" 60 $arguments </dev/null
    done
}

suites_run() {
    memory=1500M
    # Not here: perf, coll_perf, large_array and large_file measure or fill; syshints reads ROMIO's own file of
    # hints; file_info wants that of two targets striping_factor be 1 and 2.
    expect='no errors\|external32 datarep is BIG ENDIAN'
    suite romio <<'EOF'
simple 4 -fname weir:/f
psimple 4 -fname @/f
async 4 -fname weir:/f
async-multiple 4 -fname @/f
atomicity 4 -fname weir:/f
coll_test 4 -fname @/f
excl 4 -fname weir:/f
creat_excl 4 -fname @/f
i_noncontig 2 -fname weir:/f
noncontig 2 -fname @/f
noncontig_coll 2 -fname weir:/f
noncontig_coll2 4 -fname @/f
aggregation1 4 -h -f weir:/f
aggregation2 4 @/f
hindexed 4 weir:/f
misc 4 -fname @/f
shared_fp 4 -fname weir:/f
ordered_fp 4 -fname @/f
split_coll 4 -fname weir:/f
error 1 -fname @/f
status 1 -fname weir:/f
types_with_zeros 2 @/f
darray_read 4 weir:/f
external32 1 @/f
big_extents 4 weir:/f
EOF
    # Most have the names of their files built in: relative ones.
    suite mpich <<'EOF'
rdwrord 4
rdwrzero 4
getextent 2
setinfo 4
setviewcur 4
i_noncontig 2 -fname weir:/f
async 4
async_any 4
userioerr 1
resized 1
resized2 1
hindexed_io 1
tst_fileview 1
zero_count 4
simple_collective 1 @/f
external32_derived_dtype 1
i_hindexed_io 1
i_rdwrord 4
i_setviewcur 4
i_aggregation1 4
i_aggregation2 4 weir:/f
i_coll_test 4
i_darray_read 4 weir:/f
i_hindexed 4 weir:/f
i_noncontig_coll 2
i_noncontig_coll2 4
i_types_with_zeros 2 weir:/f
fileerrret 1
openerr 1
file_errhdl 1
EOF
    # HDF5 opens files without MPI too, hence by paths: HDF5_PARAPREFIX.
    expect=''
    suite hdf5 <<'EOF'
t_mpi 3
t_bigio 2
t_pread 4
t_pshutdown 3
t_init_term 3
EOF
    if wanted hdf5; then
        export before="${mpirun[*]} -n 3 $suites/$mpi/hdf5/t_pshutdown"
        in_suite hdf5/t_prestart 3 60
        before=''
        # Tens of thousands of small accesses.
        in_suite hdf5/t_filters_parallel 3 240
        in_suite hdf5/testphdf5 3 240
        in_suite hdf5/t_shapesame 3 240
    fi
    # As its own run_par_test.sh starts them; names are relative.
    suite netcdf <<'EOF'
tst_mode 1
tst_mpi_parallel 4
tst_parallel 4
tst_parallel3 4
tst_parallel4 1
tst_parallel4 4
tst_parallel4 8
tst_parallel5 4
tst_simplerw_coll_r 1
tst_simplerw_coll_r 4
tst_parallel_zlib 4
tst_parallel_compress 1
tst_parallel_compress 4
tst_quantize_par 4
tst_parallel6 4
tst_h_par 4
tst_h_par_compress 4
EOF
    # Some 200,000 small accesses by each rank.
    if wanted netcdf; then in_suite netcdf/tst_nc4perf 4 240; fi
    if wanted pnetcdf && [[ -d $suites/$mpi/pnetcdf ]]; then
        local path
        for path in "$suites/$mpi"/pnetcdf/*; do
            [[ -x $path ]] || continue
            case ${path##*/} in
            # It measures.
            mcoll_perf) continue ;;
            get_vara) before=put_vara ;;
            pnetcdf-read-nfiles) before=pnetcdf-write-nfiles ;;
            pnetcdf-read-*) before=pnetcdf-write-standard ;;
            pres_temp_4D_rd) before=pres_temp_4D_wr ;;
            *) before='' ;;
            esac
            [[ -z $before ]] || before="${mpirun[*]} -n 4 ${path%/*}/$before weir:@/f.nc"
            export before
            in_suite "pnetcdf/${path##*/}" 4 60 weir:@/f.nc
            before=''
        done
    fi
    if wanted mpi4py && ((${#mpipython[@]})); then
        local version=4.1.2 ranks
        [[ $mpi != openmpi ]] || version=3.1.4
        for ranks in 1 3; do
            # shellcheck disable=SC2016
            checked_on_pool "mpi4py $version, $ranks ranks" 120 bash -c 'cd "$1" && shift && TMPDIR=$WEIR_MOUNT timeout 100 "$@"' - \
                "$suites/src/mpi4py-$version/test" "${mpirun[@]}" -n "$ranks" "${mpipython[@]}" runtests.py -i test_io -i test_file
        done
    fi
    if wanted h5py && [[ $mpi == openmpi ]]; then
        # shellcheck disable=SC2016
        checked_on_pool "h5py's own tests with MPI" 120 bash -c 'cd "$WEIR_MOUNT" && TMPDIR=$WEIR_MOUNT timeout 100 "$@"' - \
            "${mpirun[@]}" -n 2 "${mpipython[@]}" -m pytest -q -p no:cacheprovider --with-mpi -m mpi --pyargs h5py._debian_h5py_mpi.tests
    fi
}
