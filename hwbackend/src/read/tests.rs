//! No content of a file can make the readers panic, hang or grow without bound.

use super::parsed::NOTES_MAX;
use super::*;
use proptest::prelude::*;

const LOGS: [&str; 4] = [
    include_str!("../../tests/data/G4_all_gather_Ring_LL128.log"),
    include_str!("../../tests/data/coreweave_a100_4n_allreduce_sharp_2023.log"),
    include_str!("../../tests/data/coreweave_gb200_nvl72_allreduce.csv"),
    include_str!("../../tests/data/shahizat_h100_2n_allreduce_default.log"),
];

/// Reads `bytes` under every name that a reader is chosen by, and what it gives holds.
fn check_total(bytes: &[u8]) {
    for name in ["all_reduce.log", "t.csv", "t.json", "t.xml", "t"] {
        for allow_predicted in [false, true] {
            let options = ReadOptions { allow_predicted, ..ReadOptions::default() };
            let sidecar = Sidecar { ranks: allow_predicted.then_some(4), ..Sidecar::default() };
            match parse(Path::new(name), "all_reduce", bytes, &sidecar, &options, 100) {
                Ok((_, parsed)) => {
                    assert!(parsed.rows.len() <= 101);
                    assert!(parsed.notes.len() <= NOTES_MAX);
                    for row in &parsed.rows {
                        assert!(row.ranks > 0 && row.time.0 > 0 && row.size.0 > 0);
                    }
                    assert!(!parsed.rows.is_empty() || !parsed.reason().is_empty());
                }
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        }
    }
    let _ = sidecar::parse(Path::new("t.toml"), &String::from_utf8_lossy(bytes));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        check_total(&bytes);
    }

    #[test]
    fn text_of_the_right_words_does_not_panic(
        words in proptest::collection::vec(
            prop_oneof![
                Just("\n"), Just("#"), Just("Rank"), Just("device"), Just("nThread"), Just("nGpus"),
                Just("1024"), Just("0"), Just("4294967295"), Just("1e308"), Just("N/A"), Just("nan"),
                Just("float"), Just("sum"), Just("-1"), Just("size"), Just("time"), Just("busbw"),
                Just("algbw"), Just("Bytes -> Algo"), Just("RING proto LL channel{Lo..Hi}={3..0}"),
                Just("Collective test starting: all_reduce_perf"), Just("# env: NCCL_ALGO=ring;:"),
                Just("set by environment to"), Just("NCCL INFO"), Just("collective,ranks,size_bytes,time_us\n"),
                Just("all_reduce,4,8,5"), Just("{\"results\":[{\"size\":8}]}"), Just("\""), Just(","), Just("18446744073709551615"),
            ],
            0..60,
        )
    ) {
        check_total(words.join(" ").as_bytes());
    }

    #[test]
    fn mutated_logs_do_not_panic(
        which in 0..LOGS.len(),
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = LOGS[which].as_bytes().to_vec();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let end = cut.index(bytes.len() * 2).min(bytes.len());
        check_total(&bytes[..end]);
    }
}

/// Goal: the bounds hold: long lines, many rows, many columns, deep JSON.
#[test]
fn limits_hold() {
    check_total("1 ".repeat(200_000).as_bytes());
    check_total("8 2 float sum -1 5 0.2 0.3 0 5 0.2 0.3 0\n".repeat(1000).as_bytes());
    check_total(",".repeat(60_000).as_bytes());
    check_total(format!("{}{}", "[".repeat(100_000), "]").as_bytes());
}

/// Goal: the GPUs of a row are read with their hosts, sorted, and tell how many hosts there are; others are refused.
#[test]
fn gpus_of_a_row_are_read() {
    let read = |gpus: &str| {
        let text = format!("collective,ranks,size_bytes,time_us,gpus\nall_reduce,2,8,5,{gpus}\n");
        let options = ReadOptions::default();
        parse(Path::new("t.csv"), "t", text.as_bytes(), &Sidecar::default(), &options, 9)
            .map(|(_, mut p)| p.rows.remove(0))
    };
    let pair = |host: &str, gpu: &str| (host.to_owned(), gpu.to_owned());
    let row = read("n1:3 n1:0000:1b:00").unwrap();
    assert_eq!(&row.settings.gpus[..], [pair("n1", "0000:1b:00"), pair("n1", "3")]);
    assert_eq!((&row.settings.host_names[..], row.hosts), (&["n1".to_owned()][..], Some(1)));
    assert_eq!(read("n2:0 n1:0").unwrap().hosts, Some(2));
    assert!(read("").unwrap().settings.gpus.is_empty());
    for (gpus, said) in
        [("n1:0", "1 GPUs for 2 ranks"), ("n1:0 n1:0", "1 GPUs"), ("0 1", "colon"), ("n1: n1:1", "colon")]
    {
        let error = read(gpus).unwrap_err().to_string();
        assert!(error.contains(said) && error.contains("node1:0 node1:3"), "{gpus}: {error}");
    }
}
