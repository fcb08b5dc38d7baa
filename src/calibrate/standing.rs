//! Whether a fit is fit for use: how it stands on rows that it has not seen, beside the profile that it started from.

use serde::Serialize;

use super::figures::Errors;

/// Mean absolute error beyond which a fit says nothing of the machine: a judgement. The built-in fit of one machine errs by
/// 5.7% on rows held back; a time of another size is off by a factor.
pub(crate) const WORST: f64 = 0.25;

/// How a fit stands on the rows that judge it: those held back, or all where nothing could be held back.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Standing {
    /// What was held back together; none where the rows that it was fitted to judge it.
    pub held_by: Option<&'static str>,
    /// Mean absolute error of the fit.
    pub fitted_mean_abs: f64,
    /// The same of the profile that it started from.
    pub prior_mean_abs: f64,
    /// Why it is not to be used, with the way out.
    pub refused: Option<String>,
}

impl Standing {
    /// Which rows judge it.
    pub fn judged_on(&self) -> String {
        self.held_by.map_or_else(
            || "judged on the rows that it was fitted to".to_owned(),
            |by| format!("judged on rows held back by {by}"),
        )
    }

    /// Where nothing was `asked` to be held back nothing is refused.
    pub(super) fn of(held_by: Option<&'static str>, fitted: &Errors, prior: &Errors, asked: bool) -> Self {
        let (fitted_mean_abs, prior_mean_abs) = (fitted.mean_abs, prior.mean_abs);
        let rows = held_by.map_or_else(|| "the rows fitted to".to_owned(), |by| format!("rows held back by {by}"));
        let percent = |share: f64| format!("{:.1}%", 100.0 * share);
        let refused = if fitted_mean_abs > WORST {
            Some(format!(
                "mean error {} on {rows}, and at most {} is a fit; check the rows' sizes, units and machine with \
                 `collcast validate`",
                percent(fitted_mean_abs),
                percent(WORST),
            ))
        } else if fitted_mean_abs >= prior_mean_abs {
            Some(format!(
                "mean error {} on {rows}, no better than {} of the profile that it started from; keep that one, \
                 hold back fewer rows at a time (--folds), or measure more sizes and algorithms",
                percent(fitted_mean_abs),
                percent(prior_mean_abs),
            ))
        } else {
            None
        };
        Self { held_by, fitted_mean_abs, prior_mean_abs, refused: refused.filter(|_| asked) }
    }
}
