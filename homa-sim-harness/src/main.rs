//! x
use homa_sim_harness::experiment::*;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let mut e = if a[2] == "-" {
        Experiment::default()
    } else {
        Experiment::preset(&a[2]).unwrap()
    };
    e.workload = a[3].clone();
    e.load = a[4].parse().unwrap();
    e.millis = a[5].parse().unwrap();
    let r = e
        .run(
            &a[1],
            &mut Watch {
                progress: &mut |_, _| {},
                capture: None,
            },
        )
        .unwrap();
    println!("{}", r.table());
}
