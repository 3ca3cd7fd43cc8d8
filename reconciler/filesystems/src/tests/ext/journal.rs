//! File systems that were not unmounted, whose journals `debugfs` writes.

use super::*;

/// The block of `/etc/hostname`.
fn block(image: &[u8]) -> Option<u64> {
    let (_, output) = changed(image, "blocks etc/hostname\n")?;
    let number = output.lines().find_map(|line| line.trim().parse().ok());
    Some(number.expect("a block"))
}

/// Writes transactions into the journal: with this content, or a revoke of the block.
fn logged(image: &[u8], open: &str, transactions: &[Option<&[u8]>]) -> Option<Vec<u8>> {
    let folder = tempfile::tempdir().expect("a folder");
    let block = block(image)?;
    let mut commands = format!("{open}\n");
    for (number, transaction) in transactions.iter().enumerate() {
        let Some(content) = transaction else {
            commands.push_str(&format!("jw -r {block}\n"));
            continue;
        };
        let path = folder.path().join(number.to_string());
        let mut bytes = content.to_vec();
        bytes.resize(1024, 0);
        fs::write(&path, bytes).expect("written");
        commands.push_str(&format!("jw -b {block} {}\n", path.display()));
    }
    commands.push_str("jc\n");
    changed(image, &commands).map(|(image, _)| image)
}

fn hostname(image: Vec<u8>) -> Vec<u8> {
    read(&opened(image), "/etc/hostname").expect("read")
}

#[test]
fn the_last_committed_content_is_read_unless_it_is_revoked() {
    type Case<'a> = (&'a [Option<&'a [u8]>], &'a [u8]);
    let Some(image) = made("ext4") else { return };
    let cases: [Case<'_>; 5] = [
        (&[Some(b"one\n")], b"one\n"),
        (&[Some(b"one\n"), Some(b"two\n")], b"two\n"),
        (&[Some(b"one\n"), None], b"web\n"),
        (&[Some(b"one\n"), None, Some(b"two\n")], b"two\n"),
        // The content begins as a block of the journal does.
        (&[Some(b"\xc0\x3b\x39\x98")], b"\xc0\x3b\x39\x98"),
    ];
    // Without checksums, and with them.
    for open in ["jo", "jo -c"] {
        for (transactions, expected) in cases {
            let Some(image) = logged(&image, open, transactions) else { return };
            assert_eq!(hostname(image), expected, "{open} {transactions:?}");
        }
    }
}

#[test]
fn a_transaction_without_its_commit_does_not_count() {
    let Some(image) = made("ext4") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let Some(block) = block(&image) else { return };
    let [first, second] = ["one\n", "two\n"].map(|text| {
        let (path, mut content) = (folder.path().join(text.trim()), text.as_bytes().to_vec());
        content.resize(1024, 0);
        fs::write(&path, content).expect("written");
        path.display().to_string()
    });
    // `-c` leaves the commit out.
    let commands = format!("jo\njw -b {block} {first}\njw -b {block} -c {second}\njc\n");
    let Some((image, _)) = changed(&image, &commands) else { return };
    assert_eq!(hostname(image), b"one\n");
}

#[test]
fn a_log_is_read_beyond_the_end_of_its_ring() {
    let Some(image) = made("ext4") else { return };
    let Some(mut image) = logged(&image, "jo", &[Some(b"one\n"), Some(b"two\n")]) else { return };
    let Some((_, output)) = changed(&image, "blocks <8>\n") else { return };
    let blocks: Vec<usize> = output.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let last = blocks.len() - 1;
    let place = |block: usize| blocks[block] * 1024..(blocks[block] + 1) * 1024;
    // Each transaction has a descriptor, content and a commit.
    let log: Vec<Vec<u8>> = (1..=6).map(|block| image[place(block)].to_vec()).collect();
    for block in 1..=6 {
        image[place(block)].fill(0);
    }
    for (block, bytes) in [last - 1, last, 1, 2, 3, 4].into_iter().zip(&log) {
        image[place(block)].copy_from_slice(bytes);
    }
    let start = place(0).start + 0x1c;
    image[start..start + 4].copy_from_slice(&u32::try_from(last - 1).expect("small").to_be_bytes());
    assert_eq!(hostname(image), b"two\n");
}

#[test]
fn content_in_the_journal_that_is_damaged_is_not_read() {
    let Some(image) = made("ext4") else { return };
    let Some(mut image) = logged(&image, "jo -c", &[Some(b"a content that is there once\n")]) else { return };
    let at = image.windows(12).position(|bytes| bytes == b"a content th").expect("in the journal");
    image[at] = b'A';
    let error = read(&opened(image), "/etc/hostname").expect_err("damaged");
    let text = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    assert!(text.contains("in its journal is wrong"), "{error}: {text}");
}

#[test]
fn a_journal_with_fast_commits_is_refused() {
    let Some(image) = made("ext4") else { return };
    let Some(mut image) = logged(&image, "jo", &[Some(b"one\n")]) else { return };
    // The magic bytes, and the type of a superblock.
    let at = image.windows(8).position(|bytes| bytes == b"\xc0\x3b\x39\x98\0\0\0\x04").expect("a journal");
    image[at + 0x2b] |= 0x20;
    let error = crate::open(&disk(image), &Choice::Largest).expect_err("refused").to_string();
    assert!(error.contains("its journal has fast commits"), "{error}");
}
