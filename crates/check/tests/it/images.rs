//! The damaged images of e2fsprogs' own tests.

use crate::exceptions::{ENDLESS, reason};
use crate::oracle::{Agreement, compare, damages};
use extant_hostile::seeds::of_others;

/// Prints the table of agreement with `e2fsck -fn`, on the images below `EXTANT_IMAGES`.
#[test]
#[ignore = "needs images from the network: make check-images"]
fn verdicts_on_images_of_e2fsprogs_equal_those_of_e2fsck() {
    let images = of_others();
    assert!(images.len() > 200, "EXTANT_IMAGES names no folder with the images");
    let (mut same, mut differ) = (0, Vec::new());
    for (name, bytes) in &images {
        let verdict = if let Some(why) = reason(ENDLESS, name) {
            assert!(!damages(bytes, true).is_empty(), "{name}");
            format!("damaged; exception: {why}")
        } else {
            match compare(bytes) {
                Ok(Agreement::Same { damaged }) => {
                    same += 1;
                    if damaged { "damaged by both".into() } else { "clean by both".into() }
                }
                Ok(Agreement::Excepted(why)) => format!("exception: {why}"),
                Err(both) => {
                    differ.push(name);
                    format!("DIFFERENT: {both}")
                }
            }
        };
        println!("{name:<45} {verdict}");
    }
    println!("{same} of {} verdicts are the same", images.len());
    assert!(differ.is_empty(), "{differ:?}");
}
