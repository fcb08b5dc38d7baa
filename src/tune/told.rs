//! What NCCL was told when rows were measured, beside what it is told where they are to tune it.

use std::collections::BTreeMap;

use collcast_hwbackend::read::{FileReport, ReadReport};
use collcast_sim::measurement::Measurement;
use collcast_sim::nccl::NcclSettings;

use crate::error::Error;
use crate::site::{self, Site, Told, is_of_tuners};
use crate::validate::judged::by_path;

/// Variables with their values.
type Env = Vec<(String, String)>;
/// The variables of a run, and whether its channels were forced.
type Key<'r> = (&'r BTreeMap<String, String>, bool);

/// Rows by the variables that make NCCL do otherwise than at a site.
pub(super) struct Otherwise<'r> {
    files: BTreeMap<String, &'r FileReport>,
    known: BTreeMap<Key<'r>, Env>,
}

impl<'r> Otherwise<'r> {
    pub(super) fn than(site: &Site, read: &'r ReadReport) -> Self {
        let mut out = Self { files: by_path(&read.files), known: BTreeMap::new() };
        for row in &read.measurements {
            if let Some(key) = out.key(row) {
                out.known.entry(key).or_insert_with(|| otherwise(site, key));
            }
        }
        out
    }

    fn key(&self, row: &Measurement) -> Option<Key<'r>> {
        let file: &'r FileReport = self.files.get(&row.origin.file)?;
        Some((file.env_of(&row.run), row.settings.channels.is_some()))
    }

    /// Those of a row.
    fn of(&self, row: &Measurement) -> &[(String, String)] {
        self.key(row).and_then(|key| self.known.get(&key)).map(Vec::as_slice).unwrap_or_default()
    }

    /// Why a row is not of the site.
    pub(super) fn why(&self, row: &Measurement) -> Option<String> {
        let of_row = self.of(row);
        (!of_row.is_empty()).then(|| format!("were measured with {} (--env)", words(of_row)))
    }

    /// The site told as it was when all of some rows were measured, where that is one way, and other than both the site's and
    /// the user's; with a note.
    ///
    /// # Errors
    /// What NCCL would not take.
    pub(super) fn adopted<'m>(
        &self,
        site: &Site,
        mut rows: impl Iterator<Item = &'m Measurement>,
    ) -> Result<Option<(Site, String)>, Error> {
        let Some(one) = rows.next().map(|row| self.of(row)) else { return Ok(None) };
        let is_asked = |name: &str| site.spec.env.iter().any(|(asked, _)| asked == name);
        if one.is_empty() || one.iter().any(|(name, _)| is_of_tuners(name) || is_asked(name)) {
            return Ok(None);
        }
        if rows.any(|row| self.of(row) != one) {
            return Ok(None);
        }
        let note = format!("all times were measured with {}: forecasts and settings are for that", words(one));
        Ok(Some((site.with_env(one.to_vec())?, note)))
    }
}

fn words(env: &[(String, String)]) -> String {
    env.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

/// Variables of a run that make NCCL do otherwise than at a site, each by itself. Threads, FIFOs, algorithms, protocols and
/// forced channels are said by the rows. A value that NCCL would not take changes nothing, as in `validate`.
fn otherwise(site: &Site, (env, channels): Key<'_>) -> Env {
    let is_other = |(name, value): &(&String, &String)| {
        // A file of the host that was measured.
        if name.as_str() == "NCCL_TUNER_CONFIG_FILE" {
            return !value.is_empty();
        }
        let here = site.spec.env.iter().cloned().chain([((*name).clone(), value.trim().to_owned())]);
        let told = site::told(&site.topology, site.spec.nccl.as_deref(), &here.collect::<Vec<_>>());
        told.is_ok_and(|told| outside_of_rows(&told, channels) != outside_of_rows(&site.told, channels))
    };
    env.iter().filter(is_other).map(|(name, value)| (name.clone(), value.trim().to_owned())).collect()
}

/// What NCCL is told, but for what rows say themselves.
fn outside_of_rows(told: &Told, channels: bool) -> impl PartialEq + use<> {
    let NcclSettings { nvls, .. } = told.settings.nccl;
    let mut nccl = NcclSettings {
        algorithms: Default::default(),
        protocols: Default::default(),
        threads: None,
        buffers: Default::default(),
        // By itself NCCL uses it where it can.
        nvls: Some(nvls != Some(false)),
        ..told.settings.nccl
    };
    if channels {
        (nccl.min_channels, nccl.max_channels, nccl.min_ctas, nccl.max_ctas) = (None, None, None, None);
        (nccl.min_p2p_channels, nccl.max_p2p_channels) = (None, None);
    }
    (nccl, told.settings.transport, told.tuner.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::SiteSpec;
    use collcast_hwbackend::read::{ReadOptions, read_paths};

    /// Goal: what NCCL was told when rows were measured counts: rows under other variables are named with them, all under the
    /// same are for these, and neither what a user says otherwise nor tuners are overruled.
    #[test]
    fn rows_are_for_what_nccl_was_told() -> Result<(), Error> {
        let folder = tempfile::tempdir().map_err(|e| Error::Internal(e.to_string()))?;
        let file = |name: &str, env: &str| -> Result<(), Error> {
            let at = |ending| folder.path().join(format!("{name}.{ending}"));
            let rows = "collective,algorithm,protocol,ranks,size_bytes,time_us\nall_reduce,,,8,1048576,50\n";
            crate::files::write(&at("csv"), rows.as_bytes())?;
            crate::files::write(&at("toml"), format!("[env]\n{env}").as_bytes())
        };
        // What is adopted, in words, and why the first row is not of the site.
        let said = |spec: SiteSpec| -> Result<_, Error> {
            let (site, read) = (spec.load()?, read_paths(&[folder.path().to_owned()], &ReadOptions::default())?);
            let otherwise = Otherwise::than(&site, &read);
            let adopted = otherwise.adopted(&site, read.measurements.iter())?;
            let why = read.measurements.iter().find_map(|row| otherwise.why(row));
            Ok((adopted.map(|(site, _)| words(&site.told.in_effect)), why))
        };
        let spec = || SiteSpec::new("dgx-h100");
        let off = Some("NCCL_NVLS_ENABLE=0".to_owned());
        let why = Some("were measured with NCCL_NVLS_ENABLE=0 (--env)".to_owned());
        file("a", "NCCL_NVLS_ENABLE = \"0\"\nNCCL_DEBUG = \"INFO\"\nNCCL_ALGO = \"Ring\"\nNCCL_NTHREADS = 256\n")?;
        assert_eq!(said(spec())?, (off, why.clone()));
        assert_eq!(said(spec().env("NCCL_NVLS_ENABLE", "0"))?, (None, None));
        assert_eq!(said(spec().env("NCCL_NVLS_ENABLE", "1"))?, (None, why.clone()));
        file("b", "NCCL_NVLS_ENABLE = \"1\"\n")?;
        assert_eq!(said(spec())?, (None, why));
        file("a", "")?;
        assert_eq!(said(spec())?, (None, None));
        for name in ["a", "b"] {
            file(name, "NCCL_TUNER_PLUGIN = \"libother.so\"\n")?;
        }
        let (adopted, why) = said(spec())?;
        assert!(adopted.is_none() && why.is_some_and(|why| why.contains("NCCL_TUNER_PLUGIN=libother.so")));
        Ok(())
    }
}
