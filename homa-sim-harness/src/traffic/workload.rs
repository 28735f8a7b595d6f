//! How long messages are: the workloads on which Homa was published, and fixed sizes.
//!
//! W1 to W5 are the workloads of "Homa: A Receiver-Driven Low-Latency Transport Protocol Using Network Priorities"
//! (SIGCOMM '18, figure 1); W2 to W5 are also those of "A Linux Kernel Implementation of the Homa Transport Protocol" (USENIX
//! ATC '21). Here each is condensed to 60 to 90 lengths.

use crate::rng::Rng;

/// Accesses to memcached servers at Facebook.
const W1: &[(u32, u32)] = &[
    (8, 310940),
    (10, 16740),
    (11, 89890),
    (14, 23980),
    (15, 28450),
    (18, 14111),
    (23, 12848),
    (29, 13503),
    (36, 13481),
    (41, 12707),
    (48, 14143),
    (56, 15653),
    (64, 13642),
    (72, 14653),
    (81, 15660),
    (91, 16644),
    (100, 13103),
    (110, 13605),
    (120, 14072),
    (131, 14496),
    (143, 14867),
    (156, 15179),
    (170, 15422),
    (186, 15590),
    (203, 15675),
    (222, 15674),
    (242, 15580),
    (264, 15395),
    (284, 10114),
    (301, 9963),
    (319, 9785),
    (339, 9582),
    (359, 9355),
    (381, 9105),
    (404, 8834),
    (428, 8543),
    (454, 8237),
    (482, 7915),
    (510, 7581),
    (541, 7237),
    (574, 6887),
    (609, 6531),
    (645, 6174),
    (684, 5816),
    (725, 5462),
    (769, 5113),
    (815, 4769),
    (864, 4435),
    (916, 4111),
    (972, 3799),
    (1030, 3499),
    (1092, 3213),
    (1158, 2941),
    (1228, 2685),
    (1302, 2443),
    (1380, 2217),
    (1463, 2006),
    (1573, 2647),
    (1718, 2256),
    (1875, 1912),
    (2046, 1610),
    (2234, 1350),
    (2473, 1457),
    (2780, 1135),
    (3167, 1062),
    (3713, 884),
    (4482, 659),
    (5703, 518),
    (8304, 344),
    (17593, 111),
];

/// A search application at Google.
const W2: &[(u32, u32)] = &[
    (8, 170108),
    (32, 18900),
    (34, 13743),
    (36, 13743),
    (38, 13743),
    (40, 13742),
    (43, 13743),
    (46, 13743),
    (49, 13743),
    (53, 13742),
    (58, 13743),
    (64, 13743),
    (88, 13740),
    (134, 13741),
    (146, 24427),
    (166, 24427),
    (190, 24428),
    (223, 24427),
    (266, 56870),
    (284, 44656),
    (301, 44656),
    (320, 44656),
    (341, 44656),
    (366, 44656),
    (394, 44656),
    (427, 44656),
    (465, 44657),
    (512, 44656),
    (570, 14312),
    (685, 14313),
    (820, 9542),
    (977, 9542),
    (1140, 6870),
    (1369, 6870),
    (1641, 4581),
    (1955, 4580),
    (2280, 4294),
    (2646, 2862),
    (3039, 2863),
    (3569, 2862),
    (4134, 1742),
    (5160, 1550),
    (7192, 1241),
    (12620, 548),
    (29754, 251),
    (53440, 125),
    (70901, 104),
    (79510, 105),
    (90502, 104),
    (105026, 105),
    (125114, 104),
    (155282, 52),
    (211415, 42),
    (357353, 21),
    (956393, 9),
    (1944050, 3),
    (3529904, 2),
];

