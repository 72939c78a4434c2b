//! Random histories of one file, through two mounts in turn, against a plain `Vec<u8>`.

use crate::common::{Mounted, TestPool, fuse_works, pattern};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use weir_fuse::MountOptions;

const STEPS: usize = 250;
const SIZE_MAX: u64 = 700_000;

/// A generator of test cases (xorshift64*): equal seeds give equal histories.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 20) % limit.max(1)
    }
}

fn grow(model: &mut Vec<u8>, end: u64) {
    if (model.len() as u64) < end {
        model.resize(end as usize, 0);
    }
}

fn punch(file: &File, offset: u64, length: u64) {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: the descriptor is open.
    let result = unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as i64, length as i64) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}

fn open(mount: &Mounted) -> File {
    OpenOptions::new().read(true).write(true).open(mount.join("f")).expect("opens")
}

/// With caching a file is opened anew whenever the other mount takes over; without, both stay open.
fn run(caching: bool, seed: u64) {
    let pool = TestPool::new(3, 64 << 20);
    let options = MountOptions { caching, ..MountOptions::default() };
    let mounts = [pool.mount(&options), pool.mount(&options)];
    fs::write(mounts[0].join("f"), b"").expect("creates");
    let mut files = [Some(open(&mounts[0])), Some(open(&mounts[1]))];
    let mut model: Vec<u8> = Vec::new();
    let mut random = Random(seed * 2 + 1);
    let mut last = 0;
    for step in 0..STEPS {
        let turn = random.below(2) as usize;
        if caching && turn != last {
            files[last] = None;
            files[turn] = Some(open(&mounts[turn]));
        }
        last = turn;
        let file = files[turn].as_ref().expect("is open");
        let offset = random.below(SIZE_MAX);
        let length = match random.below(3) {
            0 => random.below(100),
            1 => random.below(5_000),
            _ => random.below(200_000),
        };
        match random.below(10) {
            0..4 => {
                let bytes = pattern(step as u64 + seed, offset, length as usize);
                file.write_all_at(&bytes, offset).expect("writes");
                if length > 0 {
                    grow(&mut model, offset + length);
                    model[offset as usize..(offset + length) as usize].copy_from_slice(&bytes);
                }
            }
            4 => {
                file.set_len(offset).expect("truncates");
                model.resize(offset as usize, 0);
            }
            5 if length > 0 => {
                punch(file, offset, length);
                let size = model.len() as u64;
                let (start, end) = (offset.min(size), (offset + length).min(size));
                model[start as usize..end as usize].fill(0);
            }
            6 => {
                let bytes = pattern(step as u64, 0, length as usize % 10_000);
                let path = mounts[turn].join("f");
                let mut appender = OpenOptions::new().append(true).open(path).expect("opens");
                appender.write_all(&bytes).expect("appends");
                model.extend_from_slice(&bytes);
            }
            _ => {
                let mut got = vec![0xEE; length as usize];
                let count = file.read_at(&mut got, offset).expect("reads");
                let end = (offset + length).min(model.len() as u64).max(offset);
                let expected = model.get(offset as usize..end as usize).unwrap_or_default();
                assert!(got[..count] == *expected, "seed {seed}, step {step}: {offset}+{length}");
            }
        }
        let size = file.metadata().expect("stat").len();
        assert_eq!(size, model.len() as u64, "seed {seed}, step {step}");
    }
    files = [None, None];
    drop(files);
    for mount in mounts {
        assert!(fs::read(mount.join("f")).expect("reads") == model, "seed {seed}: at the end");
        mount.end();
    }
}

#[test]
fn a_file_is_what_a_plain_one_would_be() {
    if !fuse_works() {
        return;
    }
    for seed in 1..=4 {
        run(false, seed);
        run(true, seed);
    }
}
