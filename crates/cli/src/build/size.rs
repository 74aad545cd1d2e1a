//! Sizes of new images on the command line.

use crate::failure::{Failure, Result};
use extant_engine::mkfs::parse_size;
use extant_image::{FreeSpace, ImageSize};

/// Size of an image.
#[derive(clap::Args, Debug)]
pub struct SizeArgs {
    /// Size in bytes, or with k, M, G or T; `exact` is the smallest size for the content and --free
    #[arg(long, value_name = "exact|SIZE", default_value = "exact")]
    size: String,
    /// Free space: bytes that root can write to one file, or percent of the image
    #[arg(long, value_name = "SIZE|%", default_value = "0", value_parser = parse_free)]
    free: FreeSpace,
    /// Free inodes at least
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    inodes_free: u32,
}

impl SizeArgs {
    /// Returns the size of the image.
    ///
    /// # Errors
    /// Wrong usage.
    pub fn size(&self) -> Result<ImageSize> {
        if self.size == "exact" {
            return Ok(ImageSize::Exact { free: self.free, inodes_free: self.inodes_free });
        }
        if self.free != FreeSpace::Bytes(0) || self.inodes_free != 0 {
            let message = "--free and --inodes-free are for --size exact; an image of a given size \
                           has the rest free";
            return Err(Failure::usage(message));
        }
        parse_size(&self.size).map(ImageSize::Bytes).map_err(Failure::usage)
    }
}

fn parse_free(text: &str) -> Result<FreeSpace, String> {
    let Some(percent) = text.strip_suffix('%') else {
        return parse_size(text).map(FreeSpace::Bytes).map_err(|error| error.to_string());
    };
    let percent = percent.parse().ok().filter(|percent| (0.0..=99.0).contains(percent));
    percent.map(FreeSpace::Percent).ok_or_else(|| "a percentage is from 0% to 99%".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_space_is_bytes_or_percent() {
        assert_eq!(parse_free("10M"), Ok(FreeSpace::Bytes(10 << 20)));
        assert_eq!(parse_free("12.5%"), Ok(FreeSpace::Percent(12.5)));
        for bad in ["", "%", "-1%", "100%", "NaN%", "x"] {
            assert!(parse_free(bad).is_err(), "{bad}");
        }
    }
}
