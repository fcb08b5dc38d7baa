//! What is to be fitted to what.

use std::path::PathBuf;

use collcast_hwbackend::read::ReadOptions;
use collcast_sim::calibrate::Split;
use collcast_sim::collective::Launch;
use collcast_sim::units::Bytes;

use crate::watch::Watch;

/// What is to be fitted to what. By itself all constants, over `prior`, judged on runs held back in two groups.
#[derive(Clone, Debug)]
pub struct Request {
    /// Measurements: files or folders.
    pub measurements: Vec<PathBuf>,
    /// Machine of all of them; what the `.toml` beside each names, where none is said.
    pub topology: Option<String>,
    /// Profiles to start from, built-in names or TOML files; several layer.
    pub profiles: Vec<String>,
    /// Folders with profiles of the user's own, besides the built-in ones.
    pub profile_folders: Vec<PathBuf>,
    /// Launch mode of rows that do not say theirs.
    pub launch: Option<Launch>,
    /// Smallest size that counts, as nccl-tests counts it.
    pub min_size: Bytes,
    /// Constants to fit by their names or the beginnings of these; all where none is said.
    pub fit: Vec<String>,
    /// Constants to leave at their prior, by their names or the beginnings of these.
    pub keep: Vec<String>,
    /// By what rows are held back.
    pub splits: Vec<Split>,
    /// Groups in which runs are held back; other splits hold back one value at a time.
    pub folds: usize,
    /// Fit a profile without each source too.
    pub without_sources: bool,
    /// Name of the profile.
    pub name: String,
    /// How measurements are read.
    pub read: ReadOptions,
    /// Told of each fit that is done.
    pub watch: Watch,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            measurements: Vec::new(),
            topology: None,
            profiles: vec!["prior".to_owned()],
            profile_folders: Vec::new(),
            launch: None,
            min_size: Bytes(1024),
            fit: Vec::new(),
            keep: Vec::new(),
            splits: vec![Split::Run],
            folds: 2,
            without_sources: false,
            name: "fitted".to_owned(),
            read: ReadOptions::default(),
            watch: Watch::default(),
        }
    }
}