/// All RPCs of a Google datacenter.
const W3: &[(u32, u32)] = &[
    (8, 64883),
    (32, 32441),
    (38, 23179),
    (50, 23178),
    (68, 44307),
    (77, 32717),
    (85, 32717),
    (96, 32717),
    (110, 32717),
    (128, 32717),
    (137, 18291),
    (146, 18291),
    (158, 18291),
    (171, 18291),
    (186, 18291),
    (205, 18291),
    (228, 18291),
    (256, 18291),
    (268, 26093),
    (282, 26092),
    (296, 26093),
    (313, 26093),
    (331, 26093),
    (352, 26092),
    (375, 26093),
    (402, 26093),
    (433, 26093),
    (469, 26092),
    (512, 26093),
    (552, 16774),
    (624, 16774),
    (718, 16774),
    (845, 16774),
    (1002, 13719),
    (1154, 12684),
    (1369, 12684),
    (1683, 12684),
    (2141, 12684),
    (2879, 13047),
    (4075, 11117),
    (5045, 9469),
    (6138, 7576),
    (7495, 6628),
    (8854, 5469),
    (10194, 4475),
    (11701, 3978),
    (13456, 3480),
    (15466, 2983),
    (18568, 2477),
    (23747, 1939),
    (30198, 1457),
    (38015, 1158),
    (48348, 952),
    (61531, 751),
    (70264, 645),
    (76903, 603),
    (84321, 559),
    (92589, 517),
    (101770, 473),
    (111898, 430),
    (122969, 388),
    (135946, 333),
    (154496, 292),
    (176006, 258),
    (200493, 224),
    (228623, 202),
    (259530, 176),
    (283605, 157),
    (307507, 144),
    (333731, 136),
    (362348, 123),
    (393443, 117),
    (428078, 109),
    (465275, 95),
    (504783, 89),
    (569672, 78),
    (670081, 66),
    (789948, 58),
    (932688, 48),
    (1098132, 40),
    (1295276, 35),
    (1533784, 31),
    (1816599, 25),
    (2161585, 23),
    (2571015, 17),
    (3040187, 15),
    (3594817, 13),
    (4314258, 13),
    (5254124, 10),
    (6323435, 7),
    (7674270, 8),
    (9310025, 5),
    (11253218, 5),
    (14225926, 5),
];

/// A Hadoop cluster at Facebook.
const W4: &[(u32, u32)] = &[
    (96, 12650),
    (224, 12650),
    (254, 13000),
    (282, 12590),
    (304, 18210),
    (309, 17100),
    (314, 17100),
    (319, 17100),
    (324, 17100),
    (333, 13020),
    (342, 13020),
    (352, 13020),
    (362, 13020),
    (374, 13020),
    (395, 14280),
    (427, 14300),
    (449, 16360),
    (471, 16360),
    (491, 19520),
    (502, 19520),
    (513, 19520),
    (525, 19520),
    (537, 19520),
    (549, 19520),
    (561, 19520),
    (574, 19520),
    (587, 19520),
    (600, 19520),
    (615, 17280),
    (638, 17280),
    (662, 17280),
    (684, 12820),
    (704, 14120),
    (728, 14120),
    (759, 14520),
    (795, 12680),
    (861, 13850),
    (961, 12950),
    (1087, 12950),
    (1247, 12610),
    (1407, 13020),
    (1570, 14520),
    (1713, 12640),
    (2716, 13190),
    (4848, 12840),
    (7499, 13030),
    (23163, 13190),
    (36693, 13020),
    (41074, 13950),
    (44139, 13560),
    (46198, 14280),
    (48020, 14880),
    (49612, 14880),
    (52722, 12620),
    (66652, 13380),
    (74710, 13380),
    (78313, 14850),
    (82500, 13950),
    (96088, 12690),
    (113611, 12970),
    (139104, 13060),
    (172844, 12080),
    (206565, 10150),
    (234996, 8370),
    (270822, 7440),
    (343579, 5580),
    (453034, 4840),
    (603834, 3360),
    (756286, 2600),
    (885689, 2220),
    (1034709, 1860),
    (1174047, 1860),
    (1332149, 1860),
    (1511542, 1860),
    (1715092, 1860),
    (1824251, 1120),
    (1900132, 1120),
    (1979168, 1120),
    (2061493, 1120),
    (2147242, 1120),
    (2527289, 1300),
    (2944602, 1300),
    (3430822, 1300),
    (3997329, 1300),
    (4657379, 1300),
    (5426418, 1300),
    (6322443, 1300),
    (7366423, 1300),
    (8582787, 1300),
    (10000000, 1300),
];

