//! Slurm host lists: `gpu[001-064]`, `a[1-3,7],b[01-02]-ib`.

/// Most GPUs of a cluster: twice the largest that are built, and a bound on memory.
pub const MAX_GPUS: usize = 200_000;

/// Why a host list cannot be read.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum HostListError {
    /// `[` without `]`, or the other way round.
    #[error("the brackets do not match")]
    Brackets,
    /// A range without a number, or with something else.
    #[error("`{0}` is not a range of numbers such as `001-064`")]
    Range(String),
    /// A range that runs backwards.
    #[error("the range `{0}` runs backwards")]
    Backwards(String),
    /// A name of nothing.
    #[error("a host name is empty")]
    Empty,
    /// A character that no host name has.
    #[error("a host name cannot contain `{0}`")]
    Character(char),
    /// More names than any cluster has.
    #[error("it names over {MAX_GPUS} hosts")]
    TooMany,
}

/// Expands a host list in order. Leading zeros are kept: `n[08-10]` is n08, n09, n10.
///
/// # Errors
/// See [`HostListError`]; the expansion never holds more than [`MAX_GPUS`] names.
///
/// ```
/// use collcast_topologies::hostlist::expand;
/// assert_eq!(expand("n[08-10],login").unwrap(), ["n08", "n09", "n10", "login"]);
/// ```
pub fn expand(list: &str) -> Result<Vec<String>, HostListError> {
    let mut names = Vec::new();
    for item in split_outside(list)? {
        expand_item(item.trim(), &mut names)?;
    }
    Ok(names)
}

