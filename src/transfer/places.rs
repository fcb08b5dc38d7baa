//! Places as people write them.

use collcast_sim::ids::{HostId, Rank};
use collcast_sim::transfer::Place;

use crate::error::Error;

/// Places at most.
const MOST: u32 = 4096;
/// What places look like.
const LOOK: &str =
    "places look like gpu:0, gpu:0-7, host:0, disk:1, cache:0 or store:0; GPUs are numbered through all hosts, from 0";

/// The places of a text: `gpu:3`, `gpu:8-15`, `host:0`, `disk:1`, `cache:0` (files in the page cache), `store:0`.
///
/// # Errors
/// Another text, or more places than are simulated.
pub fn places(flag: &str, text: &str) -> Result<Vec<Place>, Error> {
    let wrong = |what: String| Error::usage(format!("{flag}: `{text}` {what}"), LOOK);
    let (kind, numbers) = text.split_once(':').ok_or_else(|| wrong("is no place".to_owned()))?;
    let of: fn(u32) -> Place = match kind {
        "gpu" => |number| Place::Gpu(Rank(number)),
        "host" => |number| Place::Host(HostId(number)),
        "disk" => |number| Place::Disk(HostId(number)),
        "cache" => |number| Place::Cached(HostId(number)),
        "store" if numbers == "0" => |_| Place::Store,
        "store" => return Err(wrong("names a second object store: there is one, store:0".to_owned())),
        _ => return Err(wrong(format!("is no place: there is no `{kind}`"))),
    };
    let number = |text: &str| text.parse::<u32>().map_err(|_| wrong(format!("has `{text}` for a number")));
    let (first, last) = match numbers.split_once('-') {
        Some((first, last)) => (number(first)?, number(last)?),
        None => (number(numbers)?, number(numbers)?),
    };
    if last < first || last - first >= MOST {
        return Err(wrong(format!("is a range of none, or of more than {MOST}")));
    }
    Ok((first..=last).map(of).collect())
}