/// Web search, from the DCTCP paper.
const W5: &[(u32, u32)] = &[
    (1430, 25000),
    (2860, 25000),
    (4290, 25000),
    (5720, 25000),
    (7150, 25000),
    (8580, 25000),
    (10725, 14286),
    (13965, 14285),
    (16905, 14286),
    (20139, 23810),
    (22050, 16666),
    (23520, 16667),
    (24990, 16667),
    (26460, 16666),
    (27930, 16667),
    (30135, 14286),
    (33075, 14285),
    (36015, 14286),
    (38955, 14286),
    (41895, 14286),
    (44835, 14285),
    (47775, 14286),
    (50715, 13000),
    (53655, 13000),
    (56595, 13000),
    (59535, 13000),
    (62475, 13000),
    (65415, 13000),
    (68355, 13000),
    (71295, 13000),
    (74235, 13000),
    (77175, 13000),
    (89670, 13125),
    (111720, 13125),
    (133770, 13125),
    (155820, 13125),
    (177870, 13125),
    (216095, 12615),
    (310173, 12547),
    (423363, 14232),
    (529511, 12547),
    (627997, 12546),
    (726485, 12547),
    (834480, 14981),
    (952610, 14913),
    (1091242, 15015),
    (1238242, 15015),
    (1385242, 15015),
    (1532242, 15015),
    (1679242, 15015),
    (1826242, 15015),
    (2021833, 14857),
    (2437260, 15000),
    (2878260, 15000),
    (3282510, 12500),
    (3650010, 12500),
    (3980760, 10000),
    (4274760, 10000),
    (4568760, 10000),
    (6194424, 10005),
    (11025686, 4995),
    (12005883, 5003),
    (12986373, 5002),
    (13965735, 4996),
    (14945834, 5002),
    (15680490, 2498),
    (16171470, 2505),
    (16660980, 2497),
    (17150490, 2498),
    (17641470, 2505),
    (18130980, 2498),
    (18620490, 2497),
    (19111470, 2505),
    (19600980, 2498),
    (20090490, 2497),
    (20581470, 2505),
    (21070980, 2498),
    (21560490, 2498),
    (22051470, 2505),
    (22540980, 2497),
    (23030490, 2498),
    (23521470, 2505),
    (24010980, 2497),
    (24500490, 2498),
    (24991470, 2505),
    (25480980, 2498),
    (25970490, 2497),
    (26461470, 2505),
    (26950980, 2498),
    (27440490, 2497),
    (27931470, 2505),
    (28420980, 2498),
    (28910490, 2497),
    (29400000, 2498),
];

/// A distribution of message lengths.
#[derive(Clone, Debug)]
pub struct Workload {
    name: String,
    /// Lengths, ascending, and for each the share of messages that are at most as long, in 2^-32.
    steps: Vec<(u32, u64)>,
    mean: f64,
}

/// The names that [`Workload::named`] knows.
pub const NAMES: [&str; 5] = ["w1", "w2", "w3", "w4", "w5"];

impl Workload {
    /// W1 to W5, in any case.
    ///
    /// # Errors
    /// One line that lists what there is.
    pub fn named(name: &str) -> Result<Self, String> {
        let table = match name.to_ascii_lowercase().as_str() {
            "w1" => W1,
            "w2" => W2,
            "w3" => W3,
            "w4" => W4,
            "w5" => W5,
            _ => {
                return Err(format!(
                    "no workload is called '{name}' (there are {})",
                    NAMES.join(", ")
                ));
            }
        };
        Ok(Self::from_counts(&name.to_ascii_lowercase(), table))
    }

    /// All messages of one length.
    ///
    /// # Errors
    /// When the length is 0.
    pub fn fixed(bytes: u32) -> Result<Self, String> {
        if bytes == 0 {
            return Err("a message has at least one byte".into());
        }
        Ok(Self::from_counts(&format!("{bytes} B"), &[(bytes, 1)]))
    }

    /// Lengths whose logarithms lie evenly from `low` to `high`, in 16 steps.
    #[must_use]
    pub fn log_uniform(name: &str, low: u32, high: u32) -> Self {
        let ratio = f64::from(high) / f64::from(low);
        let counts: Vec<(u32, u32)> = (0..=16)
            .map(|step| {
                let bytes = f64::from(low) * ratio.powf(f64::from(step) / 16.0);
                (bytes.round() as u32, 1)
            })
            .collect();
        Self::from_counts(name, &counts)
    }

