//! ◆ Generated names and uids, and hashes of templates. Pure: random numbers come from a seed.

/// The letters and digits of generated names: no vowels, so that they form no words.
const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// The maximum length of a name without its five generated characters.
const LONGEST_PREFIX: usize = 58;

/// Generates distinct names.
#[derive(Debug)]
pub struct GeneratedNames {
    seed: u64,
    made: u64,
}

impl GeneratedNames {
    /// Creates a generator whose names depend on `seed`.
    pub fn new(seed: u64) -> Self {
        Self { seed, made: 0 }
    }

    /// `prefix`, shortened if necessary, and five characters.
    pub fn generate(&mut self, prefix: &str) -> String {
        self.made += 1;
        let (seed, made) = (self.seed, self.made);
        generated_name(prefix, &format!("{seed}\0{made}"))
    }

    /// A uid that differs from those of all other objects.
    pub fn uid(&mut self, owner: &str, name: &str) -> String {
        self.made += 1;
        let (seed, made) = (self.seed, self.made);
        format!("{:032x}", hash(format!("{seed}\0{made}\0{owner}\0{name}").as_bytes()))
    }
}

/// `prefix`, shortened if necessary, and five characters that depend on it and on `seed`.
pub fn generated_name(prefix: &str, seed: &str) -> String {
    let prefix: String = prefix.chars().take(LONGEST_PREFIX).collect();
    let mut number = hash(format!("{seed}\0{prefix}").as_bytes());
    let mut name = prefix;
    for _ in 0..5 {
        let letter = usize::try_from(number % 27).unwrap_or_default();
        name.extend(LETTERS.get(letter).map(|letter| char::from(*letter)));
        number /= 27;
    }
    name
}

/// A hash of a template, as a label and a part of names.
pub fn template_hash(template: &str) -> String {
    let hash = hash(template.as_bytes());
    // At most ten digits, as of a 32-bit hash, each replaced by a letter of generated names.
    let digits = (hash % (1 << 32)).to_string();
    let letter = |digit: u8| LETTERS.get(usize::from(digit % 27)).copied();
    digits.bytes().filter_map(letter).map(char::from).collect()
}

/// FNV-1a, 128 bits: the same in all versions and on all machines.
pub fn hash(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128, |hash, byte| {
        (hash ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_names_differ_and_fit_a_label() {
        let mut names = GeneratedNames::new(7);
        let (one, other) = (names.generate("web-"), names.generate("web-"));
        assert_ne!(one, other);
        assert!(one.starts_with("web-") && one.len() == 9, "{one}");
        assert_eq!(names.generate(&"x".repeat(80)).len(), 63);
        assert_ne!(names.uid("a", "b"), names.uid("a", "b"));
        assert_eq!(GeneratedNames::new(7).generate("web-"), one);
    }

    #[test]
    fn hash_depends_on_the_template() {
        assert_ne!(template_hash("a"), template_hash("b"));
        assert!(template_hash("a").len() <= 10);
    }
}
