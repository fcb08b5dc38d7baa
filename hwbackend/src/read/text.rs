//! Bytes of text files.

/// The text of a file in UTF-16, which Windows' shells write; nothing where no byte-order mark says so. What is no
/// character is replaced.
pub(super) fn of_utf16(bytes: &[u8]) -> Option<String> {
    let (unit, rest): (fn([u8; 2]) -> u16, _) = match bytes {
        [0xff, 0xfe, rest @ ..] => (u16::from_le_bytes, rest),
        [0xfe, 0xff, rest @ ..] => (u16::from_be_bytes, rest),
        _ => return None,
    };
    let units = rest.as_chunks().0.iter().map(|&pair| unit(pair));
    Some(char::decode_utf16(units).map(|one| one.unwrap_or(char::REPLACEMENT_CHARACTER)).collect())
}