    /// From (length, count) pairs with lengths ascending.
    fn from_counts(name: &str, counts: &[(u32, u32)]) -> Self {
        let total: u64 = counts.iter().map(|count| u64::from(count.1)).sum();
        let mut below = 0;
        let steps = counts
            .iter()
            .map(|&(bytes, count)| {
                below += u64::from(count);
                (bytes, (below << 32) / total)
            })
            .collect();
        let sum: f64 = counts
            .iter()
            .map(|&(bytes, count)| f64::from(bytes) * f64::from(count))
            .sum();
        Self {
            name: name.into(),
            steps,
            mean: sum / total as f64,
        }
    }

    /// The same with every length cut to `max`.
    #[must_use]
    pub fn capped(&self, max: u32) -> Self {
        let mut steps: Vec<(u32, u64)> = self
            .steps
            .iter()
            .copied()
            .filter(|step| step.0 < max)
            .collect();
        if steps.len() < self.steps.len() {
            steps.push((max, 1 << 32));
        }
        let mut capped = Self {
            name: self.name.clone(),
            steps,
            mean: 0.0,
        };
        capped.mean = capped.average(f64::from);
        capped
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Mean length in bytes.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.mean
    }

    /// Every length with the share of messages that have it.
    pub fn shares(&self) -> impl Iterator<Item = (u32, f64)> + '_ {
        let mut below = 0;
        self.steps.iter().map(move |&(bytes, upto)| {
            let share = (upto - below) as f64 / (1u64 << 32) as f64;
            below = upto;
            (bytes, share)
        })
    }

    /// The mean of `f` over the lengths of messages.
    pub fn average(&self, f: impl Fn(u32) -> f64) -> f64 {
        self.shares().map(|(bytes, share)| share * f(bytes)).sum()
    }

    /// The longest message.
    #[must_use]
    pub fn max(&self) -> u32 {
        self.steps.last().map_or(0, |step| step.0)
    }

    /// The length that the share `fraction` of messages does not exceed.
    #[must_use]
    pub fn quantile(&self, fraction: f64) -> u32 {
        let at = (fraction * (1u64 << 32) as f64) as u64;
        let index = self.steps.partition_point(|step| step.1 < at);
        self.steps
            .get(index)
            .map_or_else(|| self.max(), |step| step.0)
    }

    /// Draws a length.
    pub fn draw(&self, rng: &mut Rng) -> u32 {
        let at = rng.next_u64() >> 32;
        let index = self.steps.partition_point(|step| step.1 <= at);
        self.steps
            .get(index)
            .map_or_else(|| self.max(), |step| step.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_the_published_ones() {
        for (name, mean, capped) in [
            ("W1", 189.0, 189.0),
            ("w2", 442.0, 433.0),
            ("w3", 2_928.0, 2_423.0),
            ("w4", 127_797.0, 60_175.0),
            ("w5", 2_564_690.0, 385_316.0),
        ] {
            let workload = Workload::named(name).unwrap();
            let near = |a: f64, b: f64| (a / b - 1.0).abs() < 0.003;
            assert!(near(workload.mean(), mean), "{name} {}", workload.mean());
            let short = workload.capped(1_000_000);
            assert!(near(short.mean(), capped), "{name} {}", short.mean());
            assert!(short.max() <= 1_000_000);
            assert!(
                workload
                    .shares()
                    .all(|(bytes, share)| bytes > 0 && share > 0.0)
            );
        }
    }

    #[test]
    fn draws_follow_the_shares() {
        let workload = Workload::named("w3").unwrap();
        let mut rng = Rng::new(5, 0);
        let n = 300_000;
        let mut counts = std::collections::BTreeMap::new();
        for _ in 0..n {
            *counts.entry(workload.draw(&mut rng)).or_insert(0u32) += 1;
        }
        for (bytes, share) in workload.shares() {
            let got = f64::from(counts.get(&bytes).copied().unwrap_or(0));
            let expected = share * f64::from(n);
            assert!(
                (got - expected).abs() < 6.0 * expected.sqrt() + 3.0,
                "{bytes}: {got} {expected}"
            );
        }
        assert!(
            counts
                .keys()
                .all(|bytes| workload.shares().any(|s| s.0 == *bytes))
        );
    }

    #[test]
    fn unknown_names_are_refused() {
        assert!(Workload::named("w6").unwrap_err().contains("w1, w2"));
        assert!(Workload::fixed(0).is_err());
    }
}
