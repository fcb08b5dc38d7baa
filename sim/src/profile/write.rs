//! Values of constants as lines of a profile's text.

use super::{Constant, Parameter};
use crate::text::toml_string;

/// Digits after the point of a number: four, and of small ones so many that three digits count.
fn number(value: f64) -> String {
    let zeros = -value.abs().log10().floor();
    let digits = if zeros.is_finite() { (zeros as usize + 2).max(4) } else { 4 };
    format!("{value:.digits$}")
}

impl Parameter {
    /// As a line below `[parameters]` of a profile, without its line end.
    pub fn line(&self, constant: Constant) -> String {
        let [name, source] = [constant.name(), &self.source].map(toml_string);
        let interval = self.interval.map(|ends| ends.map(number));
        let interval = interval.map_or_else(String::new, |[low, high]| format!(", interval = [{low}, {high}]"));
        let (value, origin) = (number(self.value), self.origin.name());
        format!("{name} = {{ value = {value}, origin = \"{origin}\", source = {source}{interval} }}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Layer, OriginKind, ProfileError};

    /// Goal: a small value is read back to within half a percent, with an interval around it; others are as short as ever.
    #[test]
    fn small_values_keep_their_digits() -> Result<(), ProfileError> {
        let (origin, source) = (OriginKind::Fitted, "a \"test\"".to_owned());
        let parameter = |value: f64, interval| Parameter { value, origin, source: source.clone(), interval };
        let constant = Constant::KernelWarpLl;
        assert_eq!(
            parameter(0.03771, Some([0.0319, 12.0])).line(constant),
            r#""kernel_warp.ll" = { value = 0.0377, origin = "fitted", source = 'a "test"', interval = [0.0319, 12.0000] }"#
        );
        assert_eq!([0.0, 0.45, 1e-2, f64::INFINITY].map(number), ["0.0000", "0.4500", "0.0100", "inf"]);
        let head = "schema = \"collcast/profile/1\"\nname = \"t\"\nevidence = \"\"\nuncertainty = 0.1\n[parameters]\n";
        for value in [0.00104, 4.6e-5, 0.000_999_96, 0.010_049, 1.234e-9] {
            let line = parameter(value, Some([value * 0.97, value * 1.2])).line(constant);
            let read = Layer::parse(&format!("{head}{line}\n"), "t.toml")?;
            let found = read.parameters.get(&constant).map(|p| (p.value, p.interval));
            let near = |a: f64, b: f64| (a / b - 1.0).abs() <= 0.005;
            let is_near = |[low, high]: [f64; 2]| near(low, value * 0.97) && near(high, value * 1.2);
            assert!(found.is_some_and(|(found, ends)| near(found, value) && ends.is_some_and(is_near)), "{line}");
        }
        Ok(())
    }
}
