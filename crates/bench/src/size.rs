//! Sizes as people write them.

/// Parses `4096`, `64K`, `64KiB`, `1M`: bytes, more than none. All multiples are binary.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let wrong = || format!("not a size: '{text}'; write a number and a unit, as in 64K or 1GiB");
    let text = text.trim();
    let (number, unit) =
        text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let shift = match unit.to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    match number.checked_mul(1 << shift) {
        None | Some(0) => Err(wrong()),
        Some(bytes) => Ok(bytes),
    }
}

/// `64 KiB`, `64 KiB - 3`, `1 MiB + 3`, `100 B`: exact, for people.
pub(crate) fn show(bytes: u64) -> String {
    let whole = |bytes: u64| {
        let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
        units
            .iter()
            .find(|(shift, _)| bytes > 0 && bytes.is_multiple_of(1 << shift))
            .map(|(shift, unit)| format!("{} {unit}", bytes >> shift))
    };
    if let Some(text) = whole(bytes) {
        return text;
    }
    for (base, sign) in [(bytes + 3, '-'), (bytes.saturating_sub(3), '+')] {
        if let Some(text) = whole(base) {
            return format!("{text} {sign} 3");
        }
    }
    format!("{bytes} B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse_and_are_shown() {
        for (text, bytes) in [("1", 1), ("4096", 4096), ("64K", 65_536), ("1MiB", 1 << 20)] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in ["", "0", "K", "1.5M", "-1", "1X", "99999999999G"] {
            assert!(parse(text).is_err(), "{text}");
        }
        for (bytes, text) in [
            (1, "1 B"),
            (1021, "1 KiB - 3"),
            (1024, "1 KiB"),
            (1027, "1 KiB + 3"),
            (3 << 20, "3 MiB"),
            (100_000, "100000 B"),
        ] {
            assert_eq!(show(bytes), text);
        }
    }
}
