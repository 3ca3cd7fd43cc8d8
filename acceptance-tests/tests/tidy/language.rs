//! How often texts use words that well-kept projects (kube-rs, linkerd, firecracker, propolis) rarely use.

/// The limits per 10,000 words: the upper end of the range of those projects.
const LIMITS: [(&str, &[&str], f64); 2] = [
    ("persons", &["who", "whom", "whoever", "nobody", "somebody", "anybody", "everybody"], 6.0),
    ("speech", &["told", "tell", "tells", "says", "said"], 5.0),
];
/// The limit for sentences that begin with "What", per 10,000 words.
const QUESTIONS: f64 = 1.4;
/// Below this number of words a rate means nothing: one occurrence is tolerated.
const FEW: f64 = 10_000.0;

/// The counts of the texts of one crate, or of all pages.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    words: usize,
    counts: [usize; LIMITS.len()],
    questions: usize,
    /// The file and text of each occurrence.
    occurrences: Vec<String>,
}

impl Counts {
    pub(crate) fn add(&mut self, text: &str, place: &str) {
        let before = (self.counts, self.questions);
        for word in text
            .split(|c: char| !c.is_alphanumeric() && c != '\'' && c != '_')
            .filter(|word| !word.is_empty())
        {
            self.words += 1;
            for ((_, words, _), count) in LIMITS.iter().zip(&mut self.counts) {
                *count += usize::from(words.iter().any(|each| each.eq_ignore_ascii_case(word)));
            }
        }
        let sentences = text.trim_matches('"').split(". ");
        self.questions += sentences.filter(|sentence| sentence.starts_with("What ")).count();
        if before != (self.counts, self.questions) {
            self.occurrences.push(format!("  {place}: {text}"));
        }
    }

    /// Returns the rates above their limits, with the occurrences.
    pub(crate) fn excess(&self) -> Option<String> {
        let above = |count: usize, limit: f64| {
            let (count, words) = (count as f64, self.words as f64);
            count > 1.0 && count * 10_000.0 / words.max(FEW) > limit
        };
        let mut found: Vec<String> = LIMITS
            .iter()
            .zip(&self.counts)
            .filter(|((_, _, limit), count)| above(**count, *limit))
            .map(|((name, _, limit), count)| {
                format!("{count} words of {name} in {}, at most {limit} in 10,000", self.words)
            })
            .collect();
        if above(self.questions, QUESTIONS) {
            found.push(format!(
                "{} sentences begin with What, at most {QUESTIONS} in 10,000 words",
                self.questions
            ));
        }
        (!found.is_empty()).then(|| format!("{}\n{}", found.join("; "), self.occurrences.join("\n")))
    }
}

#[test]
fn a_text_is_counted_by_words_and_sentences() {
    let mut counts = Counts::default();
    counts.add("What is told. What is not told to whom", "a.rs");
    assert_eq!((counts.words, counts.counts, counts.questions), (9, [1, 2], 2));
    assert!(counts.excess().is_some_and(|excess| excess.contains("What") && excess.contains("a.rs")));
    let mut few = Counts::default();
    few.add("The caller who waits.", "a.rs");
    assert_eq!(few.excess(), None);
}
