//! Findings in files as SARIF 2.1.0, which code scanning of GitHub, GitLab and editors reads.

use collcast_sim::text::one_line;
use serde_json::{Value, json};

/// A rule that something was found by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// Its name.
    pub id: String,
    /// Why it matters.
    pub why: String,
    /// The way out.
    pub way_out: String,
}

/// Something that was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// The rule's name.
    pub rule: String,
    /// `error`, `warning` or `note`.
    pub level: &'static str,
    /// What is wrong.
    pub message: String,
    /// The file, as a path from where the command ran, or words for another place.
    pub file: String,
    /// Whether it is a file.
    pub is_file: bool,
    /// Its line, from 1.
    pub line: Option<u64>,
}

/// The whole document.
pub fn render(version: &str, rules: &[Rule], found: &[Found]) -> String {
    let rule = |rule: &Rule| {
        json!({
            "id": rule.id,
            "shortDescription": { "text": one_line(&rule.why) },
            "help": { "text": one_line(&rule.way_out) },
        })
    };
    let result = |found: &Found| {
        let mut place = json!({ "artifactLocation": { "uri": uri(&found.file) } });
        if let Some(line) = found.line {
            place["region"] = json!({ "startLine": line });
        }
        let location = match found.is_file {
            true => json!({ "physicalLocation": place }),
            false => json!({ "logicalLocations": [{ "name": found.file }] }),
        };
        json!({
            "ruleId": found.rule,
            "ruleIndex": rules.iter().position(|rule| rule.id == found.rule),
            "level": found.level,
            "message": { "text": one_line(&found.message) },
            "locations": [location],
        })
    };
    let document = json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": "collcast",
                "version": version,
                "rules": rules.iter().map(rule).collect::<Vec<Value>>(),
            }},
            "results": found.iter().map(result).collect::<Vec<Value>>(),
        }],
    });
    format!("{document:#}\n")
}

/// A path as a URI reference: what is not unreserved in RFC 3986 is a percent sign and two digits.
fn uri(path: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~/".contains(&b);
    path.trim_start_matches("./").bytes().fold(String::new(), |uri, b| {
        if plain(b) { uri + char::from(b).encode_utf8(&mut [0; 4]) } else { format!("{uri}%{b:02X}") }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a finding has its rule, level and place; one without a line has no region; paths are URIs; what is in no
    /// file names none.
    #[test]
    fn findings_have_places() {
        let rules = [Rule { id: "r".to_owned(), why: "why".to_owned(), way_out: "out".to_owned() }];
        let found = |line| Found {
            rule: "r".to_owned(),
            level: "error",
            message: "what\nelse".to_owned(),
            file: "./a b/\u{e4}.env".to_owned(),
            is_file: true,
            line,
        };
        let nowhere = Found { file: "the environment".to_owned(), is_file: false, ..found(None) };
        let text = render("1", &rules, &[found(Some(3)), found(None), nowhere]);
        let document: Value = serde_json::from_str(&text).unwrap();
        let results = &document["runs"][0]["results"];
        assert_eq!(results[0]["locations"][0]["physicalLocation"]["region"]["startLine"], 3);
        assert_eq!(results[0]["message"]["text"], "what else");
        let place = &results[1]["locations"][0]["physicalLocation"];
        assert_eq!(place["artifactLocation"]["uri"], "a%20b/%C3%A4.env");
        assert!(place.get("region").is_none(), "{place}");
        assert_eq!(results[0]["ruleIndex"], 0);
        assert_eq!(results[2]["locations"], json!([{ "logicalLocations": [{ "name": "the environment" }] }]));
    }
}
