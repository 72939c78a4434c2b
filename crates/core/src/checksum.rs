//! CRC-32C, the checksum of everything that a pool has on disks.

use crc_fast::{CrcAlgorithm, Digest};

/// CRC-32C of some bytes.
pub fn crc32c(bytes: &[u8]) -> u32 {
    append(0, bytes)
}

/// CRC-32C of bytes whose checksum is `sum`, and these behind them.
pub fn append(sum: u32, bytes: &[u8]) -> u32 {
    // The state is the checksum before its last step, which inverts it.
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!sum));
    digest.update(bytes);
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the definition: bit for bit.
    fn slow(sum: u32, bytes: &[u8]) -> u32 {
        let mut state = !sum;
        for byte in bytes {
            state ^= u32::from(*byte);
            for _ in 0..8 {
                state = state >> 1 ^ if state & 1 == 1 { 0x82f6_3b78 } else { 0 };
            }
        }
        !state
    }

    /// The formats on disk state this function; whatever computes it, pools that were written before
    /// must be read.
    #[test]
    fn it_is_the_function_that_the_formats_state() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!((crc32c(b""), append(0x1234_5678, b"")), (0, 0x1234_5678));
        let bytes: Vec<u8> =
            (0..20_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 23) as u8).collect();
        // Whatever the processor's ways for short and long, aligned and not, are.
        let lengths =
            (0..600).chain([1023, 1024, 1025, 4084, 4095, 4096, 8191, 16_383, 16_384, 16_385]);
        for (index, length) in lengths.enumerate() {
            let start = index % 67;
            let part = &bytes[start..start + length];
            let salt = 0x9e37_79b9_u32.wrapping_mul(index as u32);
            assert_eq!(append(salt, part), slow(salt, part), "{length} bytes from {start}");
            let (front, back) = part.split_at(length / 3);
            assert_eq!(append(crc32c(front), back), crc32c(part), "{length} bytes in two");
        }
    }
}
