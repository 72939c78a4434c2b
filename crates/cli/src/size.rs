//! Sizes and times as people write them.

use weir_core::config::SPIN_US_MAX;

/// Parses `4096`, `64K`, `64KiB`, `1.5G`: bytes. All multiples are binary.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let wrong = |why: &str| format!("{why}; write a number and a unit, as in 512M, 1.5G or 64KiB");
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim_start().to_ascii_uppercase();
    let letter = unit.strip_suffix("IB").or_else(|| unit.strip_suffix('B')).unwrap_or(&unit);
    let shift = match letter {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        "P" => 50,
        _ => return Err(wrong("not a size")),
    };
    if unit == "IB" {
        return Err(wrong("not a size"));
    }
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.contains('.') || fraction.len() > 9 {
        return Err(wrong("not a size"));
    }
    let scale = 1u128 << shift;
    let whole: u128 = whole.parse().map_err(|_| wrong("not a size"))?;
    let parts = if fraction.is_empty() {
        0
    } else {
        let digits: u128 = fraction.parse().map_err(|_| wrong("not a size"))?;
        digits * scale / 10u128.pow(fraction.len() as u32)
    };
    let bytes = whole.checked_mul(scale).and_then(|bytes| bytes.checked_add(parts));
    match bytes.and_then(|bytes| u64::try_from(bytes).ok()) {
        None => Err(wrong("too large")),
        Some(0) => Err(wrong("must be more than nothing")),
        Some(bytes) => Ok(bytes),
    }
}

/// Parses `500ms`, `8s`, `5m`, `1h`: milliseconds.
pub(crate) fn parse_ms(text: &str) -> Result<u64, String> {
    let wrong =
        |why: &str| format!("{why}; write a whole number and a unit, as in 500ms, 8s or 5m");
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let scale = match unit.trim_start() {
        "ms" => 1,
        "s" => 1_000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        _ => return Err(wrong("not a time")),
    };
    match number.parse::<u64>().ok().and_then(|number| number.checked_mul(scale)) {
        Some(0) => Err(wrong("must be more than nothing")),
        // Beyond a year it is no time but a mistake.
        Some(ms) if ms <= 365 * 24 * 3_600_000 => Ok(ms),
        Some(_) => Err(wrong("longer than a year")),
        None => Err(wrong("not a time")),
    }
}

/// Parses `0us`, `50us`: microseconds.
pub(crate) fn parse_us(text: &str) -> Result<u64, String> {
    let number = text.trim().strip_suffix("us").map(str::trim_end).map(str::parse::<u64>);
    match number {
        Some(Ok(us)) if us <= SPIN_US_MAX => Ok(us),
        Some(Ok(_)) => Err(format!("longer than {SPIN_US_MAX}us")),
        _ => Err("not a time; write a whole number and a unit, as in 50us or 0us".to_owned()),
    }
}

/// What [`parse_us`] reads.
pub(crate) fn show_us(us: u64) -> String {
    format!("{us}us")
}

/// `500ms`, `8s`, `5m`: what [`parse_ms`] reads.
pub(crate) fn show_ms(ms: u64) -> String {
    for (unit, scale) in [("h", 3_600_000), ("m", 60_000), ("s", 1_000)] {
        if ms >= scale && ms.is_multiple_of(scale) {
            return format!("{}{unit}", ms / scale);
        }
    }
    format!("{ms}ms")
}

/// `1.5 GiB`: for people.
pub(crate) fn show(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB", "PiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if unit == "B" {
        format!("{bytes} B")
    } else if value < 10.0 && value.fract() > 0.005 {
        format!("{value:.2} {unit}")
    } else if value < 100.0 && value.fract() > 0.05 {
        format!("{value:.1} {unit}")
    } else {
        format!("{value:.0} {unit}")
    }
}

/// `1 file`, `2 files`.
pub(crate) fn show_count(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// Bytes a second, for people; a dash where no time passed.
pub(crate) fn show_rate(bytes: u64, seconds: f64) -> String {
    if bytes == 0 || seconds <= 0.0 {
        "-".to_owned()
    } else {
        format!("{}/s", show((bytes as f64 / seconds) as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_parse() {
        for (text, ms) in [("500ms", 500), ("8s", 8_000), (" 5 m", 300_000), ("1h", 3_600_000)] {
            assert_eq!(parse_ms(text), Ok(ms), "{text}");
            assert_eq!(show_ms(ms), text.replace(' ', ""));
        }
        for wrong in ["", "8", "s", "0s", "1.5s", "-1s", "9999999h", "99999999999999999999s", "1d"]
        {
            assert!(parse_ms(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn short_times_parse() {
        for (text, us) in [("0us", 0), ("50us", 50), (" 7 us", 7), ("10000us", 10_000)] {
            assert_eq!(parse_us(text), Ok(us), "{text}");
        }
        for wrong in ["", "50", "us", "-1us", "1.5us", "1ms", "10001us"] {
            assert!(parse_us(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_parse() {
        for (text, bytes) in [
            ("1", 1),
            ("4096", 4096),
            ("64K", 65536),
            ("64KiB", 65536),
            ("64kb", 65536),
            ("1G", 1 << 30),
            ("1.5G", 3 << 29),
            ("0.5 GiB", 1 << 29),
            ("12B", 12),
            ("16P", 16 << 50),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_what_to_write() {
        let wrong = [
            "",
            "G",
            "1X",
            "-1G",
            "1..5G",
            "1.2.3G",
            "0",
            "0.0G",
            "1iB",
            "1 G G",
            "99999999P",
            "1e9",
        ];
        for text in wrong {
            let said = parse(text).expect_err(text);
            assert!(said.contains("as in 512M"), "{said}");
        }
    }

    #[test]
    fn sizes_are_shown() {
        assert_eq!(show(0), "0 B");
        assert_eq!(show(1023), "1023 B");
        assert_eq!(show(1 << 30), "1 GiB");
        assert_eq!(show(3 << 29), "1.50 GiB");
        assert_eq!(show(47 << 20), "47 MiB");
        assert_eq!(show_rate(1 << 30, 0.5), "2 GiB/s");
        assert_eq!(show_rate(1, 0.0), "-");
        assert_eq!((&*show_count(1, "file"), &*show_count(0, "file")), ("1 file", "0 files"));
    }
}
