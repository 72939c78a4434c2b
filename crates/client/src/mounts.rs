//! What is mounted, as this process sees it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// Something that is mounted.
#[derive(Debug, PartialEq, Eq)]
pub struct Mount {
    /// Its files' device: major and minor number.
    pub device: (u32, u32),
    /// Where.
    pub at: PathBuf,
    /// What kind of file system, as the kernel names it.
    pub kind: String,
}

impl Mount {
    /// Whether it is a pool's.
    pub fn is_pool(&self) -> bool {
        self.kind == "fuse.weir"
    }
}

/// All that is mounted; nothing where the kernel does not say it.
pub fn mounts() -> Vec<Mount> {
    parse(&std::fs::read("/proc/self/mountinfo").unwrap_or_default())
}

/// The kernel's list (proc(5), mountinfo).
fn parse(list: &[u8]) -> Vec<Mount> {
    let mount = |line: &[u8]| {
        let line = std::str::from_utf8(line).ok()?;
        let (about, kind) = line.split_once(" - ")?;
        let mut words = about.split(' ').skip(2);
        let (major, minor) = words.next()?.split_once(':')?;
        let at = OsString::from_vec(unescape(words.nth(1)?)).into();
        let kind = kind.split(' ').next()?.to_owned();
        Some(Mount { device: (major.parse().ok()?, minor.parse().ok()?), at, kind })
    };
    list.split(|byte| *byte == b'\n').filter_map(mount).collect()
}

/// The kernel writes blanks in names as `\040`.
fn unescape(word: &str) -> Vec<u8> {
    let mut plain = Vec::new();
    let mut rest = word;
    while let Some(at) = rest.find('\\') {
        plain.extend_from_slice(&rest.as_bytes()[..at]);
        let code = rest.get(at + 1..at + 4).and_then(|code| u8::from_str_radix(code, 8).ok());
        plain.push(code.unwrap_or(b'\\'));
        rest = &rest[at + if code.is_some() { 4 } else { 1 }..];
    }
    plain.extend_from_slice(rest.as_bytes());
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unescaped() {
        assert_eq!(unescape(r"/a\040b\134c"), br"/a b\c");
        assert_eq!(unescape(r"/plain\x"), br"/plain\x");
    }

    #[test]
    fn pools_are_found_among_mounts() {
        let list = b"22 27 0:21 / /proc rw,relatime - proc proc rw\n\
            40 27 0:52 / /tmp/a\\040b\\134 rw,nosuid shared:5 - fuse.weir weir rw,user_id=0\n\
            41 27 0:53 / /tmp/c rw - fuse.sshfs weir rw\n\
            garbage - fuse.weir\n\n";
        let pools: Vec<Mount> = parse(list).into_iter().filter(Mount::is_pool).collect();
        let kind = "fuse.weir".to_owned();
        assert_eq!(pools, [Mount { device: (0, 52), at: r"/tmp/a b\".into(), kind }]);
    }
}