/// Splits at commas that are not inside brackets.
pub(crate) fn split_outside(list: &str) -> Result<Vec<&str>, HostListError> {
    let mut items = Vec::new();
    let (mut start, mut inside) = (0, false);
    for (i, c) in list.char_indices() {
        match c {
            '[' if !inside => inside = true,
            ']' if inside => inside = false,
            '[' | ']' => return Err(HostListError::Brackets),
            ',' if !inside => {
                items.push(&list[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err(HostListError::Brackets);
    }
    items.push(&list[start..]);
    Ok(items)
}

fn expand_item(item: &str, names: &mut Vec<String>) -> Result<(), HostListError> {
    let mut prefixes = vec![String::new()];
    let mut rest = item;
    while let Some(open) = rest.find('[') {
        let close = rest.find(']').ok_or(HostListError::Brackets)?;
        let literal = check(&rest[..open])?;
        let mut grown = Vec::new();
        for range in rest[open + 1..close].split(',') {
            let (first, last, width) = bounds(range.trim())?;
            let count = usize::try_from(last - first + 1).unwrap_or(usize::MAX);
            if count.saturating_mul(prefixes.len()).saturating_add(grown.len() + names.len()) > MAX_GPUS {
                return Err(HostListError::TooMany);
            }
            for prefix in &prefixes {
                for number in first..=last {
                    grown.push((number, format!("{prefix}{literal}{number:0width$}")));
                }
            }
        }
        prefixes = grown.into_iter().map(|(_, name)| name).collect();
        rest = &rest[close + 1..];
    }
    let tail = check(rest)?;
    for prefix in prefixes {
        let name = prefix + tail;
        if name.is_empty() {
            return Err(HostListError::Empty);
        }
        names.push(name);
    }
    if names.len() > MAX_GPUS {
        return Err(HostListError::TooMany);
    }
    Ok(())
}

/// Names as a host list: those that differ in their last number alone, and follow each other, become a range.
///
/// ```
/// use collcast_topologies::hostlist::compress;
/// let names: Vec<String> = ["n08", "n09", "n10", "n12", "login"].map(str::to_owned).into();
/// assert_eq!(compress(&names), "n[08-10,12],login");
/// ```
pub fn compress(names: &[String]) -> String {
    // Name without its last number, that number, its width.
    let split = |name: &str| -> Option<(String, u64, usize)> {
        let end = name.trim_end_matches(|c: char| !c.is_ascii_digit()).len();
        let start = name[..end].trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let digits = name[start..end].get(..).filter(|digits| (1..=9).contains(&digits.len()))?;
        Some((format!("{}\0{}", &name[..start], &name[end..]), digits.parse().ok()?, digits.len()))
    };
    let mut parts: Vec<String> = Vec::new();
    let mut at = 0;
    while at < names.len() {
        let Some((form, ..)) = split(&names[at]) else {
            parts.push(names[at].clone());
            at += 1;
            continue;
        };
        let mut ranges: Vec<(u64, u64, usize)> = Vec::new();
        let first = at;
        while let Some((_, number, width)) = names.get(at).and_then(|name| split(name)).filter(|next| next.0 == form) {
            match ranges.last_mut() {
                // A number that outgrew its width is written as it is: 99 is followed by 100 where both have width 2.
                Some((_, last, known)) if *last + 1 == number && number.to_string().len().max(*known) == width => {
                    *last = number;
                }
                _ => ranges.push((number, number, width)),
            }
            at += 1;
        }
        let (before, after) = form.split_once('\0').unwrap_or_default();
        if at - first == 1 {
            parts.push(names[first].clone());
            continue;
        }
        let range = |&(from, to, width): &(u64, u64, usize)| {
            if from == to { format!("{from:0width$}") } else { format!("{from:0width$}-{to:0width$}") }
        };
        parts.push(format!("{before}[{}]{after}", ranges.iter().map(range).collect::<Vec<_>>().join(",")));
    }
    parts.join(",")
}

fn check(literal: &str) -> Result<&str, HostListError> {
    literal
        .chars()
        .find(|&c| !(c.is_ascii_alphanumeric() || "-_.".contains(c)))
        .map_or(Ok(literal), |c| Err(HostListError::Character(c)))
}

/// First, last and printed width of `001-064` or `7`.
fn bounds(range: &str) -> Result<(u64, u64, usize), HostListError> {
    let short = || HostListError::Range(crate::error::quote(range));
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let number = |text: &str| -> Result<u64, HostListError> {
        if text.is_empty() || text.len() > 9 || !text.bytes().all(|b| b.is_ascii_digit()) {
            return Err(short());
        }
        text.parse().map_err(|_| short())
    };
    let (from, to) = (number(first)?, number(last)?);
    if from > to {
        return Err(HostListError::Backwards(crate::error::quote(range)));
    }
    Ok((from, to, first.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what Slurm writes is read in Slurm's order, and nothing expands without bound.
    #[test]
    fn host_lists_expand_in_order_and_bounded() {
        let sixty_four = expand("gpu[001-064]").unwrap();
        assert_eq!(sixty_four.len(), 64);
        assert_eq!(sixty_four[16], "gpu017");
        assert_eq!(expand("a[1-2,5]-ib,b").unwrap(), ["a1-ib", "a2-ib", "a5-ib", "b"]);
        assert_eq!(expand("r[1-2]n[1-2]").unwrap(), ["r1n1", "r1n2", "r2n1", "r2n2"]);
        for (list, error) in [
            ("gpu[1-", HostListError::Brackets),
            ("gpu]1", HostListError::Brackets),
            ("gpu[[1]]", HostListError::Brackets),
            ("gpu[a-b]", HostListError::Range("a-b".into())),
            ("gpu[]", HostListError::Range(String::new())),
            ("gpu[9-1]", HostListError::Backwards("9-1".into())),
            ("a,,b", HostListError::Empty),
            ("", HostListError::Empty),
            ("gpu 1", HostListError::Character(' ')),
            ("n[0-999999999]", HostListError::TooMany),
            ("n[0-999]m[0-999]", HostListError::TooMany),
        ] {
            assert_eq!(expand(list), Err(error), "{list}");
        }
    }
}
