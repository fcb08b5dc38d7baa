//! Small slices as lines of LL: four bytes of data beside a flag of four, which arrive together. Who waits looks at its
//! memory, as NCCL's GPUs do; there is no receive to post and no completion to take.

/// Bytes of data of a line.
const DATA: usize = 4;
/// Lines of the largest small slice: as many as NICs commonly carry inline.
pub(super) const MOST: usize = 8;
/// Bytes of a place for a small slice: a cache line.
pub(super) const PLACE: usize = 8 * MOST;

/// Whether a slice of so many bytes is small.
pub(super) fn small(bytes: u32) -> bool {
    bytes as usize <= DATA * MOST
}

/// Lines of a small slice. One of nothing has a line too, as it is handed over all the same.
pub(super) fn count(bytes: u32) -> usize {
    (bytes as usize).div_ceil(DATA).max(1)
}

/// The flag of a slice. Where none was yet there are zeros, which the first slices never have.
pub(super) fn flag(slice: u64) -> u32 {
    (slice as u32).wrapping_add(1)
}

/// A line, as eight bytes that are written at once.
fn line(data: [u8; DATA], flag: u32) -> u64 {
    u64::from(u32::from_ne_bytes(data)) | u64::from(flag) << 32
}

/// The lines of a slice in order: its data, four bytes at a time, and a flag in each.
pub(super) fn pack(data: &[u8], flag: u32) -> [u64; MOST] {
    let mut lines = [line([0; DATA], flag); MOST];
    let (whole, rest) = data.as_chunks();
    lines.iter_mut().zip(whole).for_each(|(place, &data)| *place = line(data, flag));
    if !rest.is_empty() {
        let mut last = [0; DATA];
        last.iter_mut().zip(rest).for_each(|(place, &byte)| *place = byte);
        lines[whole.len()] = line(last, flag);
    }
    lines
}

/// Whether a line has arrived.
pub(super) fn whole(line: u64, flag: u32) -> bool {
    (line >> 32) as u32 == flag
}

/// The data of lines, which have arrived.
pub(super) fn unpack(lines: &[u64], data: &mut [u8]) {
    let (whole, rest) = data.as_chunks_mut();
    let last = lines.get(whole.len()).map(|&line| (line as u32).to_ne_bytes());
    whole.iter_mut().zip(lines).for_each(|(place, &line)| *place = (line as u32).to_ne_bytes());
    rest.iter_mut().zip(last.unwrap_or_default()).for_each(|(place, byte)| *place = byte);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what is packed is unpacked, of every size there is; a line of another slice is not taken for one of this.
    #[test]
    fn lines_carry_small_slices() {
        for bytes in 0..=DATA * MOST {
            assert!(small(bytes as u32));
            let data: Vec<u8> = (0..bytes).map(|byte| byte as u8 + 1).collect();
            let (lines, flag) = (pack(&data, flag(70)), flag(70));
            let sent = &lines[..count(bytes as u32)];
            assert!(sent.len() == bytes.div_ceil(4).max(1) && sent.iter().all(|&line| whole(line, flag)), "{bytes}");
            assert!(sent.iter().all(|&line| !whole(line, flag + 1)));
            let mut back = vec![0; bytes];
            unpack(sent, &mut back);
            assert_eq!(back, data);
        }
        assert!(!small((DATA * MOST) as u32 + 1) && !whole(0, flag(0)));
    }
}
